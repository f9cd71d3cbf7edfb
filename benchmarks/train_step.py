"""Times training iterations at a fixed number of Gaussians: wall time, and every kernel's share.

    python benchmarks/train_step.py ROOM.npz|CAPTURE [--gaussians 1000000] [--steps 50]

A room gives its own Gaussians and renderings of them as photographs; a capture (a scene name or
folder) gives its photographs, with Gaussians along random rays of them. Wall time is that of
`--steps` iterations between two synchronizations, as `gart train` runs them; kernels are summed by
torch.profiler over as many others. On the CPU: wall time and stages alone.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measuring import kernel_times, machine, markdown_table, timed, write_json
from rooms import load_room

from gart.capture import Capture, View
from gart.datasets import load
from gart.scene import Gaussians
from gart.stages import Stages
from gart.tracing import TraceSettings, trace
from gart.training import TrainConfig, Trainer, load_config
from gart.training.checkpoint import State

WARM_UP = 10
LATE = 10_000
"""Iteration whose schedule the measured ones follow: all harmonics, and the means still moving."""


def room_capture(scene: Gaussians, path: str, cameras: list[Any], device: str) -> Capture:
    """Photographs of a room: its own renderings over black."""
    on_device, views = scene.to(device), []
    for number, camera in enumerate(cameras):
        color = trace(on_device, camera, TraceSettings()).color.clamp(0, 1)
        image = (255 * color).round().to(torch.uint8).cpu()
        views.append(View(f"{number}.png", camera, image))
    colors = torch.zeros(len(scene), 3, dtype=torch.uint8)
    return Capture(Path(path).stem, views, [], scene.means, colors)


def start(trainer: Trainer, scene: Gaussians | None) -> None:
    """Take the trainer to iteration `LATE`, with the Gaussians of `scene` where there are any."""
    state = trainer.state()
    tensors = dict(state.tensors)
    if scene is not None:
        tensors |= {name: t.clone() for name, t in scene.tensors().items()}
    values = {**state.values, "iteration": LATE, "adam_steps": LATE}
    trainer.load_state(State(tensors, values))


def measure(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Milliseconds an iteration: wall, the kernels' sum and each kernel's; on the CPU: stages."""
    device = trainer.device

    def iterations() -> None:
        deque(trainer.advance() for _ in range(steps))

    for _ in range(WARM_UP):
        trainer.advance()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    _, wall, events = timed(iterations, device)
    found: dict[str, Any] = {"wall": wall / steps, "events": events / steps}
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
        times = {name: ms / steps for name, ms in kernel_times(iterations).items()}
        found["kernels"] = sum(times.values())
        found["by kernel"] = dict(sorted(times.items(), key=lambda item: -item[1]))
        found["host"] = host_ms(trainer, steps)
    else:
        with Stages() as stages:
            iterations()
        found["by stage"] = {name: sum(ms) / steps for name, ms in stages.ms.items()}
    trainer.measured(wait=True)
    return found


def host_ms(trainer: Trainer, steps: int) -> float:
    """Milliseconds from the call of an iteration to its return, the GPU idle before it."""
    total = 0.0
    for _ in range(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        trainer.advance()
        total += time.perf_counter() - began
    return total / steps * 1e3


def main() -> None:
    """Measure the scene named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("scene", help="room .npz, or what gart train takes")
    parser.add_argument("--gaussians", type=int, default=1_000_000, help="of a capture")
    parser.add_argument("--downscale", type=int, default=1, help="of a capture")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--set", action="append", default=[], help="training setting: sh=linear")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write everything measured there")
    arguments = parser.parse_args()
    config: TrainConfig = load_config("default", arguments.set)
    scene = None
    if Path(arguments.scene).suffix == ".npz":
        scene, cameras = load_room(arguments.scene)
        capture = room_capture(scene, arguments.scene, cameras, arguments.device)
        count = len(scene)
    else:
        capture = load(arguments.scene, downscale=arguments.downscale)
        none = torch.zeros(0, 3)
        capture = replace(capture, points=none, point_colors=none.to(torch.uint8))
        count = arguments.gaussians
    # Neither densification nor new filter sizes between these iterations.
    fixed: dict[str, Any] = {
        "budget": count,
        "init_random": count,
        "densify_until": 0,
        "filter_every": 10**9,
    }
    if scene is not None:
        fixed["sh_degree"] = scene.sh_degree
    trainer = Trainer(capture, replace(config, **fixed), arguments.device)
    start(trainer, scene)
    found = measure(trainer, arguments.steps)
    size = capture.train[0].camera
    where = {
        "scene": capture.name,
        "Gaussians": len(trainer.gaussians),
        "pixels": f"{size.width}x{size.height}",
    }
    row: dict[str, Any] = {**where, "wall ms": found["wall"]}
    if "kernels" in found:
        row |= {"kernels ms": found["kernels"], "wall / kernels": found["wall"] / found["kernels"]}
        row |= {"host ms": found["host"], "peak MB": found["peak_bytes"] / 1e6}
    print(markdown_table([row]))
    parts = found.get("by kernel") or found["by stage"]
    total = sum(parts.values())
    print()
    print(
        markdown_table(
            [{"part": name, "ms": ms, "share": f"{ms / total:.1%}"} for name, ms in parts.items()]
        )
    )
    if arguments.json:
        write_json(arguments.json, {**machine(arguments.device), **where, "measured": found})


if __name__ == "__main__":
    main()
