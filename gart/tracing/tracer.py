"""Differentiable ray tracing of a whole image (3DGART, arXiv 2608.17298; docs/tracer.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gart import stages
from gart.cameras import Camera
from gart.memory import OutOfMemoryError, allocating, is_out_of_memory
from gart.native import library
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.tracing import boxes, strips
from gart.tracing.additions import additions
from gart.tracing.gradients import gradients
from gart.tracing.linear_color import linear_color
from gart.tracing.ray_grid import RayGrid, fits_tiles, ray_grid
from gart.tracing.settings import TraceSettings
from gart.tracing.traced import Traced
from gart.tracing.tree_images import trace_by_tree


def trace(gaussians: Gaussians, camera: Camera, settings: TraceSettings | None = None) -> Rendering:
    """Trace every pixel's ray through the scene, in exact order along each ray.

    Args:
        gaussians: the scene, float32; gradients flow to all five tensors. Gaussians with non-finite
            parameters are never hit (opacity logits of +inf are fully opaque).
        camera: any lens, shutter and aperture; its pose is not differentiated where tile lists
            serve, which they do for whatever `ray_grid.fits_tiles`. The tree traces all others.
        settings: defaults to `TraceSettings()`.

    Returns:
        Rendering on the scene's device: colour without background, opacity, expected depth.

    Raises:
        ValueError: a tensor of the wrong shape, dtype or device, named.
        OutOfMemoryError: the image does not fit in memory, not even in strips.
    """
    settings = settings or TraceSettings()
    c2w = _pose(camera)
    tensors = gaussians.tensors()
    if settings.sh == "linear":
        if camera.model != "orthographic":  # whose rays have no centre to expand around
            tensors["sh"] = linear_color(gaussians.means, gaussians.sh, c2w)
        settings = replace(settings, sh="ray")
    if settings.tracer == "bvh" or not fits_tiles(camera, gaussians.device):
        return trace_by_tree(Gaussians(**tensors), camera, settings)
    grid = ray_grid(camera, gaussians.device)
    scene = tensors.values()

    def trace_grid(rays: RayGrid, *scene: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keep_hits = torch.is_grad_enabled() and any(t.requires_grad for t in scene)
        outputs: tuple[Tensor, Tensor, Tensor] = _Trace.apply(
            rays, c2w, settings, keep_hits, *scene
        )
        return outputs

    return _rendering(grid, settings, *strips.trace(trace_grid, grid, settings, *scene))


class Differentiated(NamedTuple):
    """A rendering and its backward pass as a call: what a training loop needs of autograd.

    Attributes:
        rendering: without a graph.
        backward: gradients by the scene, and by whatever else was asked for, from those by colour
            [H, W, 3] and by opacity [H, W], None where it has none. Called at most once.
        hits: what spares `blending_sums` another trace, or None: the image was not traced in one
            piece by tile lists.
    """

    rendering: Rendering
    backward: Callable[[Tensor, Tensor | None], tuple[Gaussians, tuple[Tensor, ...]]]
    hits: Traced | None


def differentiate(gaussians: Gaussians, camera: Camera, settings: TraceSettings) -> Differentiated:
    """Trace as `trace` does, to take gradients by all five tensors, which need no autograd flags.

    Where tile lists trace the image in one piece autograd has no part in it: its bookkeeping takes
    longer than the GPU for a small scene.

    Raises:
        ValueError, OutOfMemoryError: as `trace`.
    """
    by_tiles = settings.tracer == "tiles" and settings.sh != "linear"
    if by_tiles and fits_tiles(camera, gaussians.device):
        grid, scene = ray_grid(camera, gaussians.device), gaussians.tensors().values()
        if strips.in_one_piece(grid, settings, *scene):
            try:
                return _differentiate(grid, _pose(camera), settings, _scene_arguments(scene))
            except (RuntimeError, MemoryError, OutOfMemoryError) as error:
                if not is_out_of_memory(error):
                    raise
    leaves = gaussians.map(lambda t: t.detach().requires_grad_())
    return by_autograd(trace(leaves, camera, settings), leaves)


def by_autograd(
    image: Rendering, leaves: Gaussians, others: Iterable[Tensor] = ()
) -> Differentiated:
    """A rendering with a graph, as what `differentiate` gives.

    Args:
        image: of `leaves`, whose tensors take gradients.
        others: further leaves that it depends on.
    """

    def backward(
        by_color: Tensor, by_opacity: Tensor | None
    ) -> tuple[Gaussians, tuple[Tensor, ...]]:
        outputs, by_outputs = [image.color], [by_color]
        if by_opacity is not None:
            outputs, by_outputs = [*outputs, image.opacity], [*by_outputs, by_opacity]
        found = gradients(outputs, [*leaves.tensors().values(), *others], by_outputs)
        return Gaussians(*found[:5]), found[5:]

    rendering = Rendering(image.color.detach(), image.opacity.detach(), image.depth.detach())
    return Differentiated(rendering, backward, None)


def _differentiate(
    grid: RayGrid, c2w: Tensor, settings: TraceSettings, scene: list[Tensor]
) -> Differentiated:
    result = _forward(grid, c2w, settings, scene, keep_hits=True)
    traced = Traced(grid, c2w, settings, scene, list(result.state))
    kept = _Kept(traced, _fill_boxes(traced), result.stats)

    def backward(by_color: Tensor, by_opacity: Tensor | None) -> tuple[Gaussians, tuple[()]]:
        return Gaussians(*_backward(kept, (by_color, by_opacity, None))), ()

    color, opacity, blended = result.color, result.opacity, result.blended_depth
    return Differentiated(_rendering(grid, settings, color, opacity, blended), backward, traced)


def _rendering(
    grid: RayGrid, settings: TraceSettings, color: Tensor, opacity: Tensor, blended: Tensor
) -> Rendering:
    # Where nothing was hit both are 0; the clamp only keeps 0 / 0 out of the gradients.
    depth = blended / opacity.clamp_min(settings.alpha_min / 2)
    if grid.depth_scale is not None:
        depth = depth * grid.depth_scale
    return Rendering(color, opacity, depth)


def _pose(camera: Camera) -> Tensor:
    """[3, 4] on the CPU: kernels take it by value, and an upload would wait for the GPU."""
    return camera.c2w.detach().to("cpu", torch.float32).contiguous()


class _Forward(NamedTuple):
    """What csrc/*/trace_forward returns."""

    color: Tensor
    opacity: Tensor
    blended_depth: Tensor
    stats: Tensor
    state: tuple[Tensor, ...]


class _Kept(NamedTuple):
    """What a backward pass goes by."""

    traced: Traced
    boxes: boxes.Boxes | None
    stats: Tensor


def _scene_arguments(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [t.detach().contiguous() for t in tensors]


def _forward(
    grid: RayGrid, c2w: Tensor, settings: TraceSettings, scene: list[Tensor], keep_hits: bool
) -> _Forward:
    color, opacity, depth, stats, *state = library(scene[0].device).trace_forward(
        *scene,
        c2w,
        grid.native(),
        settings.alpha_min,
        settings.alpha_max,
        settings.transmittance_min,
        settings.near,
        settings.ring_size,
        settings.sh == "ray",
        keep_hits,
        stages.active() is not None,
        torch.get_num_threads(),
    )
    if stages.active() is not None:
        project, lists, forward, records, pairs, hits, repaired, lt_bytes = stats.tolist()
        stages.add("project", project)
        stages.add("tile lists", lists)
        stages.add("forward", forward)
        stages.count("records", records)
        stages.count("pairs", pairs)
        if hits >= 0:  # CUDA counts them only where it keeps them
            stages.count("hits", hits)
        stages.count("pixels", opacity.numel())
        stages.count("repaired pixels", repaired)
        if settings.lt_layout == "hits" or settings.backward == "pixel":
            stages.count("LT buffer bytes", lt_bytes)
    strips.remember(state, grid)
    return _Forward(color, opacity, depth, stats, tuple(state))


class _Trace(torch.autograd.Function):
    """Connects the native passes to autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        grid: RayGrid,
        c2w: Tensor,
        settings: TraceSettings,
        keep_hits: bool,
        *scene: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        tensors = _scene_arguments(scene)
        result = _forward(grid, c2w, settings, tensors, keep_hits)
        ctx.grid, ctx.c2w, ctx.settings = grid, c2w, settings
        ctx.recorder = stages.active()  # PyTorch runs CUDA backward passes in a thread of its own
        ctx.stats = result.stats
        box_tensors: tuple[Tensor, ...] = ()
        if keep_hits:
            traced = Traced(grid, c2w, settings, tensors, list(result.state))
            box_tensors = _fill_boxes(traced) or ()
        ctx.box_count = len(box_tensors)
        ctx.save_for_backward(*scene, *box_tensors, *result.state)
        ctx.set_materialize_grads(False)  # depth and opacity often have none
        return result.color, result.opacity, result.blended_depth

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved, first = ctx.saved_tensors, 5 + ctx.box_count
        scene, box_tensors, state = _scene_arguments(saved[:5]), saved[5:first], saved[first:]
        traced = Traced(ctx.grid, ctx.c2w, ctx.settings, scene, list(state))
        kept = _Kept(traced, boxes.Boxes(*box_tensors) if box_tensors else None, ctx.stats)
        with ctx.recorder or nullcontext():
            return (None, None, None, None, *_backward(kept, grads))


def _fill_boxes(traced: Traced) -> boxes.Boxes | None:
    return boxes.fill(traced) if traced.settings.lt_layout == "aabb" else None


def _backward(kept: _Kept, grads: Iterable[Tensor | None]) -> Any:
    """Gradients by the five tensors, from those by colour, opacity and blended depth."""
    traced = kept.traced
    none = traced.scene[0].new_empty(0)
    outputs = [none if g is None else g.contiguous() for g in grads]
    with stages.stage("backward"):
        if kept.boxes is not None:
            found = boxes.backward(traced, kept.boxes, outputs)
        else:
            found = traced.gradients(outputs)
    if stages.active() is not None:
        _count_additions(traced, float(kept.stats[5]))
    return found


def _count_additions(traced: Traced, hits: float) -> None:
    pairs = traced.native.hit_pairs(traced.scene[0], traced.c2w, traced.grid.native(), traced.state)
    if pairs < 0:  # hits did not fit their storage and were traced again: rare, unknown here
        return
    stages.count("pairs with hits", pairs)
    on_gpu = traced.scene[0].is_cuda
    coefficients = traced.scene[4].shape[1]
    count = additions(traced.settings, coefficients, hits, pairs, on_gpu)
    stages.count("additions to memory", count)


def hit_order(
    gaussians: Gaussians, camera: Camera, settings: TraceSettings | None = None
) -> tuple[Tensor, Tensor, int]:
    """The hits every pixel blended, front to back; for tests and inspection.

    Returns:
        offsets [H*W+1] int64 and gaussians [offsets[-1]] int32: pixel p (row-major) blended
        `gaussians[offsets[p]:offsets[p + 1]]`; and how many pixels needed the exact pass.
    """
    return _hits(gaussians, camera, ray_grid(camera, gaussians.device), settings or TraceSettings())


def tile_hits(
    gaussians: Gaussians, camera: Camera, settings: TraceSettings
) -> tuple[Tensor, Tensor]:
    """`hit_order`'s offsets and Gaussians, in strips where the whole image would take too much.

    Raises:
        OutOfMemoryError: not even the smallest strip fits.
    """
    grid = ray_grid(camera, gaussians.device)
    what = f"the hits of {camera.width} x {camera.height} pixels"
    with allocating(what, "take fewer Gaussians or smaller images"):
        parts = [
            _hits(gaussians, camera, band, settings)
            for band in strips.fitting(grid, settings, *gaussians.tensors().values())
        ]
        counts = torch.cat([offsets.diff() for offsets, _, _ in parts])
        ids = torch.cat([ids for _, ids, _ in parts])
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)), ids


def _hits(
    gaussians: Gaussians, camera: Camera, grid: RayGrid, settings: TraceSettings
) -> tuple[Tensor, Tensor, int]:
    """As `hit_order`, of the pixels in `grid`."""
    scene = _scene_arguments(tuple(gaussians.tensors().values()))
    c2w = _pose(camera)
    native = library(gaussians.device)
    for _ in range(2):  # on a GPU the hits of a first frame may not fit; a second makes room
        with stages.Stages():  # asks the native pass for its counts
            result = _forward(grid, c2w, settings, scene, keep_hits=True)
        frame = (scene[0], c2w, grid.native(), list(result.state))
        if native.hit_pairs(*frame) >= 0:
            break
    offsets, ids = native.trace_order(*frame)
    return offsets, ids, int(result.stats[-2])
