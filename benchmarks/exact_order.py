"""Is every pixel's order exact? Against the exact pass, and against brute force in float64.

    python benchmarks/exact_order.py ROOM.npz... [--json FILE]
    python benchmarks/exact_order.py SCENE.ply --trajectory CAMERAS.json

For every camera: (1) all pixels as the ring orders them against the exact pass of every pixel
(`ring_size=0`): lists that differ, and whether rounding explains it; and pixels, of all, with a hit
that lies beyond the next by more than rounding. (2) Some pixels, half of them where ellipsoids
across the camera's plane are seen, against every Gaussian tried in float64: pairs of hits in the
wrong order, missing and extra hits, colour and opacity. Ellipsoids across the plane are added
(`--across`). Ends with exit code 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import report_rows
from orders import ALPHA, STOP, Judge, Orders, PixelHits, differing_pixels, traced_orders
from rooms import across_camera_plane, add_ellipsoids_across, load_room
from torch import Tensor

from gart.cameras import Camera
from gart.reference import find_hits, trace_rays
from gart.scene import Gaussians
from gart.tracing import TraceSettings, trace

RAYS_AT_ONCE = 128
WRONG = ("lists wrong", "misordered pixels", "misordered pairs", "missing", "extra")
"""Counts that are 0 where the order is exact."""


def check_all_pixels(judge: Judge, ring: Orders, exact: Orders) -> dict[str, int]:
    """Every pixel's list `ring` against `exact`, and in float64 against itself."""
    pixels = differing_pixels(ring, exact).nonzero()[:, 0]
    reasons = judge.explain(ring, exact, pixels)
    return {
        "pixels": len(ring.counts),
        "hits": len(ring.gaussians),
        "lists differ": len(pixels),
        **{f"lists {why}": reasons.count(why) for why in ("tie", "threshold", "wrong")},
        "misordered pixels": int(judge.misordered_pixels(ring).sum()),
    }


def choose_pixels(orders: Orders, across: Tensor, count: int, seed: int = 0) -> tuple[Tensor, int]:
    """`count` pixels, half of them such that blend one of the Gaussians `across` [N] bool.

    Returns:
        The pixels, seeded and without repetition, and how many blend one.
    """
    sees = torch.zeros(len(orders.counts), dtype=torch.bool)
    sees[orders.pixels()[across[orders.gaussians.long()]].cpu()] = True
    shuffled = torch.randperm(len(sees), generator=torch.Generator().manual_seed(seed))
    chosen = shuffled[sees[shuffled]][: count // 2]
    rest = shuffled[torch.isin(shuffled, chosen, invert=True)][: count - len(chosen)]
    pixels = torch.cat([chosen, rest])
    return pixels.to(orders.offsets.device), int(sees[pixels].sum())


def check_pixel(hits: PixelHits, candidates: PixelHits, settings: TraceSettings) -> dict[str, int]:
    """One pixel's blended `hits` against all `candidates`, the faintest just below alpha_min."""
    misordered, tied = hits.inversions()
    seen = np.isin(candidates.gaussian, hits.gaussian)
    doubtful = candidates.at_threshold(settings)
    is_hit = (candidates.alpha >= settings.alpha_min) & (candidates.tau >= settings.near)
    transmittances = hits.transmittances(settings) / settings.transmittance_min
    before_end = np.ones_like(seen)
    if transmittances[-1] < 1 + STOP:  # the ray stopped; what lies behind need not be listed
        before_end = candidates.tau < hits.tau[-1] - np.maximum(candidates.band, hits.band[-1])
    invented = np.isin(hits.gaussian, candidates.gaussian, invert=True)
    return {
        "misordered pairs": misordered,
        "tied pairs": tied,
        "missing": int((is_hit & ~seen & ~doubtful & before_end).sum()),
        "extra": int((invented | (transmittances[:-1] < 1 - STOP)).sum()),
        "at threshold": int((doubtful & before_end & (seen != is_hit)).sum()),
    }


def image_errors(
    judge: Judge, pixels: Tensor, used: Tensor, image: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Largest difference of colour and opacity in each of `pixels` from the float64 oracle's.

    `used` holds, ascending so that ties keep their order, every Gaussian that they can hit.
    """
    settings = judge.settings
    expected = trace_rays(
        judge.scene.map(lambda t: t[used]),
        judge.origins[pixels],
        judge.directions[pixels],
        alpha_min=settings.alpha_min,
        alpha_max=settings.alpha_max,
        transmittance_min=settings.transmittance_min,
        near=settings.near,
        sh="center" if settings.sh == "center" else "ray",
        center=judge.camera.center.to(pixels.device),
    )
    return {
        "color": (image["color"][pixels] - expected.color).abs().amax(-1),
        "opacity": (image["opacity"][pixels] - expected.opacity).abs(),
    }


def check_some_pixels(
    judge: Judge, orders: Orders, pixels: Tensor, image: dict[str, Tensor]
) -> dict[str, float]:
    """`pixels` against every Gaussian of the scene in float64.

    Args:
        judge: of the scene and camera.
        orders: what all pixels blended.
        pixels: [n] int64.
        image: color [H * W, 3] and opacity [H * W] of the same rendering.
    """
    settings = judge.settings
    counts: list[dict[str, int]] = []
    errors: dict[str, list[Tensor]] = {"color": [], "opacity": []}
    for part in pixels.split(RAYS_AT_ONCE):
        found = find_hits(
            judge.scene,
            judge.origins[part],
            judge.directions[part],
            alpha_min=settings.alpha_min * (1 - ALPHA),
            near=settings.near * (1 - ALPHA),
        )
        starts = torch.arange(len(part) + 1, device=part.device)
        candidates = Orders(torch.searchsorted(found.ray, starts), found.gaussian)
        listed, tried = judge.hits(orders.select(part), part), judge.hits(candidates, part)
        counts += [check_pixel(*pair, settings) for pair in zip(listed, tried, strict=True)]
        for name, error in image_errors(judge, part, found.gaussian.unique(), image).items():
            errors[name].append(error.cpu())
    row: dict[str, float] = {name: sum(c[name] for c in counts) for name in counts[0]}
    clear = torch.tensor([not (c["tied pairs"] or c["at threshold"]) for c in counts])
    for name, parts in errors.items():
        error = torch.cat(parts)
        row[f"{name} error"] = float(error.max())
        row[f"{name} error, no tie"] = float(error[clear].max()) if clear.any() else 0.0
    return row


@torch.no_grad()
def check_camera(
    scene: Gaussians, camera: Camera, settings: TraceSettings, samples: int
) -> dict[str, Any]:
    """Both checks for one camera: a row of the table."""
    began = time.perf_counter()
    judge = Judge(scene, camera, settings)
    ring, repaired = traced_orders(scene, camera, settings)
    exact, _ = traced_orders(scene, camera, replace(settings, ring_size=0))
    row: dict[str, Any] = check_all_pixels(judge, ring, exact)
    row["repaired"] = repaired
    across = across_camera_plane(scene, camera, settings.alpha_min)
    pixels, seeing = choose_pixels(ring, across, min(samples, len(ring.counts)))
    row |= {"sampled": len(pixels), "of these across": seeing}
    traced = trace(scene, camera, settings)
    image = {"color": traced.color.flatten(0, 1), "opacity": traced.opacity.flatten()}
    row |= check_some_pixels(judge, ring, pixels, image)
    row["seconds"] = time.perf_counter() - began
    return row


def main() -> None:
    """Check every scene named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("scenes", nargs="+", help="room .npz, or splat .ply")
    parser.add_argument("--trajectory", help="cameras of a .ply (nerfbaselines-v1 JSON)")
    parser.add_argument("--samples", type=int, default=2000, help="pixels tried by brute force")
    parser.add_argument("--across", type=int, default=16, help="ellipsoids added across each plane")
    parser.add_argument("--sh", choices=("ray", "center"), default="ray")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write all rows there too")
    arguments = parser.parse_args()
    rows = []
    for path in arguments.scenes:
        scene, cameras = load_room(path, arguments.trajectory)
        scene = add_ellipsoids_across(scene, cameras, arguments.across).to(arguments.device)
        settings = TraceSettings(sh=arguments.sh)
        for number, camera in enumerate(cameras):
            row = check_camera(scene, camera, settings, arguments.samples)
            rows.append({"scene": Path(path).stem, "camera": number, **row})
            print(json.dumps(rows[-1]), flush=True)
    report_rows(rows, arguments.device, arguments.json)
    faults = {name: sum(row[name] for row in rows) for name in WRONG}
    if any(faults.values()):
        raise SystemExit(f"the order is not exact: {faults}")
    print(f"exact: 0 of {sum(row['pixels'] for row in rows)} pixels misordered")


if __name__ == "__main__":
    main()
