"""Times TileGS and gsplat's rasterizer side by side, and compares their images.

    python benchmarks/tilegs.py ROOM.npz... [--sizes 1297x840,1920x1080,3840x2160] [--json FILE]

A room's cameras are scaled to each size. Of both rasterizers: what the GPU does in each stage
(torch.profiler, medians of several runs), wall time from Python between two synchronizations, and
CUDA events around the same call (medians); all are means over the cameras. Of the images: the
largest and the mean difference of colours, PSNR and SSIM of one against the other. Then TileGS
with other numbers of bins, with Packed-GW, and without repair, which must show an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from measuring import kernel_times, report_rows, timed
from peers import gsplat_passes
from rooms import load_room
from torch import Tensor

from gart.cameras import Camera
from gart.evaluation import psnr, ssim
from gart.scene import Gaussians
from gart.stages import Stages
from gart.tilegs import RasterSettings, rasterization

WARM_UP = 5
PROFILES = 7
"""Repetitions under the profiler."""
STAGES = {
    "raster": ("raster_kernel", "rasterize_to_pixels"),
    "sort": ("bin_kernel", "sort_long_kernel", "RadixSort", "SegmentedSort"),
    "intersect": ("place_kernel", "emit_kernel", "intersect_", "DeviceScan"),
    "project": ("project_kernel", "projection_", "spherical_harmonics"),
}
"""Stage -> what the names of its kernels hold; TileGS's bins and repair are its sort."""
VARIANTS = {
    "default": {},
    "bins=16": {"bins": 16},
    "bins=32": {"bins": 32},
    "bins=128": {"bins": 128},
    "packed": {"packed": True},
    "no repair": {"repair": False},
    "no repair bins=16": {"repair": False, "bins": 16},
}
Render = Callable[[int], Tensor]


def resized(camera: Camera, width: int, height: int) -> Camera:
    """The same pose and horizontal field of view, principal point at the centre."""
    factor = width / camera.width
    return replace(
        camera,
        fx=camera.fx * factor,
        fy=camera.fy * factor,
        cx=width / 2,
        cy=height / 2,
        width=width,
        height=height,
    )


def tilegs_renderer(scene: Gaussians, cameras: list[Camera], settings: RasterSettings) -> Render:
    """Camera number -> image [1, H, W, 3], from activated parameters on the GPU as gsplat's."""
    parameters = (
        scene.means,
        torch.nn.functional.normalize(scene.quats, dim=-1),
        scene.log_scales.exp(),
        scene.opacity_logits.sigmoid(),
        scene.sh,
    )
    viewmats = torch.stack([camera.viewmat for camera in cameras]).to(scene.device)
    Ks = torch.stack([camera.K for camera in cameras]).to(scene.device)
    width, height = cameras[0].width, cameras[0].height

    def render(camera: int) -> Tensor:
        one = slice(camera, camera + 1)
        views = (viewmats[one], Ks[one], width, height)
        return rasterization(*parameters, *views, settings=settings)[0]

    return render


def stage_of(kernel: str) -> str:
    """The stage a kernel belongs to, or "other"."""
    for stage, parts in STAGES.items():
        if any(part in kernel for part in parts):
            return stage
    return "other"


def measure(render: Render, cameras: int, repetitions: int) -> dict[str, float]:
    """Milliseconds a frame: each stage, their sum ("kernels"), "wall" and "events"."""
    device = render(0).device
    walls, events = [], []
    for camera in range(cameras):
        times = [timed(partial(render, camera), device) for _ in range(WARM_UP + repetitions)]
        walls.append(median(wall for _, wall, _ in times[WARM_UP:]))
        events.append(median(event for _, _, event in times[WARM_UP:]))
    runs: list[dict[str, float]] = []
    for _ in range(PROFILES):
        stages = dict.fromkeys([*STAGES, "other"], 0.0)
        for kernel, ms in kernel_times(lambda: [render(c) for c in range(cameras)]).items():
            stages[stage_of(kernel)] += ms / cameras
        runs.append(stages)
    found = {stage: median(run[stage] for run in runs) for stage in runs[0]}
    found["kernels"] = median(sum(run.values()) for run in runs)
    return {**found, "wall": fmean(walls), "events": fmean(events)}


def compare(image: Render, reference: Render, cameras: int) -> dict[str, float]:
    """How far two rasterizers' images are apart, at worst over the cameras."""
    pairs = [(image(c)[0], reference(c)[0]) for c in range(cameras)]
    return {
        "max |d|": max(float((a - b).abs().max()) for a, b in pairs),
        "mean |d|": max(float((a - b).abs().double().mean()) for a, b in pairs),
        "PSNR": min(psnr(a, b) for a, b in pairs),
        "1 - SSIM": max(1 - ssim(a, b) for a, b in pairs),
    }


def counts(render: Render, cameras: int) -> dict[str, float]:
    """TileGS's own stage times and counts, means over the cameras; tests and bytes a pixel."""
    with Stages() as stages:
        for camera in range(cameras):
            render(camera)
    found = {name: fmean(values) for name, values in stages.counts.items()}
    found["tests a pixel"] = found["tests"] / found["pixels"]
    return found | {f"{name} ms": fmean(values) for name, values in stages.ms.items()}


@torch.no_grad()
def main() -> None:
    """Measure every room named on the command line, at every size."""

    def words(text: str) -> list[str]:
        return text.split(",")

    def sizes(text: str) -> list[tuple[int, int]]:
        return [(int(w), int(h)) for w, h in (size.split("x") for size in words(text))]

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("rooms", nargs="+", help="room .npz, or splat .ply")
    parser.add_argument("--trajectory", help="cameras of a .ply (nerfbaselines-v1 JSON)")
    parser.add_argument("--sizes", type=sizes, default=[(1297, 840), (1920, 1080), (3840, 2160)])
    parser.add_argument("--variants", type=words, default=VARIANTS, help="comma-separated")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write everything measured there")
    arguments = parser.parse_args()
    variants = {name: VARIANTS[name] for name in arguments.variants}
    rows: list[dict[str, Any]] = []
    details: list[dict[str, Any]] = []
    for path in arguments.rooms:
        scene, original = load_room(path, arguments.trajectory)
        scene = scene.to("cuda")
        for width, height in arguments.sizes:
            cameras = [resized(camera, width, height) for camera in original]
            where = {"room": Path(path).stem, "size": f"{width}x{height}"}
            reference, base = None, {}
            if "gsplat" in (passes := gsplat_passes(scene, cameras)):
                reference = passes["gsplat"][0]
                base = measure(reference, len(cameras), arguments.repetitions)
                rows.append({**where, "what": "gsplat", **base})
                print(rows[-1], flush=True)
            for name, options in variants.items():
                settings = RasterSettings(**options)  # type: ignore[arg-type]
                render = tilegs_renderer(scene, cameras, settings)
                found = measure(render, len(cameras), arguments.repetitions)
                row: dict[str, Any] = {**where, "what": f"tilegs {name}", **found}
                if reference is not None:
                    for key in ("raster", "kernels", "wall"):
                        row[f"{key} x"] = base[key] / found[key]
                    row |= compare(render, reference, len(cameras))
                rows.append(row)
                details.append(
                    {**row, "settings": asdict(settings), "counts": counts(render, len(cameras))}
                )
                print(details[-1], flush=True)
            del reference, passes
    report_rows(rows, "cuda", arguments.json, details=details)


if __name__ == "__main__":
    main()
