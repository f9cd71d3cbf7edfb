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
from gart.tracing import BACKWARD_MODES, LTBufferError, whole_images
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
    lt_layouts: Iterable[str] | None = None,
    state: State | None = None,
    report: Report = lambda done, total, name: None,
) -> dict[str, Any]:
    """Profile training steps with each of the `backward` modes in each of the `lt_layouts`, all
    from one state.

    Args:
        capture: the scene's photographs.
        config: settings; `config.backward` is replaced by each mode in turn, `config.lt_layout` by
            each layout.
        device: where to train.
        iterations: recorded steps per mode, after `WARM_UP` others.
        backward: modes to set side by side.
        lt_layouts: layouts to set side by side; None takes that of `config`.
        state: a checkpoint's content to start from; None starts anew.
        report: called after every step.

    Returns:
        JSON-able: `device`, `gaussians`, and `columns` by mode ("pixel", "pixel aabb"), each as
        `_summary` describes and with `densification_ms`, the `densify` stage of an iteration that
        densifies. A column whose buffer of layout "aabb" does not fit the free memory holds
        `repetitions` and `needs_bytes`, what it takes, alone.
    """
    layouts = [config.lt_layout] if lt_layouts is None else list(lt_layouts)
    modes = [(layout, mode) for layout in layouts for mode in backward]
    columns: dict[str, dict[str, Any]] = {}
    gaussians = 0
    for number, (layout, mode) in enumerate(modes):
        name = mode if layout == "hits" else f"{mode} {layout}"
        trainer = Trainer(capture, replace(config, backward=mode, lt_layout=layout), device)
        if state is not None:
            # The trainer works in place: each mode gets a copy of its own.
            tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
            values = {**state.values, "config": trainer.config.as_dict()}
            trainer.load_state(State(tensors, values))
        gaussians = len(trainer.gaussians)
        before, total = number * iterations, len(modes) * iterations
        column = partial(
            _record,
            trainer.step,
            iterations,
            device,
            partial(_report_column, report, before, total, name),
        )
        columns[name] = column() if layout == "hits" else _whole(column, iterations)
        if "needs_bytes" not in columns[name]:
            columns[name]["densification_ms"] = _densification_ms(trainer)
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


def _whole(column: Callable[[], dict[str, Any]], repetitions: int) -> dict[str, Any]:
    """The column without strips, which are nothing to set beside whole images; or, where an LT
    buffer does not fit, how large it is.
    """
    try:
        with whole_images():
            return column()
    except LTBufferError as error:
        return {"repetitions": repetitions, "needs_bytes": error.needed}


def _densification_ms(trainer: Trainer) -> float | None:
    """Measured apart, since a few iterations may contain none; None where the run has none."""
    if trainer.schedule.densify_from >= trainer.schedule.densify_until:
        return None
    trainer.step(densify=True)  # the first one warms up
    with Stages() as stages:
        trainer.step(densify=True)
    return sum(stages.ms["densify"])


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
    what no stage covers; `counts`: means per recorded value, with `hits per pixel` (`tests per
    pixel` of the rasterizer); `peak_bytes`; `lt_buffer_bytes`, the largest.
    """
    repetitions = len(total_ms)
    stages_ms = {name: sum(ms) / repetitions for name, ms in stages.ms.items()}
    total = fmean(total_ms)
    counts = {name: fmean(values) for name, values in stages.counts.items()}
    for name in ("hits", "tests"):
        if counts.get("pixels") and name in counts:
            counts[f"{name} per pixel"] = counts[name] / counts["pixels"]
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
