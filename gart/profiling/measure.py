"""Measurements: some training steps, or some renderings, stage by stage."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch

from gart.cameras import Camera
from gart.capture import Capture
from gart.errors import GartError
from gart.evaluation import render_view
from gart.evaluation.views import Settings
from gart.profiling.memory import peak_memory, reset_peak_memory
from gart.scene import Gaussians
from gart.stages import Stages
from gart.tracing import BACKWARD_MODES
from gart.training import TrainConfig, Trainer
from gart.training.checkpoint import State

WARM_UP = 2
"""Unrecorded repetitions: the first ones fill caches and make ray grids."""

Report = Callable[[int, int, str], None]
"""Called after each repetition with: done, in all, and the column's name."""


def profile_training(
    capture: Capture,
    config: TrainConfig,
    device: torch.device | str = "cpu",
    *,
    iterations: int = 20,
    backward: Iterable[str] = BACKWARD_MODES,
    state: State | None = None,
    report: Report = lambda done, total, name: None,
) -> dict[str, Any]:
    """Profile training steps with each of the `backward` modes, all from one state.

    Args:
        capture: the scene's photographs.
        config: settings; `config.backward` is replaced by each mode in turn.
        device: where to train.
        iterations: recorded steps per mode, after `WARM_UP` others.
        backward: modes to set side by side.
        state: a checkpoint's content to start from; None starts anew.
        report: called after every step.

    Returns:
        JSON-able: `device`, `gaussians`, and `columns` by mode, each as `_summary` describes.
    """
    modes = list(backward)
    columns, gaussians = {}, 0
    for number, mode in enumerate(modes):
        trainer = Trainer(capture, replace(config, backward=mode), device)
        if state is not None:
            # The trainer works in place: each mode gets a copy of its own.
            tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
            values = {**state.values, "config": trainer.config.as_dict()}
            trainer.load_state(State(tensors, values))
        gaussians = len(trainer.gaussians)
        before, total = number * iterations, len(modes) * iterations
        columns[mode] = _record(
            trainer.step, iterations, device, partial(_report_column, report, before, total, mode)
        )
    return {"kind": "training", **_machine(device), "gaussians": gaussians, "columns": columns}


def profile_rendering(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    *,
    mode: str = "rt",
    settings: Settings | None = None,
    iterations: int = 20,
    report: Report = lambda done, total, name: None,
) -> dict[str, Any]:
    """Profile renderings of `cameras` in turn, on the Gaussians' device.

    Returns:
        As `profile_training`; the one column is named after `mode`.

    Raises:
        GartError: no camera.
    """
    if not cameras:
        raise GartError("there is no view to profile; choose a capture with photographs")
    turn = 0

    def render() -> None:
        nonlocal turn
        render_view(gaussians, cameras[turn % len(cameras)], mode, settings)
        turn += 1

    column = _record(
        render, iterations, gaussians.device, partial(_report_column, report, 0, iterations, mode)
    )
    return {
        "kind": "rendering",
        **_machine(gaussians.device),
        "gaussians": len(gaussians),
        "columns": {mode: column},
    }


def _report_column(report: Report, before: int, total: int, name: str, done: int) -> None:
    report(before + done, total, name)


def _record(
    work: Callable[[], object],
    repetitions: int,
    device: torch.device | str,
    report: Callable[[int], None],
) -> dict[str, Any]:
    for _ in range(WARM_UP):
        work()
    reset_peak_memory(device)
    total_ms = []
    with Stages() as stages:
        for i in range(repetitions):
            start = time.perf_counter()
            work()
            if torch.device(device).type == "cuda":
                torch.cuda.synchronize(device)
            total_ms.append((time.perf_counter() - start) * 1e3)
            report(i + 1)
    return _summary(stages, total_ms, peak_memory(device))


def _summary(stages: Stages, total_ms: list[float], memory: int) -> dict[str, Any]:
    """`repetitions`; `total_ms` and, by stage, `stages_ms`: means per repetition, with `other` for
    what no stage covers; `counts`: means per recorded value, with `hits per pixel`; `peak_bytes`;
    `lt_buffer_bytes`, the largest.
    """
    repetitions = len(total_ms)
    stages_ms = {name: sum(ms) / repetitions for name, ms in stages.ms.items()}
    total = fmean(total_ms)
    counts = {name: fmean(values) for name, values in stages.counts.items()}
    if counts.get("pixels") and "hits" in counts:
        counts["hits per pixel"] = counts["hits"] / counts["pixels"]
    return {
        "repetitions": repetitions,
        "total_ms": total,
        "stages_ms": {**stages_ms, "other": max(total - sum(stages_ms.values()), 0.0)},
        "counts": counts,
        "peak_bytes": memory,
        "lt_buffer_bytes": int(max(stages.counts.get("LT buffer bytes", [0]))),
    }


def _machine(device: torch.device | str) -> dict[str, Any]:
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    return {
        "device": device.type,
        "processor": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "threads": torch.get_num_threads(),
    }
