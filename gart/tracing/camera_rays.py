"""The rays of a camera's pixels in the world, for `trace_rays`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gart.cameras import Camera


def camera_rays(
    camera: Camera, device: torch.device | str = "cpu", sample: int | None = None
) -> tuple[Tensor, Tensor]:
    """Origins and directions of the rays through the pixel centres, whatever the lens.

    Directions of planar and orthographic lenses have the length 1 along the camera's z, so that
    depth along them is z-depth; those of fisheyes and panoramas have the length 1, so that it is
    distance. Rays from an aperture count depth along the ray through the centre. Differentiable in
    the pose, and in the end of a rolling shutter's motion.

    Args:
        camera: any lens, shutter and aperture.
        device: of the rays.
        sample: of an aperture: whose rays alone, from 0; None: all, along a first axis.

    Returns:
        origins, directions: each [H, W, 3] float32 in the world on `device`, with an aperture and
        no `sample` [S, H, W, 3]; NaN directions where the lens maps no ray to the pixel.
    """
    if camera.aperture is not None and sample is None:
        each = [camera_rays(camera, device, s) for s in range(camera.aperture.samples)]
        origins, directions = (torch.stack(rays) for rays in zip(*each, strict=True))
        return origins, directions
    return world_rays(camera, *_local(camera.lens, torch.device(device)), sample or 0)


def world_rays(
    camera: Camera, origins: Tensor | None, directions: Tensor, sample: int = 0
) -> tuple[Tensor, Tensor]:
    """Rays [H, W, 3] of `camera`'s pixels, from those in camera space through its lens's centre, in
    their type and on their device; `origins` None: 0.
    """
    if camera.aperture is not None:
        start = torch.zeros_like(directions) if origins is None else origins
        facing = not (camera.is_planar or camera.model == "orthographic")
        origins, directions = camera.aperture.bend(start, directions, sample, facing=facing)
    pose = camera.c2w
    if camera.shutter is not None:
        pose = camera.shutter.poses(pose, camera.height)[:, None]  # of each row
    pose = pose.to(directions)
    center = pose[..., 3].expand_as(directions)
    start = center if origins is None else center + _rotated(origins, pose)
    # NaN times a gradient of 0 would be NaN: where the lens has no ray, the pose must have none.
    unseen = directions.isnan()
    turned = _rotated(directions.masked_fill(unseen, 0.0), pose)
    return start, turned.masked_fill(unseen, torch.nan)


def _rotated(vectors: Tensor, pose: Tensor) -> Tensor:
    # Written out: matrix products may use less than float32 on a GPU.
    x, y, z = vectors.unbind(-1)
    rows = pose[..., :3].unbind(-2)
    return torch.stack([r[..., 0] * x + r[..., 1] * y + r[..., 2] * z for r in rows], -1)


@lru_cache(maxsize=64)
def _local(lens: tuple[Any, ...], device: torch.device) -> tuple[Tensor | None, Tensor]:
    """Origins, None for 0, and directions in camera space."""
    camera = Camera.of_lens(lens)
    directions = camera.directions().float().to(device)
    return None if camera.is_central else camera.origins().float().to(device), directions
