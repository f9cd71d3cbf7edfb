"""Differentiable ray tracing of a whole image (3DGART, arXiv 2608.17298; docs/tracer.md)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gart import stages
from gart.cameras import Camera
from gart.native import library
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.tracing.ray_grid import RayGrid, ray_grid
from gart.tracing.settings import TraceSettings


def trace(gaussians: Gaussians, camera: Camera, settings: TraceSettings | None = None) -> Rendering:
    """Trace every pixel's ray through the scene, in exact order along each ray.

    Args:
        gaussians: the scene, float32; gradients flow to all five tensors. Gaussians with non-finite
            parameters are never hit (opacity logits of +inf are fully opaque).
        camera: any lens model; its pose is not differentiated.
        settings: defaults to `TraceSettings()`.

    Returns:
        Rendering on the scene's device: colour without background, opacity, expected depth.

    Raises:
        ValueError: a tensor of the wrong shape, dtype or device, named.
    """
    settings = settings or TraceSettings()
    grid = ray_grid(camera, gaussians.device)
    c2w = camera.c2w.to(gaussians.device, torch.float32).contiguous()
    scene = gaussians.tensors().values()
    keep_hits = torch.is_grad_enabled() and any(t.requires_grad for t in scene)
    color, opacity, blended = _Trace.apply(grid, c2w, settings, keep_hits, *scene)
    # Where nothing was hit both are 0; the clamp only keeps 0 / 0 out of the gradients.
    depth = blended / opacity.clamp_min(settings.alpha_min / 2)
    if grid.depth_scale is not None:
        depth = depth * grid.depth_scale
    return Rendering(color, opacity, depth)


class _Forward(NamedTuple):
    """What csrc/*/trace_forward returns."""

    color: Tensor
    opacity: Tensor
    blended_depth: Tensor
    stats: Tensor
    state: tuple[Tensor, ...]


def _scene_arguments(tensors: tuple[Tensor, ...]) -> list[Tensor]:
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
        stages.count("LT buffer bytes", lt_bytes)
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
        ctx.save_for_backward(*scene, *result.state)
        ctx.set_materialize_grads(False)  # depth and opacity often have none
        return result.color, result.opacity, result.blended_depth

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        scene, state = _scene_arguments(saved[:5]), list(saved[5:])
        grid, settings = ctx.grid, ctx.settings
        with ctx.recorder or nullcontext(), stages.stage("backward"):
            gradients = library(scene[0].device).trace_backward(
                *scene,
                ctx.c2w,
                grid.native(),
                state,
                *(scene[0].new_empty(0) if g is None else g.contiguous() for g in grads),
                settings.alpha_min,
                settings.alpha_max,
                settings.transmittance_min,
                settings.near,
                settings.sh == "ray",
                settings.backward,
                torch.get_num_threads(),
            )
        return (None, None, None, None, *gradients)


def hit_order(
    gaussians: Gaussians, camera: Camera, settings: TraceSettings | None = None
) -> tuple[Tensor, Tensor, int]:
    """The hits every pixel blended, front to back; for tests and inspection.

    Returns:
        offsets [H*W+1] int64 and gaussians [offsets[-1]] int32: pixel p (row-major) blended
        `gaussians[offsets[p]:offsets[p + 1]]`; and how many pixels needed the exact pass.
    """
    settings = settings or TraceSettings()
    grid = ray_grid(camera, gaussians.device)
    scene = _scene_arguments(tuple(gaussians.tensors().values()))
    c2w = camera.c2w.to(gaussians.device, torch.float32).contiguous()
    with stages.Stages():  # asks the native pass for its counts
        result = _forward(grid, c2w, settings, scene, keep_hits=True)
    native = library(gaussians.device)
    offsets, ids = native.trace_order(c2w, grid.native(), list(result.state), len(gaussians))
    return offsets, ids, int(result.stats[-2])
