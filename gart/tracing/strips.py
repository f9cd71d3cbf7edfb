"""Images too large for the memory, traced in strips: bands of whole blocks of tiles, one after the
other.

Every tile has the list that it has in the whole image, so the image is equal bit by bit. No strip
keeps its hits for the backward pass, which traces it again before it gathers its gradients: the LT
buffer of one strip lives at a time, for one more forward pass (as gradient checkpointing, Chen et
al. 2016). Gradients differ from those of the whole image in the order of summation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from gart import stages
from gart.forecast import Load, Tracing
from gart.memory import MARGIN, OutOfMemoryError, explain, free_memory, is_out_of_memory
from gart.tracing.gradients import gradients
from gart.tracing.ray_grid import RayGrid
from gart.tracing.settings import TraceSettings

Outputs = tuple[Tensor, Tensor, Tensor]
"""Colour, opacity and blended depth."""
TraceRays = Callable[..., Outputs]
"""Traces the rays of a grid through a scene, given as its five tensors; differentiable in these."""

_loads: dict[torch.device, Load] = {}
_free: dict[torch.device, int] = {}
_whole: ContextVar[bool] = ContextVar("whole", default=False)


def trace(trace_rays: TraceRays, grid: RayGrid, settings: TraceSettings, *scene: Tensor) -> Outputs:
    """`trace_rays(grid, *scene)`, in as few strips as `settings.memory_limit` or free memory allow.

    Raises:
        OutOfMemoryError: not even the smallest strip fits.
    """
    if _whole.get():
        return trace_rays(grid, *scene)
    keep_hits = torch.is_grad_enabled() and any(t.requires_grad for t in scene)
    image = image_size(grid, settings, scene)
    count = _count(image, settings.memory_limit, keep_hits, scene[0].device)
    while True:
        try:
            if count == 1:
                return trace_rays(grid, *scene)
            outputs: Outputs = _Strips.apply(trace_rays, bands(grid, image.rows(count)), *scene)
            return outputs
        except (RuntimeError, MemoryError, OutOfMemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if count == image.blocks:
                raise _too_large(image, error) from error
        count = min(4 * count, image.blocks)  # it took more than was forecast


@contextmanager
def whole_images() -> Iterator[None]:
    """Trace no strips in here: what does not fit fails. For measurements."""
    token = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(token)


def in_one_piece(grid: RayGrid, settings: TraceSettings, *scene: Tensor) -> bool:
    """Whether the image with all its hits is forecast to fit the memory."""
    image = image_size(grid, settings, scene)
    return _whole.get() or _count(image, settings.memory_limit, True, scene[0].device) == 1


def fitting(grid: RayGrid, settings: TraceSettings, *scene: Tensor) -> list[RayGrid]:
    """`grid` in as few bands as each fit the memory with all their hits."""
    image = image_size(grid, settings, scene)
    return bands(grid, image.rows(_count(image, settings.memory_limit, True, scene[0].device)))


def bands(grid: RayGrid, rows: int) -> list[RayGrid]:
    """`grid` cut into bands of `rows` pixel rows, a multiple of 64; the last may have fewer."""
    height = grid.ray_xy.shape[0]
    return [grid.band(first, min(first + rows, height)) for first in range(0, height, rows)]


def image_size(grid: RayGrid, settings: TraceSettings, scene: Sequence[Tensor]) -> Tracing:
    """What decides how much memory the image takes; its load is the most seen in earlier ones."""
    height, width = grid.ray_xy.shape[:2]
    return Tracing(
        gaussians=len(scene[0]),
        coefficients=scene[4].shape[1],
        width=width,
        height=height,
        faces=len(grid.face_axes),
        on_gpu=scene[0].is_cuda,
        sh=settings.sh,
        backward=settings.backward,
        lt_layout=settings.lt_layout,
        load=_loads.get(scene[0].device, Load()),
    )


def remember(state: Sequence[Tensor], grid: RayGrid) -> None:
    """Learn what a pixel meets from the sizes of an image's lists and hits (trace_forward's state).

    On a GPU these are what was allocated; what is in them the host does not know.
    """
    on_gpu, device = grid.ray_xy.is_cuda, grid.ray_xy.device
    listed, hits = (state[3], state[6]) if on_gpu else (state[4], state[7])
    pixels = grid.ray_xy.shape[0] * grid.ray_xy.shape[1]
    load = _loads.get(device, Load())
    _loads[device] = load.covering(listed.numel() / pixels, hits.numel() / pixels, on_gpu)


def _count(image: Tracing, limit: int | None, keep_hits: bool, device: torch.device) -> int:
    """How many strips."""
    if limit is None:
        # What is free is asked for only where it may matter: that takes longer than all else here.
        if image.needed(1, keep_hits) < _free.get(device, 0) / 4:
            return 1
        _free[device] = free_memory(device)
        limit = int(MARGIN * _free[device])
    return image.strips(limit, keep_hits)


def _too_large(image: Tracing, error: BaseException) -> OutOfMemoryError:
    if isinstance(error, OutOfMemoryError):
        return error
    rows = image.rows(image.blocks)
    what = f"tracing {image.width} x {rows} pixels of {image.gaussians:,} Gaussians"
    return OutOfMemoryError(explain(error, what, "take fewer Gaussians or smaller images"))


class _Strips(torch.autograd.Function):
    """Traces strips without keeping their hits; each is traced again for its gradients."""

    @staticmethod
    def forward(ctx: Any, trace_rays: TraceRays, strips: list[RayGrid], *scene: Tensor) -> Outputs:
        ctx.trace_rays, ctx.strips = trace_rays, strips
        ctx.recorder = stages.active()  # PyTorch runs CUDA backward passes in a thread of its own
        ctx.save_for_backward(*scene)
        ctx.set_materialize_grads(False)
        parts = [trace_rays(strip, *scene) for strip in strips]  # autograd is off in here
        color, opacity, depth = (torch.cat(part) for part in zip(*parts, strict=True))
        return color, opacity, depth

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        scene = [
            t.detach().requires_grad_(needed)
            for t, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[2:], strict=True)
        ]
        wanted = [t for t in scene if t.requires_grad]
        totals = [torch.zeros_like(t) for t in wanted]
        first = 0
        with ctx.recorder or nullcontext():
            for strip in ctx.strips:
                last = first + strip.ray_xy.shape[0]
                with torch.enable_grad():
                    outputs = ctx.trace_rays(strip, *scene)
                parts = [
                    (output, grad[first:last])
                    for output, grad in zip(outputs, grads, strict=True)
                    if grad is not None
                ]
                found = gradients(
                    [output for output, _ in parts], wanted, [grad for _, grad in parts]
                )
                del outputs, parts  # and with them this strip's hits
                for total, part in zip(totals, found, strict=True):
                    total += part
                first = last
        remaining = iter(totals)
        return (None, None, *(next(remaining) if t.requires_grad else None for t in scene))
