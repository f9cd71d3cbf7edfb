"""Times the tree over a room's Gaussians and rays through it.

    python benchmarks/bvh.py ROOM.npz... [--sh center,ray] [--rays 1000000]

Build and refit are medians over repetitions of kernel sums (torch.profiler), wall time from Python
between two synchronizations, and CUDA events. Rays are measured as `trace_room.py` measures images:
`primary` are those of the room's cameras, beside the tile lists' own times; `incoherent` start
anywhere in the middle 90 % of the means' box and go anywhere. Their backward pass gives the
gradients of the scene, for `incoherent` of the rays too. On the CPU: wall time alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measuring import (
    PASSES,
    WARM_UP,
    kernel_times,
    markdown_table,
    measure_passes,
    timed,
    write_results,
)
from rooms import load_room
from torch import Tensor

from gart.cameras import Camera
from gart.scene import Gaussians
from gart.tracing import TRACERS, Bvh, TraceSettings, camera_rays, trace, trace_rays

TREE = ("build", "refit")


def measure_tree(scene: Gaussians, repetitions: int) -> dict[str, Any]:
    """Milliseconds of a build and a refit, and the tree's cost."""
    bvh = Bvh(scene)
    found: dict[str, Any] = {"cost": bvh.cost}
    for name, work in (("build", lambda: Bvh(scene)), ("refit", lambda: bvh.refit(scene))):
        found[name] = _measure(work, scene.device, repetitions)
    return found


def _measure(work: Callable[[], object], device: torch.device, repetitions: int) -> dict[str, Any]:
    times = [timed(work, device)[1:] for _ in range(WARM_UP + repetitions)][WARM_UP:]
    walls, events = zip(*times, strict=True)
    found = {"wall": median(walls), "events": median(events)}
    if device.type == "cuda":
        kernels = kernel_times(work)
        found["kernels"] = sum(kernels.values())
        longest = sorted(kernels.items(), key=lambda item: -item[1])[:10]
        found["longest"] = {name: round(ms, 4) for name, ms in longest}
    return found


def incoherent_rays(scene: Gaussians, count: int) -> tuple[Tensor, Tensor]:
    """Seeded rays [count, 3] from the middle 90 % of the means' box, in all directions."""
    random = torch.Generator().manual_seed(0)
    means = scene.means.cpu()
    low, high = means.quantile(0.05, 0), means.quantile(0.95, 0)
    origins = low + (high - low) * torch.rand(count, 3, generator=random)
    directions = torch.nn.functional.normalize(torch.randn(count, 3, generator=random), dim=1)
    return origins.to(scene.device), directions.to(scene.device)


def measure_primary(
    scene: Gaussians, cameras: list[Camera], settings: TraceSettings, repetitions: int
) -> dict[str, Any]:
    """Passes of whole images; by the tree without its build."""
    leaves = scene.map(lambda t: t.detach().clone().requires_grad_())
    bvh = Bvh(leaves)

    def forward(camera: int) -> Tensor:
        if settings.tracer == "tiles":
            return trace(leaves, cameras[camera], settings).color
        rays = camera_rays(cameras[camera], scene.device)
        return trace_rays(leaves, *rays, settings, bvh=bvh).color

    return measure_passes(forward, list(leaves.tensors().values()), len(cameras), repetitions)


def measure_incoherent(
    scene: Gaussians, rays: tuple[Tensor, Tensor], settings: TraceSettings, repetitions: int
) -> dict[str, Any]:
    """Passes of incoherent rays, with the rays' own gradients."""
    leaves = scene.map(lambda t: t.detach().clone().requires_grad_())
    origins, directions = (t.clone().requires_grad_() for t in rays)
    bvh = Bvh(leaves)

    def forward(_: int) -> Tensor:
        return trace_rays(leaves, origins, directions, settings, bvh=bvh).color

    inputs = [*leaves.tensors().values(), origins, directions]
    return measure_passes(forward, inputs, 1, repetitions)


def table_row(where: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What the table shows of one measurement."""
    row = dict(where)
    for name in (*TREE, *PASSES):
        for kind in ("kernels", "wall"):
            row[f"{name} {kind} ms"] = found.get(name, {}).get(kind)
    row["peak MB"] = found.get("peak_bytes", float("nan")) / 1e6
    return row


def main() -> None:
    """Measure every room named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("scenes", nargs="+", help="room .npz, or splat .ply")
    parser.add_argument("--trajectory", help="cameras of a .ply (nerfbaselines-v1 JSON)")
    parser.add_argument("--sh", type=lambda text: text.split(","), default=["center", "ray"])
    parser.add_argument("--rays", type=int, default=1_000_000, help="incoherent ones")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write everything measured there")
    arguments = parser.parse_args()
    results: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def report(where: dict[str, Any], found: dict[str, Any]) -> None:
        results.append((where, found))
        print(where, found, flush=True)

    for path in arguments.scenes:
        scene, cameras = load_room(path, arguments.trajectory)
        scene = scene.to(arguments.device)
        where = {"room": Path(path).stem, "gaussians": len(scene)}
        report({**where, "what": "tree"}, measure_tree(scene, arguments.repetitions))
        for sh, tracer in product(arguments.sh, TRACERS):
            settings = TraceSettings(sh=sh, tracer=tracer)
            found = measure_primary(scene, cameras, settings, arguments.repetitions)
            report({**where, "what": "primary", "sh": sh, "tracer": tracer}, found)
        rays = incoherent_rays(scene, arguments.rays)
        for sh in arguments.sh:
            settings = TraceSettings(sh=sh, tracer="bvh")
            found = measure_incoherent(scene, rays, settings, arguments.repetitions)
            report({**where, "what": "incoherent", "sh": sh, "tracer": "bvh"}, found)
    keys = ("room", "gaussians", "what", "sh", "tracer")
    print(markdown_table([table_row({k: w.get(k) for k in keys}, found) for w, found in results]))
    if arguments.json:
        write_results(arguments.json, arguments.device, results)


if __name__ == "__main__":
    main()
