"""The rays of an image as the native tracer takes them: positions on the plane z = 1 of a face.

A face is a frame at the camera centre. Planar lenses need one, the camera's own; fisheye lenses
give each tile the face of a cube that it looks at, so that any field of view is a set of planes and
the tracer's exact rational response holds for every ray.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.native import constants

# Rows are a face's x, y, z axes in camera space: front, right, left, down, up, back.
_CUBE = (
    ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    ((0, 0, -1), (0, 1, 0), (1, 0, 0)),
    ((0, 0, 1), (0, 1, 0), (-1, 0, 0)),
    ((1, 0, 0), (0, 0, -1), (0, 1, 0)),
    ((1, 0, 0), (0, 0, 1), (0, -1, 0)),
    ((-1, 0, 0), (0, 1, 0), (0, 0, -1)),
)


@dataclass(frozen=True)
class RayGrid:
    """Rays of one lens.

    Attributes:
        face_axes: [F, 3, 3] float32, rows are each face's axes in camera space.
        ray_xy: [H, W, 2] float32 position of each pixel's ray on its face's plane z = 1, NaN
            without ray.
        tile_face: [tiles] int32 face of each 8x8 tile, row-major.
        depth_scale: [H, W] float32 from depth along the face's z to reported depth, None for 1.
    """

    face_axes: Tensor
    ray_xy: Tensor
    tile_face: Tensor
    depth_scale: Tensor | None


def ray_grid(camera: Camera, device: torch.device | str) -> RayGrid:
    """Rays of `camera` on `device`; cameras with equal lenses share them.

    Raises:
        ValueError: a fisheye image so small that one tile spans more than a face can.
    """
    # The pose plays no part, so any camera with this lens stands for all of them.
    return _cached(_Lens(camera), torch.device(device))


class _Lens:
    """Hashes a camera by its lens alone."""

    def __init__(self, camera: Camera) -> None:
        self.camera = camera

    def __hash__(self) -> int:
        return hash(self.camera.lens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Lens) and self.camera.lens == other.camera.lens


@lru_cache(maxsize=512)
def _cached(lens: _Lens, device: torch.device) -> RayGrid:
    camera = lens.camera
    directions = camera.directions()
    tile = int(constants()["trace_tile"])
    tiles_y, tiles_x = -(-camera.height // tile), -(-camera.width // tile)
    if camera.is_planar:
        return RayGrid(
            face_axes=torch.eye(3, device=device)[None].contiguous(),
            ray_xy=directions[..., :2].float().contiguous().to(device),
            tile_face=torch.zeros(tiles_y * tiles_x, dtype=torch.int32, device=device),
            depth_scale=None,
        )
    axes = torch.tensor(_CUBE, dtype=torch.float64)
    # Mean direction of each tile, invalid pixels left out, decides its face.
    padded = torch.zeros(tiles_y * tile, tiles_x * tile, 3, dtype=torch.float64)
    padded[: camera.height, : camera.width] = directions.nan_to_num(0.0)
    mean = padded.reshape(tiles_y, tile, tiles_x, tile, 3).sum((1, 3)).reshape(-1, 3)
    tile_face = (mean @ axes[:, 2].T).argmax(1)
    by_pixel = tile_face.reshape(tiles_y, tiles_x)
    by_pixel = by_pixel.repeat_interleave(tile, 0).repeat_interleave(tile, 1)
    by_pixel = by_pixel[: camera.height, : camera.width]
    local = torch.einsum("hwij,hwj->hwi", axes[by_pixel], directions)
    if (local[..., 2] < 0.1).any():
        raise ValueError(
            f"fisheye image of {camera.width} x {camera.height} pixels: a {tile} x {tile} tile "
            "spans more than a cube face can; render it larger"
        )
    return RayGrid(
        face_axes=axes.float().contiguous().to(device),
        ray_xy=(local[..., :2] / local[..., 2:]).float().contiguous().to(device),
        tile_face=tile_face.int().contiguous().to(device),
        depth_scale=(1 / local[..., 2]).nan_to_num(1.0).float().to(device),
    )
