"""Adam over a scene's five tensors, with a learning rate for each and rows that can be replaced."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gart.native import library
from gart.scene import Gaussians
from gart.training.config import TrainConfig

BETA1, BETA2, EPS = 0.9, 0.999, 1e-15
"""Adam's decay rates and the 3DGS epsilon: gradients of a mean over pixels are tiny."""
RATES = ("means", "quats", "log_scales", "opacity_logits", "sh_dc", "sh_rest")
"""What has a learning rate of its own; `sh_dc` is the constant harmonic, `sh_rest` the others."""


@dataclass(frozen=True)
class Noise:
    """Exploration noise of the means (3DGS-MCMC, equation 8).

    A Gaussian moves by `amount` x sigmoid(-100 (opacity - 0.005)) x Sigma n with n standard normal:
    noise follows the shape, and opaque Gaussians stay. n is a function of the seed, the iteration
    and the Gaussian's index alone (Philox, csrc/common/philox.h): nothing to save, nothing that
    depends on the device or on how work is divided.
    """

    amount: float
    seed: int
    iteration: int


SILENCE = Noise(0.0, 0, 0)


class Adam:
    """Adam (Kingma and Ba 2015) with bias correction, in place, one row per Gaussian.

    Attributes:
        m, v: first and second moments by tensor name, shaped as the scene's tensors.
        steps: number of steps taken.
        lr: learning rate by name, as `RATES`.
    """

    def __init__(self, gaussians: Gaussians, lr: dict[str, float]) -> None:
        self.lr = lr
        self.steps = 0
        self.m = {name: torch.zeros_like(t) for name, t in gaussians.tensors().items()}
        self.v = {name: torch.zeros_like(t) for name, t in gaussians.tensors().items()}

    @torch.no_grad()
    def step(
        self, gaussians: Gaussians, grads: Gaussians, fault: Tensor, noise: Noise = SILENCE
    ) -> None:
        """Update the scene's tensors in place from `grads`, then move the means by `noise`.

        `grads` is shaped as the scene but for harmonics, of which it may have fewer: the rest stay
        as they are, which is what Adam makes of gradients that have always been zero. Where `fault`
        ([2] int32, `Journal.fault`) is set on the device nothing changes there.

        Raises:
            ValueError: a tensor of the wrong shape, dtype or device, named.
        """
        self.steps += 1
        library(gaussians.device).adam_step(
            list(gaussians.tensors().values()),
            list(grads.tensors().values()),
            list(self.m.values()),
            list(self.v.values()),
            [self.lr[name] for name in RATES],
            BETA1,
            BETA2,
            EPS,
            self.steps,
            noise.amount,
            noise.seed,
            noise.iteration,
            fault,
            torch.get_num_threads(),
        )

    def forget(self, rows: Tensor) -> None:
        """Zero the moments of `rows` (indices [R]): these Gaussians became different ones."""
        for moments in (*self.m.values(), *self.v.values()):
            moments[rows] = 0

    def keep(self, rows: Tensor) -> None:
        """Keep the moments of `rows` (indices [R]) alone, in that order."""
        for moments in (self.m, self.v):
            for name, tensor in moments.items():
                moments[name] = tensor[rows]

    def append(self, count: int) -> None:
        """Zero moments for `count` Gaussians that were appended to the scene."""
        for moments in (self.m, self.v):
            for name, tensor in moments.items():
                moments[name] = torch.cat([tensor, tensor.new_zeros(count, *tensor.shape[1:])])


def learning_rates(config: TrainConfig) -> dict[str, float]:
    """Learning rates of 3DGS for all but the means, whose rate follows the schedule."""
    return {
        "means": 0.0,
        "quats": config.lr_quats,
        "log_scales": config.lr_scales,
        "opacity_logits": config.lr_opacity,
        "sh_dc": config.lr_sh_dc,
        "sh_rest": config.lr_sh_rest,
    }
