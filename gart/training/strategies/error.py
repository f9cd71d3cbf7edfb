"""Growth where the error is, straight to the budget, in the manner of LiteGS and FastGS.

A Gaussian's score is what the errors of the pixels it blends vary by, over several views:

    sum_p w_p (e_p - mean e)^2 = sum w e^2 - (sum w e)^2 / sum w

with w_p its blending weight T alpha in pixel p and e_p that pixel's mean absolute error. A uniform
error is one of its colour, which it can mend alone; a varying one asks for more Gaussians. (LiteGS
takes the variance over fragments, FastGS counts pixels of large error.) The three sums are one
more backward pass through the hits of the image (gart/tracing/blending.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gart.scene import Gaussians
from gart.tracing import TraceSettings
from gart.tracing.blending import blending_sums
from gart.training.config import TrainConfig
from gart.training.optimizer import Adam
from gart.training.schedule import Schedule
from gart.training.strategies.strategy import Observation, append, prune, rotated

SCORED_VIEWS = 10
"""Iterations before a densification whose views are scored, each at about the cost of another
backward pass."""
IDLE_EPOCHS = 2
"""A Gaussian that so many times all views' number of scored views blended nothing of is removed."""


class ErrorGrowth:
    """Splits what has the highest scores; removes what is transparent or never blended.

    Grows by equal steps up to the budget, which it reaches half-way through the densifications;
    later ones replace what they remove.

    Attributes:
        tensors: `moments` [N, 3], sums of w e^2, w e and w since the last densification; `idle`
            [N], scored views in a row in which w was 0.
    """

    def __init__(
        self,
        config: TrainConfig,
        schedule: Schedule,
        scene: Gaussians,
        views: int,
        settings: TraceSettings,
    ) -> None:
        self._config, self._schedule, self._views = config, schedule, views
        self._settings = settings
        n, device = len(scene), scene.device
        self.tensors = {
            "moments": torch.zeros(n, 3, device=device),
            "idle": torch.zeros(n, device=device),
        }

    def wants_hits(self, iteration: int) -> bool:
        """Where views are scored: when a densification is near."""
        next_ones = range(iteration, iteration + SCORED_VIEWS)
        return any(self._schedule.densifies(number) for number in next_ones)

    def observe(self, seen: Observation) -> None:
        """Score this view, when a densification is near."""
        if not self.wants_hits(seen.iteration):
            return
        moments = view_moments(seen, self._settings)
        self.tensors["moments"] += moments
        idle = self.tensors["idle"]
        self.tensors["idle"] = torch.where(moments[:, 2] > 0, 0, idle + 1)

    @torch.no_grad()
    def densify(
        self, scene: Gaussians, optimizer: Adam, iteration: int, generator: torch.Generator
    ) -> Gaussians:
        """Remove, then split as many as are due, drawn by score."""
        idle = self.tensors["idle"]
        dead = scene.opacity_logits.sigmoid() <= self._config.dead_opacity
        dead |= idle >= IDLE_EPOCHS * self._views
        scene, kept = prune(scene, optimizer, dead)
        score = scores(self.tensors["moments"][kept])
        missing = max(self._config.budget - len(scene), 0)
        due = math.ceil(missing / self._schedule.growing_steps(iteration))
        # The largest score_i / x_i with x_i exponential: a draw by score without replacement.
        keys = score / torch.empty_like(score).exponential_(generator=generator)
        due = min(due, int((score > 0).sum()))
        rows = keys.topk(due).indices
        scene = split_longest(scene, optimizer, rows)
        idle = idle[kept]
        self.tensors = {
            "moments": torch.zeros(len(scene), 3, device=scene.device),
            "idle": torch.cat([idle, idle[rows]]),
        }
        return scene


def view_moments(seen: Observation, settings: TraceSettings) -> Tensor:
    """[N, 3] sums over a view's pixels of w e^2, w e and w, for each Gaussian."""
    with torch.no_grad():
        photograph = seen.photograph
        difference = seen.rendering.over(seen.background) - photograph.over(seen.background)
        error = difference.abs().mean(2)
        weights = torch.stack([error.square(), error, torch.ones_like(error)], 2)
        if photograph.mask.numel():
            weights *= photograph.mask[..., None]
    return blending_sums(seen.traced, photograph.camera, weights, settings, seen.hits)


def scores(moments: Tensor) -> Tensor:
    """[N] weighted squared deviation of the error, of moments [N, 3]."""
    squares, sums, weights = moments.unbind(1)
    mean_part = sums.square() / weights.clamp_min(torch.finfo(weights.dtype).tiny)
    return (squares - mean_part).clamp_min(0)


def split_longest(scene: Gaussians, optimizer: Adam, rows: Tensor) -> Gaussians:
    """The scene with each of `rows` replaced by two, side by side along its longest axis.

    At +-s/2 with that axis' scale sqrt(3)/2 s and opacity 1/sqrt(3) of the original: together they
    have its mean, its covariance and its integral.
    """
    scales = scene.log_scales[rows].exp()
    longest = scales.argmax(1, keepdim=True)
    length = scales.gather(1, longest)
    offset = rotated(scene.quats[rows], torch.zeros_like(scales).scatter_(1, longest, length / 2))
    shrinking = torch.zeros_like(scales).scatter_(1, longest, math.log(3) / 2 - math.log(2))
    opacity = scene.opacity_logits[rows].sigmoid() / math.sqrt(3)
    scene.log_scales[rows] += shrinking
    scene.opacity_logits[rows] = torch.logit(opacity)
    other = scene.map(lambda t: t[rows])
    other.means -= offset
    scene.means[rows] += offset
    optimizer.forget(rows)
    return append(scene, optimizer, other)
