"""Adaptive density control of 3DGS (Kerbl et al. 2023, section 5.2), up to a budget.

Where the rendering pulls hard at means there is too little or too large geometry: small Gaussians
are cloned, large ones split. 3DGS measures the pull on means projected to the image. A ray tracer
has none, so as 3DGRT (Moenne-Loccoz et al. 2024) the gradient of the mean itself is taken, times
depth over focal length, which is what a step in the image is in the scene, times half of the
image's width for the unit of 3DGS's threshold.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.scene import Gaussians
from gart.training.config import TrainConfig
from gart.training.optimizer import Adam
from gart.training.schedule import Schedule
from gart.training.strategies.strategy import Observation, append, prune, rotated

SPLIT_SIZE, PRUNE_SIZE = 0.01, 0.1
"""Scale in camera extents above which a Gaussian is split instead of cloned, and (once opacities
have been reset) removed."""
SHRINKING = 1.6
"""A split Gaussian's two halves are this many times smaller."""
RESET_OPACITY = 0.01
"""Opacities are lowered to this at a reset, so that what is not needed stays low and is removed."""


class Adc:
    """Clones, splits and removes by thresholds; stops growing at the budget.

    When more Gaussians exceed the threshold than the budget has room for, those with the largest
    gradients grow. What is removed makes room first.

    Attributes:
        tensors: `gradient` [N], sum over the views that had a gradient of its norm in the image, in
            half image widths; `views` [N], how many those were.
    """

    def __init__(
        self, config: TrainConfig, schedule: Schedule, scene: Gaussians, extent: float
    ) -> None:
        self._config, self._schedule, self._extent = config, schedule, extent
        self._reset(scene)

    def wants_hits(self, iteration: int) -> bool:
        """Never."""
        return False

    @torch.no_grad()
    def observe(self, seen: Observation) -> None:
        """Add the gradient of this view's image plane."""
        norm = seen.grads.means.norm(dim=1)
        camera = seen.photograph.camera
        half_widths = camera.width / (2 * camera.fx)
        self.tensors["gradient"].addcmul_(
            norm, camera_distance(seen.traced.means, camera), value=half_widths
        )
        self.tensors["views"].add_(norm > 0)

    @torch.no_grad()
    def densify(
        self, scene: Gaussians, optimizer: Adam, iteration: int, generator: torch.Generator
    ) -> Gaussians:
        """Remove the transparent and the huge, then clone and split; reset opacities when due."""
        gradient = self.tensors["gradient"] / self.tensors["views"].clamp_min(1)
        sizes = scene.log_scales.amax(1).exp()
        dead = scene.opacity_logits.sigmoid() < self._config.dead_opacity
        if iteration > self._schedule.reset_every:
            dead |= sizes > PRUNE_SIZE * self._extent
        scene, kept = prune(scene, optimizer, dead)
        gradient, sizes = gradient[kept], sizes[kept]
        grown = (gradient >= self._config.grad_threshold).nonzero()[:, 0]
        room = max(self._config.budget - len(scene), 0)
        if len(grown) > room:
            grown = grown[gradient[grown].topk(room).indices]
        is_large = sizes[grown] > SPLIT_SIZE * self._extent
        scene = clone(scene, optimizer, grown[~is_large])
        scene = split(scene, optimizer, grown[is_large], generator)
        if self._schedule.resets(iteration):
            scene.opacity_logits.clamp_(max=math.log(RESET_OPACITY / (1 - RESET_OPACITY)))
            optimizer.m["opacity_logits"].zero_()
            optimizer.v["opacity_logits"].zero_()
        self._reset(scene)
        return scene

    def _reset(self, scene: Gaussians) -> None:
        zeros = torch.zeros(len(scene), device=scene.device)
        self.tensors = {"gradient": zeros, "views": zeros.clone()}


def clone(scene: Gaussians, optimizer: Adam, rows: Tensor) -> Gaussians:
    """The scene with copies of `rows`. Only the originals keep their momentum: so they part."""
    return append(scene, optimizer, scene.map(lambda t: t[rows]))


def split(scene: Gaussians, optimizer: Adam, rows: Tensor, generator: torch.Generator) -> Gaussians:
    """The scene with each of `rows` replaced by two smaller ones, at places drawn from it."""
    half = scene.map(lambda t: t[rows])
    half.log_scales = half.log_scales - math.log(SHRINKING)
    halves = []
    for _ in range(2):
        drawn = torch.randn(len(rows), 3, generator=generator, device=rows.device)
        offset = rotated(half.quats, drawn * scene.log_scales[rows].exp())
        halves.append(Gaussians(**{**half.tensors(), "means": half.means + offset}))
    for name, tensor in scene.tensors().items():
        tensor[rows] = getattr(halves[0], name)
    optimizer.forget(rows)
    return append(scene, optimizer, halves[1])


def camera_distance(means: Tensor, camera: Camera) -> Tensor:
    """[N] depth of `means`, or their distance for a fisheye, whose pixels are angles; at least 0.

    The pose goes into the kernels as numbers: an upload would wait for the GPU.
    """
    x, y, z = means.unbind(1)
    if not camera.is_planar:
        cx, cy, cz = camera.center.tolist()
        return ((x - cx).square_().add_((y - cy).square_()).add_((z - cz).square_())).sqrt_()
    row = camera.viewmat[2].tolist()
    depth = (x * row[0]).add_(y, alpha=row[1]).add_(z, alpha=row[2]).add_(row[3])
    return depth.clamp_min_(0)
