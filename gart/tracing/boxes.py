"""The papers' layout (3DGART, arXiv 2608.17298): an LT buffer with an entry for every pixel of
every Gaussian's screen box, and a backward pass that adds each parameter's gradient by itself.

The baseline that the default layout is measured against (docs/tracer.md, "The papers' layout").
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gart import stages
from gart.memory import OutOfMemoryError, format_size, free_memory
from gart.tracing.traced import Traced

_CHANNELS = {"primitive": 4, "hybrid": 1, "pixel": 0}
"""Floats an entry: colour so far and transmittance; transmittance; no buffer."""


class LTBufferError(OutOfMemoryError):
    """The LT buffer of the papers' layout does not fit the free memory.

    Attributes:
        needed: bytes that it takes.
        free: bytes that are free.
    """

    def __init__(self, needed: int, free: int, device: torch.device) -> None:
        super().__init__(
            f"lt_layout=aabb needs an LT buffer of {format_size(needed)}, {format_size(free)} are "
            f"free on {device}; use lt_layout=hits, smaller images or fewer Gaussians"
        )
        self.needed = needed
        self.free = free


class Boxes(NamedTuple):
    """What is kept for the backward pass beside `Traced`; R records, B box pixels, T tiles."""

    chain: Tensor
    """[R, 28] float32, constants of the chain rule (csrc/common/full_chain.h)."""
    box: Tensor
    """[R, 4] int32 x0, y0, x1, y1 in pixels, ends exclusive."""
    offset: Tensor
    """[R + 1] int64 prefix sum of the boxes' areas; the last is B."""
    buffer: Tensor
    """[B, 4] or [B] float32, as `_CHANNELS`; 0 where the pixel has no hit of this record."""
    total: Tensor
    """[T, 64, 4] float32 colour and transmittance at each pixel's end; empty for hybrid."""


def fill(traced: Traced) -> Boxes:
    """Make the LT buffer and fill it from the hits of `traced`.

    Raises:
        LTBufferError: it does not fit the free memory.
    """
    settings, grid = traced.settings, traced.grid
    with stages.stage("LT buffer"):
        box, chain = traced.native.box_extents(
            *traced.inputs(),
            *grid.pixel_ranges,
            settings.alpha_min,
            settings.near,
            torch.get_num_threads(),
        )
        none = chain.new_empty(0)
        channels = _CHANNELS[settings.backward]
        if channels == 0:
            return Boxes(chain, box, box.new_empty(0, dtype=torch.int64), none, none)
        x0, y0, x1, y1 = box.long().unbind(1)
        offset = torch.nn.functional.pad(((x1 - x0) * (y1 - y0)).cumsum(0), (1, 0))
        buffer = _zeros(int(offset[-1]), channels, chain.device)
        total = chain.new_empty(len(grid.tile_face), 64, 4) if channels == 4 else none
        boxes = Boxes(chain, box, offset, buffer, total)
        _write(traced, boxes, "color" if channels == 4 else "transmittance", buffer, total)
    stages.count("LT buffer bytes", 4 * buffer.numel())
    return boxes


def backward(traced: Traced, boxes: Boxes, grads: list[Tensor]) -> Any:
    """Gradients of the scene's five tensors, from those of colour, opacity and blended depth; an
    empty tensor stands for an output without gradient.

    Raises:
        LTBufferError: depth has a gradient, and the fifth channel that it takes does not fit.
    """
    depth = depth_total = boxes.chain.new_empty(0)
    if grads[2].numel() and traced.settings.backward == "primitive":
        # The papers have no depth output; its channel is written once a loss asks for it.
        depth = _zeros(len(boxes.buffer), 1, boxes.chain.device)
        depth_total = depth.new_empty(len(traced.grid.tile_face), 64)
        _write(traced, boxes, "depth", depth, depth_total)
    return traced.native.box_backward(
        *traced.inputs(),
        [*boxes, depth, depth_total],
        *grads,
        *traced.constants(),
        traced.settings.backward,
        torch.get_num_threads(),
    )


def _write(traced: Traced, boxes: Boxes, what: str, buffer: Tensor, total: Tensor) -> None:
    traced.native.box_write(
        *traced.inputs(),
        boxes.box,
        boxes.offset,
        *traced.constants(),
        what,
        buffer,
        total,
        torch.get_num_threads(),
    )


def _zeros(entries: int, channels: int, device: torch.device) -> Tensor:
    needed, free = 4 * entries * channels, free_memory(device)
    if needed > free:
        raise LTBufferError(needed, free, device)
    shape = (entries, channels) if channels > 1 else (entries,)
    try:
        return torch.zeros(shape, device=device)
    except torch.OutOfMemoryError as error:  # what is free lies in pieces
        raise LTBufferError(needed, free, device) from error
