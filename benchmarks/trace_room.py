"""Times the tracer, and gsplat where it is installed, on the cameras of rooms.

    python benchmarks/trace_room.py ROOM.npz... [--sh center,ray] [--backward primitive]

Reported are means over a room's cameras, from parameters to image and from the image's gradient to
the parameters': the sum of everything the GPU does (torch.profiler), wall time from Python between
two synchronizations, and CUDA events around the same calls (medians). On the CPU: wall time alone.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from measuring import PASSES, markdown_table, measure_passes, write_results
from peers import gsplat_passes
from rooms import load_room
from torch import Tensor

from gart.cameras import Camera
from gart.errors import GartError
from gart.scene import Gaussians
from gart.stages import Stages
from gart.tracing import BACKWARD_MODES, LT_LAYOUTS, SH_MODES, TraceSettings, trace


def measure_gart(
    scene: Gaussians, cameras: list[Camera], settings: TraceSettings, repetitions: int
) -> dict[str, Any]:
    """Times, peak memory, the largest LT buffer, and the counts of a frame."""
    leaves = scene.map(lambda t: t.detach().clone().requires_grad_())

    def forward(camera: int) -> Tensor:
        return trace(leaves, cameras[camera], settings).color

    found = measure_passes(forward, list(leaves.tensors().values()), len(cameras), repetitions)
    with Stages() as stages:
        for camera in range(len(cameras)):
            forward(camera).sum().backward()
    counts = {name: fmean(values) for name, values in stages.counts.items()}
    largest = int(max(stages.counts.get("LT buffer bytes", [0])))
    return {**found, "lt_bytes": largest, "counts": counts}


def table_row(where: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What the table shows of one measurement."""
    row = dict(where)
    for kind in ("kernels", "wall", "events"):
        for name in PASSES:
            row[f"{name} {kind} ms"] = found[name].get(kind)
    row["LT MB"] = found.get("lt_bytes", float("nan")) / 1e6
    row["peak MB"] = found.get("peak_bytes", float("nan")) / 1e6
    return row


def main() -> None:
    """Measure every room named on the command line."""

    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("scenes", nargs="+", help="room .npz, or splat .ply")
    parser.add_argument("--trajectory", help="cameras of a .ply (nerfbaselines-v1 JSON)")
    parser.add_argument("--sh", type=words, default=SH_MODES, help="comma-separated")
    parser.add_argument("--backward", type=words, default=BACKWARD_MODES, help="comma-separated")
    parser.add_argument("--layouts", type=words, default=LT_LAYOUTS, help="comma-separated")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write everything measured there")
    arguments = parser.parse_args()
    results = []

    def report(where: dict[str, Any], found: dict[str, Any]) -> None:
        results.append((where, found))
        print(where, {name: found[name] for name in PASSES}, found.get("counts", ""), flush=True)

    for path in arguments.scenes:
        scene, cameras = load_room(path, arguments.trajectory)
        scene, room = scene.to(arguments.device), {"room": Path(path).stem}
        if arguments.device == "cuda":
            for name, (forward, leaves) in gsplat_passes(scene, cameras).items():
                found = measure_passes(forward, leaves, len(cameras), arguments.repetitions)
                report({**room, "what": name}, found)
        for sh, backward, layout in product(arguments.sh, arguments.backward, arguments.layouts):
            chosen = {"sh": sh, "backward": backward, "lt_layout": layout}
            try:
                settings = TraceSettings(**chosen)
                found = measure_gart(scene, cameras, settings, arguments.repetitions)
            except (ValueError, GartError) as error:
                print(f"not measured: {chosen}: {error}", flush=True)
                continue
            report({**room, "what": "gart", **chosen}, found)
    keys = ("room", "what", "sh", "backward", "lt_layout")
    print(markdown_table([table_row({k: w.get(k) for k in keys}, found) for w, found in results]))
    if arguments.json:
        write_results(arguments.json, arguments.device, results)


if __name__ == "__main__":
    main()
