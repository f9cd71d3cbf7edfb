"""3DGS-MCMC densification (Kheradmand et al. 2024): relocation and growth.

Gaussians are samples of a distribution. Dead ones move onto live ones, new ones are copies of live
ones, and copies that coincide take an opacity and scale that leave the rendering as it was. The
exploration noise is part of the optimiser's step (gart/training/optimizer.py).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gart.scene import Gaussians
from gart.training.config import TrainConfig
from gart.training.optimizer import Adam
from gart.training.schedule import Schedule
from gart.training.strategies.strategy import Observation

MAX_COPIES = 51
"""Most Gaussians that share one place (as the paper's code): beyond, opacities fall below 1/255."""
OPACITY_RANGE = (0.005, 1 - 1e-6)
"""What copies' opacities are clamped to, so that a copy is not born dead."""


class Mcmc:
    """Relocates and grows by opacity alone, as traced: with the 3D filter.

    A Gaussian that is much smaller than a pixel is faint whatever its own opacity. Below alpha_min
    no ray meets it, so it has no gradient, and by its own opacity it would never count as dead.

    Attributes:
        tensors: none.
    """

    def __init__(self, config: TrainConfig, schedule: Schedule) -> None:
        self._config, self._schedule = config, schedule
        self._logits: Tensor | None = None
        self.tensors: dict[str, Tensor] = {}

    def wants_hits(self, iteration: int) -> bool:
        """Never."""
        return False

    def observe(self, seen: Observation) -> None:
        """Keep the opacities that were traced, for a densification that follows."""
        self._logits = seen.traced.opacity_logits

    def densify(
        self, scene: Gaussians, optimizer: Adam, iteration: int, generator: torch.Generator
    ) -> Gaussians:
        """Relocate the dead, then grow by `growth` within the budget."""
        logits = scene.opacity_logits if self._logits is None else self._logits
        relocate(scene, optimizer, logits.sigmoid() <= self._config.dead_opacity, generator)
        self._logits = None
        target = self._schedule.target(len(scene), self._config.budget)
        return grow(scene, optimizer, target - len(scene), generator)


def split_opacity_scale(
    opacity_logits: Tensor, log_scales: Tensor, copies: Tensor
) -> tuple[Tensor, Tensor]:
    """Opacity logits [R] and log scales [R, 3] of each of `copies` ([R], >= 1) at one place.

    Equation 9 of 3DGS-MCMC: the copies together are as opaque at the centre as the original, and
    have its integral along a line through the centre. The double sum is folded by
    sum_{i=k}^{N} C(i-1, k-1) = C(N, k):
        o' = 1 - (1 - o)^(1/N),  s'/s = o / sum_{k=1}^{N} C(N, k) (-1)^(k-1) o'^k / sqrt(k)
    """
    n = copies.clamp(1, MAX_COPIES).double()[:, None]
    transmittance = F.logsigmoid(-opacity_logits.double())[:, None]  # log(1 - o), exact near o = 1
    opacity, split = -torch.expm1(transmittance), -torch.expm1(transmittance / n)
    k = torch.arange(1, MAX_COPIES + 1, device=n.device, dtype=torch.float64)
    log_binomial = (
        torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma((n - k).clamp_min(0) + 1)
    )
    terms = torch.exp(log_binomial + k * split.log()) / k.sqrt()
    signed = torch.where(k.long() % 2 == 1, terms, -terms)
    integral = torch.where(k <= n, signed, 0).sum(1, keepdim=True)
    logits = torch.logit(split.clamp(*OPACITY_RANGE))[:, 0]
    return logits.to(opacity_logits.dtype), log_scales + (opacity / integral).log().to(
        log_scales.dtype
    )


@torch.no_grad()
def relocate(
    gaussians: Gaussians, optimizer: Adam, is_dead: Tensor, generator: torch.Generator
) -> int:
    """Move Gaussians that are dead ([N] bool) onto live ones, drawn by opacity; in place.

    Returns the number moved. Nothing moves where none or all are dead.
    """
    opacity = gaussians.opacity_logits.sigmoid()
    dead, live = is_dead.nonzero()[:, 0], (~is_dead).nonzero()[:, 0]
    if len(dead) == 0 or len(live) == 0:
        return 0
    sources = live[_draw(opacity[live], len(dead), generator)]
    _share(gaussians, sources)
    for tensor in gaussians.tensors().values():
        tensor[dead] = tensor[sources]
    optimizer.forget(torch.cat([dead, sources]))
    return len(dead)


@torch.no_grad()
def grow(
    gaussians: Gaussians, optimizer: Adam, count: int, generator: torch.Generator
) -> Gaussians:
    """The scene with `count` copies of its Gaussians, drawn by opacity, appended."""
    if count <= 0:
        return gaussians
    sources = _draw(gaussians.opacity_logits.sigmoid(), count, generator)
    _share(gaussians, sources)
    optimizer.forget(sources)
    optimizer.append(count)
    return gaussians.map(lambda t: torch.cat([t, t[sources]]))


def _draw(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` indices drawn with replacement; torch.multinomial refuses more than 2^24 weights."""
    edges = weights.double().cumsum(0)
    points = torch.rand(count, generator=generator, device=weights.device, dtype=torch.float64)
    return torch.searchsorted(edges, points * edges[-1], right=True).clamp_max(len(weights) - 1)


def _share(gaussians: Gaussians, sources: Tensor) -> None:
    """Give every drawn source the opacity and scale of one of its copies, itself included."""
    unique, drawn = sources.unique(return_counts=True)
    logits, log_scales = split_opacity_scale(
        gaussians.opacity_logits[unique], gaussians.log_scales[unique], drawn + 1
    )
    gaussians.opacity_logits[unique] = logits
    gaussians.log_scales[unique] = log_scales
