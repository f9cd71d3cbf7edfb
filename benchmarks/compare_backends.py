"""The CUDA backend against the CPU's: images and gradients of one scene, several lenses.

    python benchmarks/compare_backends.py ROOM.npz [--cameras 1] [--json FILE]

A row for every camera, lens and way to evaluate harmonics: the largest difference of colour and
opacity over all pixels, over those whose lists agree up to ties of tau, and over those whose lists
are the same (a response within rounding of alpha_min is a hit on one side alone); and, for a loss
of random weights on colour and opacity that are 0 where the lists differ, the largest difference of
each gradient relative to its largest entry.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measuring import report_rows
from orders import Judge, Orders, differing_pixels, traced_orders
from rooms import load_room
from torch import Tensor

from gart.cameras import Camera
from gart.native import library_path
from gart.scene import Gaussians
from gart.tracing import SH_MODES, TraceSettings, trace

DEVICES = ("cpu", "cuda")


def lenses(camera: Camera) -> dict[str, Camera]:
    """The same pose behind three lenses; the fisheye sees 180 degrees across."""
    focal = camera.width / math.pi
    return {
        "pinhole": camera,
        "opencv": replace(camera, model="opencv", distortion=(-0.1, 0.02, 1e-3, -1e-3)),
        "fisheye": replace(
            camera, model="opencv_fisheye", distortion=(0.02, -4e-3), fx=focal, fy=focal
        ),
    }


def image_and_gradients(
    scene: Gaussians, camera: Camera, settings: TraceSettings, weights: Tensor, device: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """[H, W, 4] colour and opacity, and the gradients of their sum with `weights`; on the CPU."""
    leaves = scene.map(lambda t: t.detach().to(device).requires_grad_())
    traced = trace(leaves, camera, settings)
    image = torch.cat([traced.color, traced.opacity[..., None]], -1)
    tensors = leaves.tensors()
    found = torch.autograd.grad((image * weights.to(device)).sum(), list(tensors.values()))
    return image.detach().cpu(), {n: g.cpu() for n, g in zip(tensors, found, strict=True)}


def compare(
    scene: Gaussians, camera: Camera, settings: TraceSettings, classes: dict[str, Tensor]
) -> dict[str, Any]:
    """Both backends' images and gradients; `classes` as `classify` returns them."""
    random = torch.Generator().manual_seed(0)
    weights = torch.randn(camera.height, camera.width, 4, generator=random)
    weights *= classes["same"].reshape(camera.height, camera.width, 1)
    (image, gradients), (other, others) = (
        image_and_gradients(scene, camera, settings, weights, device) for device in DEVICES
    )
    error = (image - other).abs().amax(-1).flatten()
    tied = ~classes["tie"]
    row: dict[str, Any] = {
        "image": float(error.max()),
        "image, no tie": float(error[tied].max()),
        "image, same lists": float(error[classes["same"]].max()),
    }
    for name, gradient in gradients.items():
        largest = max(float(gradient.abs().max()), torch.finfo(torch.float32).tiny)
        row[f"d {name}"] = float((gradient - others[name]).abs().max()) / largest
    return row


def classify(scene: Gaussians, camera: Camera, settings: TraceSettings) -> dict[str, Tensor]:
    """[H * W] bool masks: lists that are the "same", else why not, as `orders.difference` says."""
    found = [traced_orders(scene.to(device), camera, settings)[0] for device in DEVICES]
    a, b = (Orders(orders.offsets.cpu(), orders.gaussians.cpu()) for orders in found)
    differs = differing_pixels(a, b)
    pixels = differs.nonzero()[:, 0]
    reasons = Judge(scene, camera, settings).explain(a, b, pixels)
    classes = {"same": ~differs}
    for reason in ("tie", "threshold", "wrong"):
        mask = torch.zeros_like(differs)
        mask[pixels[torch.tensor([r == reason for r in reasons], dtype=torch.bool)]] = True
        classes[reason] = mask
    return classes


def main() -> None:
    """Compare the backends on every scene named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("scenes", nargs="+", help="room .npz, or splat .ply")
    parser.add_argument("--trajectory", help="cameras of a .ply (nerfbaselines-v1 JSON)")
    parser.add_argument("--cameras", type=int, default=4, help="how many of a scene's cameras")
    parser.add_argument("--json", type=Path, help="write all rows there too")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or library_path("cuda") is None:
        raise SystemExit(
            "compare_backends.py needs a GPU that PyTorch sees and gart's CUDA library, and this "
            "machine lacks one of them (`gart doctor` says which): run it on a GPU host"
        )
    rows = []
    for path in arguments.scenes:
        scene, cameras = load_room(path, arguments.trajectory)
        for number, camera in enumerate(cameras[: arguments.cameras]):
            for lens, view in lenses(camera).items():
                classes = classify(scene, view, TraceSettings())
                counts = {name: int(mask.sum()) for name, mask in classes.items()}
                for sh in SH_MODES:
                    where = {"scene": Path(path).stem, "camera": number, "lens": lens, "sh": sh}
                    found = compare(scene, view, TraceSettings(sh=sh), classes)
                    rows.append({**where, **counts, **found})
                    print(json.dumps(rows[-1]), flush=True)
    report_rows(rows, "cuda", arguments.json)


if __name__ == "__main__":
    main()
