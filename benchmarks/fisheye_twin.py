"""Trains on a fisheye capture and on its pinhole twin and judges both in the fisheye's images.

    python benchmarks/fisheye_twin.py PINHOLE FISHEYE [--config fast] [--set budget=300000 ...]

The captures have the same photographs, by name and pose, through two lenses. The twin is trained
twice: on all of its pixels, and on those alone that the fisheye images too (`field`), for it may
see more of the scene than the fisheye does. Needs a GPU.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measuring import report_rows
from torch import Tensor

from gart.cameras import Camera
from gart.capture import Capture, View
from gart.datasets import load
from gart.evaluation import evaluate
from gart.io.images import save_png
from gart.scene import Gaussians
from gart.tracing import TraceSettings
from gart.training import Trainer, load_config


def images(camera: Camera, other: Camera) -> Tensor:
    """[H, W] bool: the pixels of `camera` whose rays `other` images as well."""
    rays = camera.directions() @ camera.c2w[:, :3].double().T
    u, v = other.project(other.center.double() + rays).unbind(-1)  # they stand at the same place
    return (u >= 0) & (u < other.width) & (v >= 0) & (v < other.height)


def in_field(twin: Capture, fisheye: Capture) -> Capture:
    """`twin` with what its fisheye photographs do not show masked out."""
    lenses = {view.name: view.camera for view in fisheye.train}

    def masked(view: View) -> View:
        seen = images(view.camera, lenses[view.name])
        return replace(view, mask=seen if view.mask is None else seen & view.mask)

    return replace(twin, train=[masked(view) for view in twin.train])


def trained(capture: Capture, config: str, settings: list[str]) -> tuple[Gaussians, float, str]:
    """The scene, the seconds it took and where its colours are taken."""
    trainer = Trainer(capture, load_config(config, settings), "cuda")
    begin = time.perf_counter()
    for _ in range(trainer.config.iterations):
        trainer.advance()
        trainer.measured()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    return trainer.export(), seconds, trainer.config.sh


def judged(
    scene: Gaussians, sh: str, views: list[View], folder: Path | None = None
) -> dict[str, float]:
    """Mean PSNR and SSIM over `views`; renderings go to `folder`."""

    def save(record: dict[str, Any], image: Tensor, photo: Tensor, mask: Tensor | None) -> None:
        if folder is not None:
            save_png(folder / f"{Path(record['name']).stem}.png", image.cpu())

    settings = TraceSettings(sh=sh)
    found = evaluate(scene, views, metrics="psnr,ssim", settings=settings, pictures=save)
    return found["mean"]


def main() -> None:
    """Train three times, judge, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("pinhole")
    parser.add_argument("fisheye")
    parser.add_argument("--config", default="fast")
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--renders", type=Path, help="folder for the fisheye's held-out views")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pinhole, fisheye = load(arguments.pinhole), load(arguments.fisheye)
    captures = {"pinhole": pinhole, "field": in_field(pinhole, fisheye), "fisheye": fisheye}
    rows: list[dict[str, Any]] = []
    for name, capture in captures.items():
        scene, seconds, sh = trained(capture, arguments.config, arguments.settings)
        folder = arguments.renders and arguments.renders / name
        row: dict[str, Any] = {
            "trained on": name,
            "seconds": round(seconds, 1),
            "Gaussians": len(scene),
        }
        for where, views, to in (
            ("fisheye", fisheye.test, folder),
            ("pinhole", pinhole.test, None),
        ):
            for key, value in judged(scene, sh, views, to).items():
                row[f"{key} in {where}"] = round(value, 3)
        rows.append(row)
        print(row, flush=True)
    report_rows(rows, "cuda", arguments.json)


if __name__ == "__main__":
    main()
