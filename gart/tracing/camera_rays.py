"""The rays of a camera's pixels in the world, for `trace_rays`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gart.cameras import Camera


def camera_rays(camera: Camera, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Origins and directions of the rays through the pixel centres, whatever the lens.

    Directions of planar lenses have the length 1 along the camera's z, so that depth along them is
    z-depth; those of fisheyes have the length 1, so that it is distance.

    Returns:
        origins, directions: each [H, W, 3] float32 in the world on `device`; NaN directions where
        the lens maps no ray to the pixel.
    """
    local = _directions(camera.lens, torch.device(device))
    pose = camera.c2w.to(local.device, torch.float32)
    return pose[:, 3].expand_as(local), _rotated(local, pose[:, :3])


def _rotated(vectors: Tensor, rotation: Tensor) -> Tensor:
    # Written out: matrix products may use less than float32 on a GPU.
    x, y, z = vectors.unbind(-1)
    return torch.stack([r[0] * x + r[1] * y + r[2] * z for r in rotation.unbind(0)], -1)


@lru_cache(maxsize=64)
def _directions(lens: tuple[Any, ...], device: torch.device) -> Tensor:
    return Camera.of_lens(lens).directions().float().to(device)
