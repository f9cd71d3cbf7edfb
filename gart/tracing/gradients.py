"""Gradients through a rendering whose own gradients are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], by_outputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """`torch.autograd.grad` without its first call's second: it imports SymPy to compare the
    shapes of gradients that are given to it, and does not where it starts from a scalar.

    Args:
        outputs: tensors that are part of a graph.
        inputs: leaves of it that all `outputs` together depend on.
        by_outputs: a gradient for each of `outputs`, of its shape, dtype and device.

    Returns:
        The gradient by each of `inputs`.

    Raises:
        ValueError: a gradient of another shape or dtype than its output, named.
    """
    for output, gradient in zip(outputs, by_outputs, strict=True):
        if gradient.shape != output.shape or gradient.dtype != output.dtype:
            raise ValueError(
                f"a gradient is {gradient.dtype} {tuple(gradient.shape)} and its output "
                f"{output.dtype} {tuple(output.shape)}; expected the same"
            )
    with torch.enable_grad():  # off in a backward pass, from which `strips` calls
        start: Tensor = _Start.apply(tuple(by_outputs), *outputs)
    return torch.autograd.grad(start, tuple(inputs))


class _Start(torch.autograd.Function):
    """A scalar on the CPU whose gradients by the outputs are the ones given."""

    @staticmethod
    def forward(ctx: Any, by_outputs: tuple[Tensor, ...], *outputs: Tensor) -> Tensor:
        ctx.by_outputs = by_outputs
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.by_outputs)
