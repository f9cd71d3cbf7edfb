"""What happens when: learning rate of the means, SH degree, densification and its growth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gart.training.config import TrainConfig

FULL_RUN = 30_000
"""Length of the run that the settings' iteration numbers are given for."""
AVERAGE_EVERY = 10
"""Iterations between two scenes of the mean: neighbours hardly differ."""


@dataclass(frozen=True)
class Schedule:
    """Iteration numbers of one run, shrunk to its length.

    Runs of 30,000 iterations and more take the settings as they are. A shorter run of n iterations
    multiplies them by n / 30,000, except that
    - two SH degrees are at least 200 iterations apart (a degree needs time to settle), yet the last
      degree starts by half of the run;
    - two densifications are at least 50 iterations apart (a moved Gaussian needs time to find its
      opacity), yet at least one fits into the run.

    Attributes:
        iterations: length of the run.
        sh_every: iterations between two SH degrees.
        coarse_until: last iteration on photographs of half their size.
        densify_from, densify_until, densify_every: densification runs after iterations i with
            from <= i < until and (i - from) divisible by every; iterations count from 1.
        reset_every: iterations between two resets of opacity (strategy adc).
        refine_from, refine_until: cameras are refined in iterations i with from <= i < until.
        average_from: first iteration whose scene is in the mean; 0 is none.
    """

    iterations: int
    sh_degree: int
    sh_every: int
    coarse_until: int
    densify_from: int
    densify_until: int
    densify_every: int
    reset_every: int
    lr_means: float
    lr_means_final: float
    lr_exposure: float
    lr_exposure_final: float
    growth: float
    refine_from: int
    refine_until: int
    average_from: int

    @classmethod
    def of(cls, config: TrainConfig) -> Schedule:
        """The schedule of a run with `config`."""
        n = config.iterations
        factor = min(1.0, n / FULL_RUN)

        def shrunk(iterations: int, least: int) -> int:
            return max(min(iterations, least), round(iterations * factor), 1)

        half = max(1, n // (2 * max(1, config.sh_degree)))
        start = shrunk(config.densify_from, min(100, max(1, n // 10)))
        return cls(
            iterations=n,
            sh_degree=config.sh_degree,
            sh_every=min(shrunk(config.sh_every, 200), half),
            coarse_until=0 if config.refines else round(config.coarse_until * factor),
            densify_from=start,
            densify_until=round(config.densify_until * factor),
            densify_every=shrunk(config.densify_every, 50),
            reset_every=shrunk(config.reset_every, 500),
            lr_means=config.lr_means,
            lr_means_final=config.lr_means_final,
            lr_exposure=config.lr_exposure,
            lr_exposure_final=config.lr_exposure_final,
            growth=config.growth,
            refine_from=round(config.refine_from * factor),
            refine_until=round(config.refine_until * factor),
            average_from=round(config.average_from * factor),
        )

    def active_sh_degree(self, iteration: int) -> int:
        """SH degree trained in `iteration` (from 1)."""
        return min(self.sh_degree, (iteration - 1) // self.sh_every)

    def means_lr(self, iteration: int) -> float:
        """Learning rate of the means in `iteration` (from 1): log-linear, in scene extents."""
        return self._falling(self.lr_means, self.lr_means_final, iteration)

    def exposure_lr(self, iteration: int) -> float:
        """Learning rate of the exposures in `iteration` (from 1): log-linear."""
        return self._falling(self.lr_exposure, self.lr_exposure_final, iteration)

    def refines(self, iteration: int) -> bool:
        """Whether cameras are refined in `iteration` (from 1), where that is on."""
        return self.refine_from <= iteration < self.refine_until

    def refinement_rate(self, iteration: int) -> float:
        """Share of the first learning rates of cameras: log-linear, to a hundredth at the end."""
        first = max(1, self.refine_from)
        return 0.01 ** ((iteration - first) / max(1, self.refine_until - 1 - first))

    def _falling(self, first: float, last: float, iteration: int) -> float:
        if last == 0 or first == 0:
            return first * (1 - (iteration - 1) / self.iterations)
        t = (iteration - 1) / max(1, self.iterations - 1)
        return math.exp((1 - t) * math.log(first) + t * math.log(last))

    def densifies(self, iteration: int) -> bool:
        """Whether densification follows `iteration` (from 1)."""
        inside = self.densify_from <= iteration < self.densify_until
        return inside and (iteration - self.densify_from) % self.densify_every == 0

    def averages(self, iteration: int) -> bool:
        """Whether the scene after `iteration` (from 1) is one of the mean."""
        since = iteration - self.average_from
        return self.average_from > 0 and since >= 0 and since % AVERAGE_EVERY == 0

    def resets(self, iteration: int) -> bool:
        """Whether the densification after `iteration` is the first since a reset was due."""
        before = max(0, iteration - self.densify_every)
        return iteration // self.reset_every > before // self.reset_every

    def growing_steps(self, iteration: int) -> int:
        """Densifications from that after `iteration` to half-way, both included; at least 1."""
        halfway = (self.densify_from + self.densify_until) // 2
        return max(1, (halfway - iteration) // self.densify_every + 1)

    def target(self, count: int, budget: int) -> int:
        """Gaussians to have after a densification, given `count` before it.

        3DGS-MCMC grows by 5 % a time. A short run densifies less often and so ends with fewer: its
        photographs have not yet shown where more would help.
        """
        return max(count, min(budget, math.ceil(count * (1 + self.growth))))
