"""Order of the Gaussians in memory: along a Morton curve.

Copies are appended wherever there is room, so after some densifications neighbours in space lie far
apart in memory, and the tracer, which reads a tile's Gaussians together, fetches lines of which it
needs little. Nothing else depends on the order.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 21
"""Cells per axis, as a power of two: three axes fill 63 bits."""


@torch.no_grad()
def morton_order(means: Tensor) -> Tensor:
    """Indices [N] int64 that put `means` [N, 3] in the order of a Morton (Z-order) curve.

    The grid spans the middle 98 % of each axis, so that stray Gaussians do not coarsen it; those
    outside go to its border. Equal cells keep their order.
    """
    if len(means) == 0:
        return torch.empty(0, dtype=torch.int64, device=means.device)
    ends = torch.tensor([0.01, 0.99], device=means.device)
    # A sample: torch.quantile takes at most 2^24 values, and the ends need no exactness.
    low, high = torch.quantile(means[:: 1 + len(means) // 100_000], ends, dim=0)
    cells = ((means - low) / (high - low).clamp_min(1e-30)).clamp(0, 1) * (2**BITS - 1)
    x, y, z = (_spread(axis) for axis in cells.long().unbind(1))
    return torch.argsort(x | y << 1 | z << 2, stable=True)


def _spread(values: Tensor) -> Tensor:
    """Bit i of 21 to bit 3 i."""
    for shift, mask in (
        (32, 0x1F00000000FFFF),
        (16, 0x1F0000FF0000FF),
        (8, 0x100F00F00F00F00F),
        (4, 0x10C30C30C30C30C3),
        (2, 0x1249249249249249),
    ):
        values = (values | values << shift) & mask
    return values
