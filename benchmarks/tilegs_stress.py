"""TileGS and gsplat on scenes made to hurt: extreme depths, ties, long lists, many entries.

    python benchmarks/tilegs_stress.py [--json FILE]

One camera at the origin looks along z. A row for every scene: what TileGS counted, both images'
differences, and the wall times of a frame (medians). Splats at one depth are ordered by index in
both.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measuring import report_rows, timed
from peers import gsplat_passes
from tilegs import compare, counts, tilegs_renderer
from torch import Tensor

from gart.cameras import Camera
from gart.scene import Gaussians
from gart.tilegs import RasterSettings

WARM_UP = 3
RADIANCE = 0.28209479177387814
"""Harmonic of degree 0: 1/2 + its coefficient times this is the colour."""


def camera(width: int, height: int) -> Camera:
    """60 degrees across, at the origin, along z."""
    focal = width / 2 / math.tan(math.radians(30))
    pose = torch.eye(4)[:3]
    return Camera(pose, focal, focal, width / 2, height / 2, width, height)


def scene(
    view: Camera, depths: Tensor, pixels: float, opacity: float, span: tuple[float, float] = (0, 1)
) -> Gaussians:
    """Splats of random colours and about `pixels` standard deviation at `depths`, spread over the
    part `span` of the image's width and height.
    """
    random = torch.Generator().manual_seed(0)
    n = len(depths)
    low, high = span
    spread = low + (high - low) * torch.rand(n, 2, generator=random, dtype=torch.float64)
    x = (spread[:, 0] * view.width - view.cx) / view.fx * depths
    y = (spread[:, 1] * view.height - view.cy) / view.fy * depths
    sizes = pixels * depths / view.fx
    stretch = torch.empty(n, 3).uniform_(-0.7, 0.7, generator=random)
    return Gaussians(
        means=torch.stack([x, y, depths], -1).float(),
        quats=torch.nn.functional.normalize(torch.randn(n, 4, generator=random), dim=-1),
        log_scales=(sizes.log()[:, None] + stretch).float(),
        opacity_logits=torch.full((n,), math.log(opacity / (1 - opacity))),
        sh=(torch.rand(n, 1, 3, generator=random) - 0.5) / RADIANCE,
    )


def log_uniform(n: int, low: float, high: float) -> Tensor:
    """[n] float64 depths, as many near as far on a logarithmic scale."""
    random = torch.Generator().manual_seed(1)
    exponent = torch.rand(n, generator=random, dtype=torch.float64)
    return low * (high / low) ** exponent


def scenes() -> dict[str, Callable[[], tuple[Gaussians, Camera]]]:
    """By name, what makes a scene and its camera."""
    hd, uhd = camera(1920, 1080), camera(3840, 2160)
    shell = partial(torch.full, dtype=torch.float64)
    bimodal = torch.cat([log_uniform(250_000, 3, 3.001), log_uniform(250_000, 500, 501)])
    return {
        "sparse depths": lambda: (scene(hd, log_uniform(200_000, 0.02, 1e4), 3, 0.5), hd),
        "dense depths": lambda: (scene(hd, log_uniform(1_000_000, 3, 3.0001), 3, 0.3), hd),
        "bimodal depths": lambda: (scene(hd, bimodal, 3, 0.3), hd),
        "one depth": lambda: (scene(hd, shell((500_000,), 3.0), 3, 0.3), hd),
        "a million in a tile": lambda: (
            scene(hd, log_uniform(1_000_000, 1, 100), 0.3, 0.02, span=(0.5001, 0.5040)),
            hd,
        ),
        "many entries, 4K": lambda: (scene(uhd, log_uniform(2_000_000, 1, 100), 12, 0.05), uhd),
    }


@torch.no_grad()
def main() -> None:
    """Render every scene with both rasterizers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write everything measured there")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, make in scenes().items():
        gaussians, view = make()
        gaussians = gaussians.to("cuda")
        render = tilegs_renderer(gaussians, [view], RasterSettings())
        found = counts(render, 1)
        row: dict[str, Any] = {"scene": name, "Gaussians": len(gaussians)}
        row |= {key: int(found[key]) for key in ("entries", "segments repaired")}
        renders = {"tilegs": render}
        if "gsplat" in (passes := gsplat_passes(gaussians, [view])):
            renders["gsplat"] = passes["gsplat"][0]
            row |= compare(render, renders["gsplat"], 1)
        for what, call in renders.items():
            for _ in range(WARM_UP):
                call(0)
            walls = [
                timed(partial(call, 0), gaussians.device)[1] for _ in range(arguments.repetitions)
            ]
            row[f"{what} ms"] = median(walls)
        rows.append(row)
        print(row, flush=True)
    report_rows(rows, "cuda", arguments.json)


if __name__ == "__main__":
    main()
