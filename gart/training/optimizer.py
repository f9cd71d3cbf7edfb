"""Adam over a scene's five tensors, with a learning rate for each and rows that can be replaced."""

from __future__ import annotations

import torch
from torch import Tensor

from gart.scene import Gaussians
from gart.training.config import TrainConfig

BETA1, BETA2, EPS = 0.9, 0.999, 1e-15
"""Adam's decay rates and the 3DGS epsilon: gradients of a mean over pixels are tiny."""


class Adam:
    """Adam (Kingma and Ba 2015) with bias correction, in place, one row per Gaussian.

    Attributes:
        m, v: first and second moments by tensor name, shaped as the scene's tensors.
        steps: number of steps taken.
        lr: learning rate by tensor name, a number or a tensor that broadcasts over the parameter.
    """

    def __init__(self, gaussians: Gaussians, lr: dict[str, float | Tensor]) -> None:
        self.lr = lr
        self.steps = 0
        self.m = {name: torch.zeros_like(t) for name, t in gaussians.tensors().items()}
        self.v = {name: torch.zeros_like(t) for name, t in gaussians.tensors().items()}

    @torch.no_grad()
    def step(self, gaussians: Gaussians, grads: dict[str, Tensor]) -> None:
        """Update the scene's tensors in place from `grads`, shaped as they are."""
        self.steps += 1
        correction1, correction2 = 1 - BETA1**self.steps, 1 - BETA2**self.steps
        for name, parameter in gaussians.tensors().items():
            grad, m, v = grads[name], self.m[name], self.v[name]
            m.lerp_(grad, 1 - BETA1)
            v.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
            denominator = v.sqrt().div_(correction2**0.5).add_(EPS).div_(self.lr[name])
            parameter.addcdiv_(m, denominator, value=-1 / correction1)

    def forget(self, rows: Tensor) -> None:
        """Zero the moments of `rows` (indices [R]): these Gaussians became different ones."""
        for moments in (*self.m.values(), *self.v.values()):
            moments[rows] = 0

    def append(self, count: int) -> None:
        """Zero moments for `count` Gaussians that were appended to the scene."""
        for moments in (self.m, self.v):
            for name, tensor in moments.items():
                moments[name] = torch.cat([tensor, tensor.new_zeros(count, *tensor.shape[1:])])


def learning_rates(config: TrainConfig, gaussians: Gaussians) -> dict[str, float | Tensor]:
    """Learning rates of 3DGS for every tensor but the means, whose rate follows the schedule."""
    sh = torch.full((gaussians.sh.shape[1], 1), config.lr_sh_rest, device=gaussians.device)
    sh[0] = config.lr_sh_dc
    return {
        "means": 0.0,
        "quats": config.lr_quats,
        "log_scales": config.lr_scales,
        "opacity_logits": config.lr_opacity,
        "sh": sh,
    }
