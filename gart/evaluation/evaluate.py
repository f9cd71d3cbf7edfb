"""Measuring a scene on held-out views."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from gart.capture import View
from gart.errors import GartError
from gart.evaluation.exposure import fit_exposure
from gart.evaluation.lpips import Lpips, Net, WeightsMissingError
from gart.evaluation.protocol import LPIPS_NETS, METRICS, find_protocol, parse_metrics
from gart.evaluation.views import (
    Settings,
    is_distorted,
    photograph,
    rasterized_camera,
    render_image,
)
from gart.io.images import quantise
from gart.scene import Gaussians

UNDISTORTED = "undistorted, as tilegs renders pinhole images"

Report = Callable[[int, int, dict[str, Any]], None]
"""Called after each image with: images done, images in all, and that image's record."""
Pictures = Callable[[dict[str, Any], torch.Tensor, torch.Tensor, torch.Tensor | None], None]
"""Called after each image with: its record, the rendering and the photograph, both [H, W, 3] uint8
as they were compared, and the [H, W] bool mask of pixels that count, None when all do."""


@torch.no_grad()
def evaluate(
    gaussians: Gaussians,
    views: Sequence[View],
    *,
    mode: str = "rt",
    metrics: str | Iterable[str] = METRICS,
    protocol: str = "3dgs",
    background: tuple[float, float, float] = (0.0, 0.0, 0.0),
    settings: Settings | None = None,
    undistorted: bool = False,
    exposure: bool = False,
    report: Report = lambda done, total, record: None,
    pictures: Pictures | None = None,
) -> dict[str, Any]:
    """Render every view and compare it with its photograph, on the Gaussians' device.

    Args:
        gaussians: the scene.
        views: held-out photographs; pixels outside a view's mask do not count.
        mode: "rt", or "tilegs", for which distorted photographs are undistorted first.
        metrics: some of psnr, ssim, lpips; a list or a comma-separated string.
        protocol: "3dgs" or "nerfbaselines" (`gart.evaluation.protocol`).
        background: RGB behind the scene, and behind photographs with alpha.
        settings: the renderer's settings.
        undistorted: also with "rt", compare pinhole images with undistorted photographs, so that
            the numbers of both modes belong to the same photographs.
        exposure: fit the colours of every rendering to its photograph first (`fit_exposure`).
        report: called after every image.
        pictures: called after every image with what was compared.

    Returns:
        What eval.json holds: `mode`, `protocol` (all its choices), `photographs` (as taken or
        undistorted), `exposure`, `background`, counts `gaussians` and `images`, `seconds` in all
        and `render_seconds`, `mean` over the images, `unavailable` (metric -> why its value is
        null), the `lpips_weights` files, and `per_image` records.

    Raises:
        UsageError: an unknown mode, metric or protocol.
        GartError: no views; tilegs or `undistorted` with a fisheye; images too small for a metric.
    """
    rules, names = find_protocol(protocol), parse_metrics(metrics)
    if not views:
        raise GartError("there is no view to evaluate; the capture's split left none held out")
    start, render_seconds = time.perf_counter(), 0.0
    networks, unavailable = lpips_networks(gaussians.device) if "lpips" in names else ({}, {})
    if rules.lpips_net not in networks and "lpips" in names:
        unavailable["lpips"] = unavailable[f"lpips_{rules.lpips_net}"]
    if rules.lpips_3dgs and "lpips_vgg" in unavailable:
        unavailable["lpips_3dgs"] = unavailable["lpips_vgg"]
    pinhole = undistorted or mode == "tilegs"
    records: list[dict[str, Any]] = []
    for view in views:
        began = time.perf_counter()
        camera = rasterized_camera(view.camera) if undistorted else view.camera
        image = render_image(gaussians, camera, mode, background, settings)
        if image.is_cuda:
            torch.cuda.synchronize(image.device)
        render_seconds += time.perf_counter() - began
        photo, mask = photograph(view, "tilegs" if pinhole else mode, background)
        if photo.dtype != torch.uint8:
            # On the CPU: a GPU's reciprocal in place of a division can miss the 8-bit value.
            photo = quantise(photo, rules.rounding)
        if mask is not None and not mask.any():
            raise GartError(f"the mask of {view.name} leaves no pixel to evaluate")
        photo = photo.to(image.device)
        mask = None if mask is None else mask.to(image.device)
        if exposure:
            image = fit_exposure(image, photo, mask)
        image = quantise(image, rules.rounding)
        records.append({"name": view.name, **rules.measure(image, photo, mask, names, networks)})
        if pictures is not None:
            pictures(records[-1], image, photo, mask)
        report(len(records), len(views), records[-1])
    distorted = pinhole and any(is_distorted(view.camera) for view in views)
    return {
        "mode": mode,
        "protocol": rules.describe(),
        "photographs": UNDISTORTED if distorted else "as taken",
        "exposure": exposure,
        "background": list(background),
        "gaussians": len(gaussians),
        "images": len(views),
        "seconds": time.perf_counter() - start,
        "render_seconds": render_seconds,
        "mean": {key: _mean([r[key] for r in records]) for key in records[0] if key != "name"},
        "unavailable": unavailable,
        "lpips_weights": {net: str(network.source) for net, network in networks.items()},
        "per_image": records,
    }


def lpips_networks(device: torch.device) -> tuple[dict[Net, Lpips], dict[str, str]]:
    """The LPIPS networks that have weights on this machine, and why others are absent."""
    networks: dict[Net, Lpips] = {}
    unavailable = {}
    for net in LPIPS_NETS:
        try:
            networks[net] = Lpips(net, device)
        except WeightsMissingError as error:
            unavailable[f"lpips_{net}"] = str(error)
    return networks, unavailable


def _mean(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
