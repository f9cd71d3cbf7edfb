"""The 3D smoothing filter of Mip-Splatting (Yu et al. 2024, section 4.1).

A Gaussian thinner than a pixel's footprint would slip between rays. The training cameras give each
Gaussian the finest interval at which any of them samples it; its covariance is widened by that
interval's share, and its opacity lowered so that its integral stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.native import library
from gart.scene import Gaussians

BORDER = 0.15
"""How far outside the image, in image sizes, a centre still counts as seen (as Mip-Splatting)."""
NEAREST = 0.04
"""Least depth that counts, in camera extents: a floater at a camera must not set its own size."""

FAR_AWAY = 1e5
"""Depths of the least one: from so far, a pinhole camera stands for a parallel view."""


class SamplingFilter:
    """Finest sampling interval of any place, from the training cameras.

    Args:
        cameras: the training cameras.
        nearest: depths below it do not count, in scene units.
        device: where the Gaussians are.
    """

    def __init__(
        self, cameras: Iterable[Camera], nearest: float, device: torch.device | str
    ) -> None:
        self.nearest = nearest
        bounds: dict[tuple[object, ...], list[float]] = {}
        rows = []
        for camera in cameras:
            if camera.model == "orthographic":
                camera = _far_away(camera, FAR_AWAY * nearest)
            if camera.lens not in bounds:
                bounds[camera.lens] = _bounds(camera)
            pixel = 1 / max(camera.fx, camera.fy)
            more = torch.tensor([*bounds[camera.lens], pixel, float(camera.is_planar), 0.0, 0.0])
            rows.append(torch.cat([camera.viewmat[:3].flatten(), more]))
        # As csrc/common/sampling_interval.h has them.
        self._samplers = torch.stack(rows).to(device)

    @torch.no_grad()
    def intervals(self, means: Tensor) -> Tensor:
        """[N] smallest distance between two samples at `means` [N, 3], in scene units.

        Depth over focal length of the camera that sees it finest (distance over focal length for
        fisheyes and panoramas, the pixels' own for orthographic lenses). A place that no camera
        sees takes the largest interval of those seen, or 0.
        """
        finest = library(means.device).sampling_intervals(
            means.contiguous(), self._samplers, self.nearest, torch.get_num_threads()
        )
        coarsest = torch.where(finest.isinf(), 0, finest).amax() if len(means) else 0
        return torch.where(finest.isinf(), coarsest, finest)


@torch.no_grad()
def smooth(gaussians: Gaussians, sizes: Tensor) -> Gaussians:
    """Widen the Gaussians by `sizes` ([N], standard deviations of the filter in scene units).

    s' = sqrt(s^2 + f^2) on each axis, opacity' = opacity sqrt(det Sigma / det Sigma'); a size of 0
    changes nothing. Means, quaternions and harmonics are those of the argument. Not differentiable:
    `smooth_backward` has the gradients.
    """
    log_scales, opacity_logits = library(gaussians.device).smooth(
        gaussians.log_scales, gaussians.opacity_logits, sizes, torch.get_num_threads()
    )
    return replace(gaussians, log_scales=log_scales, opacity_logits=opacity_logits)


@torch.no_grad()
def smooth_backward(
    gaussians: Gaussians,
    sizes: Tensor,
    grads: Gaussians,
    fault: Tensor,
    iteration: int,
    *,
    opacity_reg: float = 0.0,
    scale_reg: float = 0.0,
) -> None:
    """Turn gradients by the smoothed scene into those by `gaussians`, in place.

    Added are those of the regularisation, `opacity_reg` times the mean opacity and `scale_reg`
    times the mean scale of the scene without the filter (3DGS-MCMC).

    Args:
        gaussians, sizes: what `smooth` was given.
        grads: shaped as the scene but for harmonics, of which it may have fewer.
        fault: [2] int32, `Journal.fault`: names the tensors whose gradients are not finite.
        iteration: under way, from 1.
        opacity_reg, scale_reg: weights.
    """
    count = max(len(gaussians), 1)
    library(gaussians.device).smooth_backward(
        gaussians.log_scales,
        gaussians.opacity_logits,
        sizes,
        list(grads.tensors().values()),
        opacity_reg / count,
        scale_reg / (3 * count),
        fault,
        iteration,
        torch.get_num_threads(),
    )


def _far_away(camera: Camera, distance: float) -> Camera:
    """The pinhole camera, `distance` behind an orthographic one, that sees the same."""
    c2w = torch.cat([camera.c2w[:, :3], (camera.center - distance * camera.c2w[:, 2])[:, None]], 1)
    fx, fy = camera.fx * distance, camera.fy * distance
    return replace(camera, c2w=c2w, model="pinhole", fx=fx, fy=fy)


def _bounds(camera: Camera) -> list[float]:
    """Four bounds of x/z and y/z for the image with its border, or a fisheye's edge's cosine."""
    directions = camera.directions()
    if not camera.is_planar:
        cosines = directions[..., 2]
        # A pixel beyond the outermost centres: what is straight behind a panorama is seen.
        pixel = 1 / max(camera.fx, camera.fy)
        return [float(cosines[~cosines.isnan()].min()) - pixel, 0.0, 0.0, 0.0]
    slopes: list[float] = []
    for axis in (0, 1):
        values = directions[..., axis]
        values = values[~values.isnan()]
        low, high = float(values.min()), float(values.max())
        border = BORDER * (high - low)
        slopes += [low - border, high + border]
    return slopes
