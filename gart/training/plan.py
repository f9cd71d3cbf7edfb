"""What a training run will take in memory, and which budget fits, before it starts."""

from __future__ import annotations

import torch

from gart.capture import Capture
from gart.errors import UsageError
from gart.forecast import Load, Plan, Tracing, Training
from gart.memory import MARGIN, format_size, free_memory
from gart.training.config import TrainConfig

SLICE_RAYS = 262_144
"""Rays that the tree's backward pass takes at a time."""


def training_size(capture: Capture, config: TrainConfig, device: torch.device | str) -> Training:
    """What decides how much memory a run takes on `device`."""
    largest = max((view.camera for view in capture.train), key=lambda c: c.width * c.height)
    on_gpu = torch.device(device).type == "cuda"
    tracing = Tracing(
        gaussians=config.budget,
        coefficients=(config.sh_degree + 1) ** 2,
        width=largest.width,
        height=largest.height,
        faces=6 if any(not view.camera.is_planar for view in capture.train) else 1,
        on_gpu=on_gpu,
        sh=config.sh,
        backward=config.backward,
        lt_layout=config.lt_layout,
    )
    # Ray grids (gart/tracing/ray_grid.py): a position on a face, and a depth scale if it has 6.
    lenses = {view.camera.lens: view.camera for view in capture.train}.values()
    beside = sum(c.width * c.height * (8 if c.is_planar else 12) for c in lenses)
    if config.refines:
        beside += _refinement(config.budget, largest.width * largest.height, config)
    photographs = sum(
        view.image.numel() + (0 if view.mask is None else view.mask.numel())
        for view in capture.train
    )
    if on_gpu:  # a CPU trains from the photographs that are loaded already
        beside += photographs
    if config.coarse_until and not config.refines:
        beside += photographs // 4
    if config.average_from:
        beside += 4 * (11 + 3 * tracing.coefficients) * config.budget
    return Training(tracing, beside)


def _refinement(gaussians: int, pixels: int, config: TrainConfig) -> int:
    """Bytes of refining iterations, counted beside those of the tile tracer, which rests meanwhile.

    The tree and its sums; hits of 4 B with a quarter to spare and, in a backward pass's slice, 32 B
    (docs/bvh.md); rays and their gradients, and what autograd keeps of the camera's mathematics.
    """
    hits = Load().hits
    rays = 600 if config.refine_intrinsics else 300
    slice_ = min(pixels, SLICE_RAYS)
    return int((276 + 240) * gaussians + (5 * hits + rays) * pixels + 32 * hits * slice_)


def plan_training(capture: Capture, config: TrainConfig, device: torch.device | str) -> Plan:
    """Forecast of a run at its budget.

    Raises:
        UsageError: it does not fit in what is free, or in `config.memory_limit`.
    """
    training, free = training_size(capture, config, device), free_memory(device)
    plan = Plan.of(training.needed, training.tracing.blocks, free, config.memory_limit)
    if plan.fits:
        return plan
    on_gpu = training.tracing.on_gpu
    there = f"{'the GPU' if on_gpu else 'this machine'} has {format_size(plan.available)} free"
    if config.memory_limit and config.memory_limit < MARGIN * free:
        there = f"memory_limit allows {format_size(plan.available)}"
    largest = training.largest_budget(plan.usable)
    if largest == 0:
        t = training.tracing
        raise UsageError(
            f"photographs of up to {t.width} x {t.height} pixels need about "
            f"{format_size(plan.needed)} with a budget of {config.budget:,}, and {there}; not even "
            "a few Gaussians fit: train on smaller photographs with --downscale"
        )
    raise UsageError(
        f"budget {config.budget:,} needs about {format_size(plan.needed)} and {there}; the largest "
        f"that fits is {largest:,}: pass --budget {largest} or smaller photographs with --downscale"
    )
