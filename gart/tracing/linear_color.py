"""sh=linear: a Gaussian's colour as a linear function of the ray's direction (docs/tracer.md).

To first order around the direction of its mean, harmonics of any degree are harmonics of degree 1:
a Gaussian's own, for one camera. So this stands before the tracer, which then works with 4
coefficients a Gaussian.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from gart import stages
from gart.native import library


def linear_color(means: Tensor, sh: Tensor, c2w: Tensor) -> Tensor:
    """Harmonics of degree 1 that agree with `sh` to first order at the direction of each mean.

    With d0 the unit direction from the camera to the mean and Y_k the harmonics as homogeneous
    polynomials, their colour along the unit direction d, before it is clamped at 0, is

        1/2 + sum_k sh_k (Y_k(d0) + grad Y_k(d0) . (d - d0)).

    Args:
        means: [N, 3] float32.
        sh: [N, K, 3] float32; returned as it is where K <= 4, of which this is the identity.
        c2w: [3, 4] float32 camera pose on the CPU, not differentiated.

    Returns:
        [N, 4, 3] float32, differentiable in means and sh; NaN for a mean at the camera.

    Raises:
        ValueError: a tensor of the wrong shape, dtype or device, named.
    """
    if sh.ndim != 3 or sh.shape[1] not in (9, 16):  # the tracer rejects what is no scene
        return sh
    return _LinearColor.apply(means, sh, c2w)


class _LinearColor(torch.autograd.Function):
    """Connects the native passes to autograd."""

    @staticmethod
    def forward(ctx: Any, means: Tensor, sh: Tensor, c2w: Tensor) -> Tensor:
        ctx.recorder = stages.active()  # PyTorch runs CUDA backward passes in a thread of its own
        ctx.save_for_backward(means, sh)
        ctx.c2w = c2w
        arguments = [means.detach().contiguous(), sh.detach().contiguous(), c2w]
        with stages.stage("linear colour"):
            return library(means.device).linear_color(*arguments, torch.get_num_threads())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        means, sh = ctx.saved_tensors
        arguments = [means.detach().contiguous(), sh.detach().contiguous(), ctx.c2w]
        with ctx.recorder or nullcontext(), stages.stage("linear colour, backward"):
            found = library(means.device).linear_color_backward(
                *arguments, grad.contiguous(), torch.get_num_threads()
            )
        return (*found, None)
