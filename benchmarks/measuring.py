"""Times of forward and backward passes: kernel sums, wall time from Python, CUDA events; tables."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

T = TypeVar("T")
PASSES = ("forward", "backward")
WARM_UP = 3
PROFILES = 5
"""Repetitions under the profiler."""


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, float, float]:
    """What `work` returns, its ms by perf_counter, and by CUDA events (on the CPU: the former)."""
    if device.type != "cuda":
        began = time.perf_counter()
        result = work()
        wall = (time.perf_counter() - began) * 1e3
        return result, wall, wall
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    began = time.perf_counter()
    start.record()
    result = work()
    end.record()
    torch.cuda.synchronize()
    return result, (time.perf_counter() - began) * 1e3, start.elapsed_time(end)


def kernel_times(work: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of everything the GPU does in `work`, by short kernel name."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profiler.key_averages():
        name = short_name(event.key)
        times[name] = times.get(name, 0.0) + event.self_device_time_total / 1e3
    return times


def short_name(kernel: str) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", kernel)
    name = re.sub(r"<.*|\(.*", "", name)
    return name.removeprefix("void ").split("::")[-1].strip()


def measure_passes(
    forward: Callable[[int], Tensor],
    leaves: Sequence[Tensor],
    cameras: int,
    repetitions: int = 20,
) -> dict[str, Any]:
    """Time forward and backward passes of several cameras.

    Args:
        forward: camera number to image, differentiable in `leaves`.
        leaves: what gets gradients; on one device.
        cameras: how many there are; all figures are means over them.
        repetitions: of the wall times, of which medians are taken.

    Returns:
        For "forward" and "backward": `wall` and `events` ms and, on a GPU, `kernels` ms (the median
        of `PROFILES` repetitions) and `longest`, ms by kernel of that repetition; and `peak_bytes`,
        the most memory allocated beyond what was at the start.
    """
    device = leaves[0].device
    weights: dict[torch.Size, Tensor] = {}

    def backward(image: Tensor) -> None:
        if image.shape not in weights:
            weights[image.shape] = torch.randn(image.shape, device=device)
        # Not image.backward(), which would add to the gradients of the camera before.
        torch.autograd.grad(image, list(leaves), weights[image.shape])

    walls: dict[str, list[list[float]]] = {name: [] for name in PASSES}
    events: dict[str, list[list[float]]] = {name: [] for name in PASSES}
    held = 0
    if device.type == "cuda":
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    for camera in range(cameras):
        for times in (walls, events):
            for name in PASSES:
                times[name].append([])
        for repetition in range(WARM_UP + repetitions):
            image, *ahead = timed(lambda c=camera: forward(c), device)  # type: ignore[misc]
            _, *back = timed(lambda i=image: backward(i), device)  # type: ignore[misc]
            del image
            if repetition >= WARM_UP:
                for name, (wall, event) in zip(PASSES, (ahead, back), strict=True):
                    walls[name][-1].append(wall)
                    events[name][-1].append(event)
    result: dict[str, Any] = {
        name: {
            "wall": fmean(median(times) for times in walls[name]),
            "events": fmean(median(times) for times in events[name]),
        }
        for name in PASSES
    }
    if device.type != "cuda":
        return result
    result["peak_bytes"] = torch.cuda.max_memory_allocated() - held

    def profile_passes() -> tuple[dict[str, float], dict[str, float]]:
        images: list[Tensor] = []
        ahead = kernel_times(lambda: images.extend(forward(c) for c in range(cameras)))
        return ahead, kernel_times(lambda: deque(map(backward, images)))

    profiles = zip(*(profile_passes() for _ in range(PROFILES)), strict=True)
    for name, repeated in zip(PASSES, profiles, strict=True):
        ordered = sorted(repeated, key=lambda times: sum(times.values()))
        middle = ordered[len(ordered) // 2]
        longest = sorted(middle.items(), key=lambda item: -item[1])[:10]
        result[name]["kernels"] = sum(middle.values()) / cameras
        result[name]["longest"] = {kernel: round(ms / cameras, 4) for kernel, ms in longest}
    return result


def machine(device: torch.device | str) -> dict[str, str]:
    """What a figure needs beside it: processor, driver, PyTorch, CUDA, commit of this checkout."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    found = {
        "torch": torch.__version__,
        "commit": _first_line(git),
        "processor": platform.machine(),
    }
    if torch.device(device).type == "cuda":
        driver = _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
        found |= {"processor": torch.cuda.get_device_name(device), "driver": driver}
        found["cuda"] = str(torch.version.cuda)
    return found


def _first_line(command: list[str]) -> str:
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return output.strip().split("\n")[0]


def markdown_table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a Markdown table; its columns are the keys, in order of appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row.get(name)) for name in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if value is None or value != value:  # not measured
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
    return str(value)


def write_json(path: Path, data: Any) -> None:
    """Write `data`, indented."""
    path.write_text(json.dumps(data, indent=1) + "\n")


def report_rows(
    rows: Sequence[dict[str, Any]], device: str, path: Path | None, **more: Any
) -> None:
    """Print rows as a table; with a `path`, write them with the machine and whatever else."""
    print(markdown_table(rows))
    if path:
        write_json(path, {**machine(device), "rows": rows, **more})


def write_results(path: Path, device: str, results: list[tuple[dict[str, Any], Any]]) -> None:
    """Everything measured, with the machine: of each result what it is of, and what was found."""
    found = [{**where, "measured": measured} for where, measured in results]
    write_json(path, {**machine(device), "results": found})
