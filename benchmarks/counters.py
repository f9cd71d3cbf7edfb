"""Hardware counters of single passes, kernel by kernel (Nsight Compute).

    python benchmarks/counters.py ROOM.npz [--camera 0] [--sh center] [--backward primitive]
    python benchmarks/counters.py ROOM.npz --passes tilegs,gsplat

Passes are the tracer's forward and backward, a frame of TileGS, and gsplat's forward of the same
frame. Starts `ncu` on itself, once for each pass, with the metrics named below alone; clocks are
left as they are, caches are flushed before every kernel, so that bytes are upper bounds. Beside
them stand the times that the limits of an H200 allow: all instructions at its full issue rate (132
multiprocessors x 4 a cycle x 1.7 GHz; the plan for the tracer counted on half of it), and all DRAM
bytes at the 3.8 TB/s that streaming reaches.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import PASSES, report_rows, short_name
from peers import gsplat_passes
from rooms import load_room

from gart.tilegs import rasterize
from gart.tracing import BACKWARD_MODES, SH_MODES, TraceSettings, trace

ISSUE_LIMIT = 132 * 4 * 1.7e9
"""Warp instructions a second."""
DRAM_LIMIT = 3.8e12
"""Bytes a second."""
WARM_UP = 3
TIME, INSTRUCTIONS = "gpu__time_duration.sum", "smsp__inst_executed.sum"
DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2 = "lts__t_bytes.sum"
PER_CYCLE = "sm__inst_executed.avg.per_cycle_active"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
REGISTERS, SHARED = "launch__registers_per_thread", "launch__shared_mem_per_block"
SUMMED = (TIME, INSTRUCTIONS, DRAM_READ, DRAM_WRITTEN, L2)
AVERAGED = (PER_CYCLE, OCCUPANCY)
"""Over a kernel's launches, weighted by time."""
LARGEST = (REGISTERS, SHARED)


def read_counters(text: str) -> dict[str, dict[str, float]]:
    """By short kernel name, every metric over all launches, and `launches`.

    Args:
        text: what `ncu --csv --page raw --print-units base` prints: messages, a line of names, a
            line of units, a line a launch.
    """
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    kernels: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines[first:]):
        if not row["ID"]:
            continue  # units
        values = {m: float(row[m].replace(",", "")) for m in (*SUMMED, *AVERAGED, *LARGEST)}
        kernel = kernels.setdefault(short_name(row["Kernel Name"]), {"launches": 0.0})
        kernel["launches"] += 1
        for metric in AVERAGED:
            kernel[metric] = kernel.get(metric, 0.0) + values[metric] * values[TIME]
        for metric in SUMMED:
            kernel[metric] = kernel.get(metric, 0.0) + values[metric]
        for metric in LARGEST:
            kernel[metric] = max(kernel.get(metric, 0.0), values[metric])
    for kernel in kernels.values():
        for metric in AVERAGED:
            kernel[metric] /= max(kernel[TIME], 1.0)
    return kernels


def table_row(name: str, kernel: str, counters: dict[str, float]) -> dict[str, Any]:
    """A kernel's counters beside the times that issue and memory allow."""
    moved = counters[DRAM_READ] + counters[DRAM_WRITTEN]
    return {
        "pass": name,
        "kernel": kernel,
        "launches": int(counters["launches"]),
        "ms": counters[TIME] / 1e6,
        "issue limit ms": counters[INSTRUCTIONS] / ISSUE_LIMIT * 1e3,
        "DRAM limit ms": moved / DRAM_LIMIT * 1e3,
        "M warp instructions": counters[INSTRUCTIONS] / 1e6,
        "instructions/cycle/SM": counters[PER_CYCLE],
        "% of peak issue": counters[PER_CYCLE] / 4 * 100,
        "DRAM read MB": counters[DRAM_READ] / 1e6,
        "DRAM written MB": counters[DRAM_WRITTEN] / 1e6,
        "L2 MB": counters[L2] / 1e6,
        "occupancy %": counters[OCCUPANCY],
        "registers": int(counters[REGISTERS]),
        "shared KB": counters[SHARED] / 1024,
    }


def run_frame(arguments: argparse.Namespace) -> None:
    """One pass between profiler start and stop, warmed up: what ncu runs."""
    scene, cameras = load_room(arguments.scene, arguments.trajectory)
    scene = scene.to("cuda")
    camera = cameras[arguments.camera]
    leaves = scene.map(lambda t: t.detach().clone().requires_grad_())
    settings = TraceSettings(sh=arguments.sh, backward=arguments.backward)
    gradient = torch.randn(camera.height, camera.width, 3, device="cuda")

    def forward() -> torch.Tensor:
        return trace(leaves, camera, settings).color

    def prepared() -> Callable[[], object]:
        """What is counted; all before it is not."""
        if arguments.frame == "tilegs":
            return lambda: rasterize(scene, camera)
        if arguments.frame == "gsplat":
            render = gsplat_passes(scene, [camera])["gsplat"][0]
            return lambda: render(0)
        if arguments.frame == "forward":
            return forward
        image = forward()
        tensors = list(leaves.tensors().values())
        return lambda: torch.autograd.grad(image, tensors, gradient)

    for _ in range(WARM_UP):
        prepared()()
    run = prepared()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def main() -> None:
    """Count, and print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("scene", help="room .npz, or splat .ply")
    parser.add_argument("--trajectory", help="cameras of a .ply (nerfbaselines-v1 JSON)")
    parser.add_argument("--camera", type=int, default=0)
    parser.add_argument("--sh", choices=SH_MODES, default="center")
    parser.add_argument("--backward", choices=BACKWARD_MODES, default="primitive")
    parser.add_argument("--json", type=Path, help="write all counters there too")
    parser.add_argument("--passes", type=lambda text: text.split(","), default=list(PASSES))
    parser.add_argument("--frame", choices=(*PASSES, "tilegs", "gsplat"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.frame:
        run_frame(arguments)
        return
    ncu = shutil.which("ncu")
    if ncu is None or not torch.cuda.is_available():
        raise SystemExit(
            "counters.py needs a GPU that PyTorch sees and Nsight Compute's `ncu` on the PATH; "
            "run it on a GPU host"
        )
    counters = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.passes:
            log = Path(folder) / f"{name}.csv"
            options = ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
            options += ["--clock-control", "none", "--profile-from-start", "off"]
            options += ["--metrics", ",".join((*SUMMED, *AVERAGED, *LARGEST))]
            command = [ncu, *options, sys.executable, *sys.argv, "--frame", name]
            done = subprocess.run(command, check=False)
            text = log.read_text() if log.exists() else ""
            counters[name] = read_counters(text)
            if done.returncode or not counters[name]:
                raise SystemExit(
                    f"ncu counted nothing (exit code {done.returncode}): {text[-2000:]}"
                )
    rows = [
        table_row(name, kernel, values)
        for name, kernels in counters.items()
        for kernel, values in sorted(kernels.items(), key=lambda item: -item[1][TIME])
    ]
    report_rows(rows, "cuda", arguments.json)


if __name__ == "__main__":
    main()
