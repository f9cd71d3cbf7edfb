"""The rays of an image as the native tracer takes them: positions on the plane z = 1 of a face.

A face is a frame at the camera centre. Planar lenses need one, the camera's own; fisheye lenses
give each tile the face of a cube that it looks at, so that any field of view is a set of planes and
the tracer's exact rational response holds for every ray. So do panoramas, of a cube that is turned
and whose sides reach far up and down: a side is a quarter of the image's columns, in which x grows
with the column and y with the row, so that a support has few tiles to be tested against; what is
left to the top and the bottom, where columns go round, is little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.errors import GartError
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

_TURN = ((math.sqrt(0.5), 0, -math.sqrt(0.5)), (0, 1, 0), (math.sqrt(0.5), 0, math.sqrt(0.5)))
"""Of a cube's axes by half a side to the right."""
_SIDES = 4.0
"""How much more than a cube's the panorama's sides take: to latitudes of 70 to 76 degrees."""
_LEAST_Z = 0.1
"""Of a unit direction in its face: beyond 84 degrees off its axis a face's plane is too far out."""


@dataclass(frozen=True)
class RayGrid:
    """Rays of one lens.

    Attributes:
        face_axes: [F, 3, 3] float32, rows are each face's axes in camera space.
        ray_xy: [H, W, 2] float32 position of each pixel's ray on its face's plane z = 1, NaN
            without ray.
        tile_face: [tiles] int32 face of each 8x8 tile, row-major.
        tile_rect: [tiles, 4] float32 x0, x1, y0, y1 around each tile's rays; inf, -inf without.
        columns: [F, 2, tiles_x] float32. Tiles of face f in columns > c lie right of
            columns[f, 0, c + 1]; in columns < c left of columns[f, 1, c - 1]: both ascend, so a
            support's tile columns are found by bisection whatever the lens.
        rows: [F, 2, tiles_y] float32, the same for y.
        block_rect: [blocks, 4] float32, as tile_rect for blocks of 8 x 8 tiles.
        depth_scale: [H, W] float32 from depth along the face's z to reported depth, None for 1.
    """

    face_axes: Tensor
    ray_xy: Tensor
    tile_face: Tensor
    tile_rect: Tensor
    columns: Tensor
    rows: Tensor
    block_rect: Tensor
    depth_scale: Tensor | None

    def native(self) -> list[Tensor]:
        """The tensors that csrc takes, in its order."""
        return [
            self.face_axes,
            self.ray_xy,
            self.tile_face,
            self.tile_rect,
            self.columns,
            self.rows,
            self.block_rect,
        ]

    def band(self, first: int, last: int) -> RayGrid:
        """The rays of pixel rows `first` to `last` (exclusive), which share this grid's memory.

        `first` is a multiple of 64, a block's pixels, so that tiles and blocks stay as they are.
        `columns` and `rows` bound more than the band's tiles, which costs time and changes nothing.
        """
        tile, block = int(constants()["trace_tile"]), int(constants()["block_tiles"])
        width = self.ray_xy.shape[1]
        across = -(-width // tile)
        tiles = slice(first // tile, -(-last // tile))
        in_tiles = slice(tiles.start * across, tiles.stop * across)
        across = -(-across // block)
        blocks = slice(tiles.start // block * across, -(-tiles.stop // block) * across)
        return replace(
            self,
            ray_xy=self.ray_xy[first:last],
            tile_face=self.tile_face[in_tiles],
            tile_rect=self.tile_rect[in_tiles],
            rows=self.rows[..., tiles].contiguous(),
            block_rect=self.block_rect[blocks],
            depth_scale=None if self.depth_scale is None else self.depth_scale[first:last],
        )

    @cached_property
    def pixel_ranges(self) -> tuple[Tensor, Tensor]:
        """[F, 2, W] and [F, 2, H] float32: as `columns` and `rows`, by pixels for tiles."""
        tile = int(constants()["trace_tile"])
        height, width = self.ray_xy.shape[:2]
        face = self.tile_face.reshape(-(-height // tile), -1)
        face = face.repeat_interleave(tile, 0).repeat_interleave(tile, 1)[:height, :width, None]
        return _face_ranges(
            self.ray_xy.nan_to_num(torch.inf),
            self.ray_xy.nan_to_num(-torch.inf),
            face,
            len(self.face_axes),
        )


def ray_grid(camera: Camera, device: torch.device | str) -> RayGrid:
    """Rays of `camera` on `device`; cameras with equal lenses share them.

    Raises:
        GartError: rays that tiles cannot serve, see `fits_tiles`.
    """
    grid = _cached(_Lens(camera), torch.device(device)) if camera.is_central else None
    if grid is None:
        raise GartError(
            f"tile lists cannot serve the rays of this {camera.model} image of {camera.width} x "
            f"{camera.height} pixels; trace it through the tree, with tracer='bvh'"
        )
    return grid


def fits_tiles(camera: Camera, device: torch.device | str) -> bool:
    """Whether there is a `ray_grid`: not for rays that start elsewhere than at the centre, nor for
    a fisheye or panorama so small that a tile spans more than a face can.
    """
    if camera.is_planar:
        return camera.is_central
    return camera.is_central and _cached(_Lens(camera), torch.device(device)) is not None


class _Lens:
    """Hashes a camera by its lens alone."""

    def __init__(self, camera: Camera) -> None:
        self.camera = camera

    def __hash__(self) -> int:
        return hash(self.camera.lens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Lens) and self.camera.lens == other.camera.lens


@lru_cache(maxsize=512)
def _cached(lens: _Lens, device: torch.device) -> RayGrid | None:
    # The pose plays no part, so any camera with this lens stands for all of them.
    camera = lens.camera
    directions = camera.directions()
    tile = int(constants()["trace_tile"])
    tiles_y, tiles_x = -(-camera.height // tile), -(-camera.width // tile)
    if camera.is_planar:
        return _grid(
            torch.eye(3)[None],
            directions[..., :2],
            torch.zeros(tiles_y * tiles_x, dtype=torch.int64),
            None,
            device,
        )
    axes = torch.tensor(_CUBE, dtype=torch.float64)
    sides = 1.0
    if camera.model == "equirectangular":
        axes, sides = axes @ axes.new_tensor(_TURN), _SIDES
    by_tile = _looked_at(directions, axes[:, 2], sides)
    by_pixel = by_tile.repeat_interleave(tile, 0).repeat_interleave(tile, 1)
    by_pixel = by_pixel[: camera.height, : camera.width]
    local = torch.einsum("hwij,hwj->hwi", axes[by_pixel], directions)
    if (local[..., 2] < _LEAST_Z).any():
        return None
    scale = (1 / local[..., 2]).nan_to_num(1.0)
    return _grid(axes, local[..., :2] / local[..., 2:], by_tile.flatten(), scale, device)


def _looked_at(directions: Tensor, axes: Tensor, sides: float) -> Tensor:
    """[tiles_y, tiles_x] the face of a cube that each tile looks at: whose axis [F, 3] is nearest
    to the tile's direction [H, W, 3] that is farthest off it; sides count as nearer by a factor.
    """
    tile = int(constants()["trace_tile"])
    height, width = directions.shape[:2]
    least = []
    for axis in axes:
        z = (directions @ axis).nan_to_num(torch.inf)
        z = torch.nn.functional.pad(z, (0, -width % tile, 0, -height % tile), value=torch.inf)
        z = z.reshape(-(-height // tile), tile, -(-width // tile), tile).amin((1, 3))
        least.append(z * (sides if axis[1] == 0 else 1.0))
    return torch.stack(least).argmax(0)


def _grid(
    axes: Tensor, xy: Tensor, tile_face: Tensor, depth_scale: Tensor | None, device: torch.device
) -> RayGrid:
    tile = int(constants()["trace_tile"])
    height, width = xy.shape[:2]
    tiles_y, tiles_x = -(-height // tile), -(-width // tile)
    xy = xy.float()
    padded = torch.full((tiles_y * tile, tiles_x * tile, 2), torch.nan)
    padded[:height, :width] = xy
    by_tile = padded.reshape(tiles_y, tile, tiles_x, tile, 2)
    low = by_tile.nan_to_num(torch.inf).amin((1, 3))  # [tiles_y, tiles_x, 2]
    high = by_tile.nan_to_num(-torch.inf).amax((1, 3))
    columns, rows = _face_ranges(low, high, tile_face.reshape(tiles_y, tiles_x, 1), len(axes))
    return RayGrid(
        face_axes=axes.float().contiguous().to(device),
        ray_xy=xy.contiguous().to(device),
        tile_face=tile_face.int().contiguous().to(device),
        tile_rect=torch.stack([low[..., 0], high[..., 0], low[..., 1], high[..., 1]], -1)
        .reshape(-1, 4)
        .to(device),
        columns=columns.to(device),
        rows=rows.to(device),
        block_rect=_block_rects(low, high).to(device),
        depth_scale=None if depth_scale is None else depth_scale.float().to(device),
    )


def _face_ranges(low: Tensor, high: Tensor, face: Tensor, faces: int) -> tuple[Tensor, Tensor]:
    """Ranges [F, 2, W] and [F, 2, H] of columns and rows whose cells span `low` to `high`
    [H, W, 2]; running extremes make them ascend even where a face has no cells."""
    columns: list[Tensor] = []
    rows: list[Tensor] = []
    for f in range(faces):
        face_low = torch.where(face == f, low, torch.inf)
        face_high = torch.where(face == f, high, -torch.inf)
        for ranges, axis, component in ((columns, 0, 0), (rows, 1, 1)):
            least = face_low[..., component].amin(axis).flip(0).cummin(0).values.flip(0)
            most = face_high[..., component].amax(axis).cummax(0).values
            ranges.append(torch.stack([least, most]))
    return torch.stack(columns), torch.stack(rows)


def _block_rects(low: Tensor, high: Tensor) -> Tensor:
    edge = int(constants()["block_tiles"])
    pad = (0, -low.shape[1] % edge, 0, -low.shape[0] % edge)

    def greatest(corner: Tensor, component: int) -> Tensor:
        padded = torch.nn.functional.pad(corner[..., component], pad, value=-torch.inf)
        height, width = padded.shape
        blocks = padded.reshape(height // edge, edge, width // edge, edge)
        return blocks.amax((1, 3)).flatten()

    return torch.stack(
        [-greatest(-low, 0), greatest(high, 0), -greatest(-low, 1), greatest(high, 1)], -1
    ).contiguous()
