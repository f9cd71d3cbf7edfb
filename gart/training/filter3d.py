"""The 3D smoothing filter of Mip-Splatting (Yu et al. 2024, section 4.1).

A Gaussian thinner than a pixel's footprint would slip between rays. The training cameras give each
Gaussian the finest interval at which any of them samples it; its covariance is widened by that
interval's share, and its opacity lowered so that its integral stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gart.cameras import Camera
from gart.scene import Gaussians

BORDER = 0.15
"""How far outside the image, in image sizes, a centre still counts as seen (as Mip-Splatting)."""
NEAREST = 0.04
"""Least depth that counts, in camera extents: a floater at a camera must not set its own size."""


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
        bounds: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._views = []
        for camera in cameras:
            if camera.lens not in bounds:
                bounds[camera.lens] = _bounds(camera)
            pixel = 1 / max(camera.fx, camera.fy)
            viewmat = camera.viewmat.to(device)
            self._views.append((viewmat, camera.is_planar, pixel, bounds[camera.lens]))

    @torch.no_grad()
    def intervals(self, means: Tensor) -> Tensor:
        """[N] smallest distance between two samples at `means` [N, 3], in scene units.

        Depth over focal length of the camera that sees it finest (distance over focal length for
        fisheye lenses). A place that no camera sees takes the largest interval of those seen, or 0.
        """
        finest = means.new_full((len(means),), torch.inf)
        for viewmat, planar, pixel, bounds in self._views:
            x, y, z = (means @ viewmat[:3, :3].T + viewmat[:3, 3]).unbind(-1)
            if planar:
                left, right, top, bottom = bounds
                depth = z
                seen = (x >= left * z) & (x <= right * z) & (y >= top * z) & (y <= bottom * z)
            else:
                depth = torch.sqrt(x * x + y * y + z * z)
                seen = z >= bounds[0] * depth
            seen &= depth > self.nearest
            finest = torch.where(seen, torch.minimum(finest, depth * pixel), finest)
        coarsest = torch.where(finest.isinf(), 0, finest).amax() if len(means) else 0
        return torch.where(finest.isinf(), coarsest, finest)


def smooth(gaussians: Gaussians, sizes: Tensor) -> Gaussians:
    """Widen the Gaussians by `sizes` ([N], standard deviations of the filter in scene units).

    s' = sqrt(s^2 + f^2) on each axis, opacity' = opacity sqrt(det Sigma / det Sigma').
    Differentiable in the Gaussians; a size of 0 changes nothing.
    """
    # softplus(2 (log f - log s)) = log(1 + f^2 / s^2), for any ratio without overflow
    widened = F.softplus(2 * (sizes.log()[:, None] - gaussians.log_scales)) / 2
    log_k = -widened.sum(-1)
    # logit(k sigmoid(l)) = log k - log(exp(-l) + 1 - k)
    rest = torch.exp(-gaussians.opacity_logits.clamp_min(-80)) - torch.expm1(log_k)
    return replace(
        gaussians,
        log_scales=gaussians.log_scales + widened,
        opacity_logits=log_k - rest.log(),
    )


def _bounds(camera: Camera) -> tuple[float, ...]:
    """Bounds of x/z and y/z for the image with its border, or the cosine of a fisheye's edge."""
    directions = camera.directions()
    if not camera.is_planar:
        cosines = directions[..., 2]
        return (float(cosines[~cosines.isnan()].min()),)
    slopes = []
    for axis in (0, 1):
        values = directions[..., axis]
        values = values[~values.isnan()]
        low, high = float(values.min()), float(values.max())
        border = BORDER * (high - low)
        slopes += [low - border, high + border]
    return tuple(slopes)
