"""Trains a capture with one of gart's presets, timed as `train_gsplat.py` times its peer.

    python benchmarks/train_preset.py CAPTURE --out FOLDER [--config NAME] [--set key=value]

What is timed are the trainer's steps alone: neither loading nor writing files nor evaluation.
FOLDER gets `eval.json`, with the held-out metrics of what the run gives and, where that is the mean
of its last scenes, of the last one (`last`); and the held-out renderings.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from measuring import machine
from torch import Tensor

from gart.capture import Capture
from gart.datasets import load
from gart.evaluation.evaluate import evaluate
from gart.io.images import save_png
from gart.scene import Gaussians
from gart.training import Trainer, load_config
from gart.training.filter3d import smooth


def held_out(scene: Gaussians, capture: Capture, folder: Path | None = None) -> dict[str, Any]:
    """Metrics of the held-out views, whose renderings go into `folder`."""

    def save(record: dict[str, Any], image: Tensor, *_: object) -> None:
        if folder is not None:
            save_png(folder / f"{Path(record['name']).stem}.png", image.cpu())

    found = evaluate(scene, capture.test, background=capture.background, pictures=save)
    return {"mean": found["mean"], "per_image": found["per_image"]}


def main() -> None:
    """Train the capture named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("capture", help="what gart train takes")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", default="default")
    parser.add_argument("--set", action="append", default=[], help="a setting: budget=200000")
    arguments = parser.parse_args()
    capture, config = load(arguments.capture), load_config(arguments.config, arguments.set)
    trainer = Trainer(capture, config, "cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    while trainer.iteration < config.iterations:
        trainer.advance()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated()
    trainer.measured(wait=True)
    found = {
        **machine("cuda"),
        "capture": capture.name,
        "config": config.as_dict(),
        "gaussians": len(trainer.gaussians),
        "train_seconds": seconds,
        "peak_bytes": peak,
        **held_out(trainer.export(), capture, arguments.out / "renders"),
    }
    if config.average_from:
        last = smooth(trainer.gaussians, trainer._sizes)
        found["last"] = held_out(last, capture)["mean"]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "eval.json").write_text(json.dumps(found, indent=2))
    print(json.dumps({k: v for k, v in found.items() if k not in ("per_image", "config")}))


if __name__ == "__main__":
    main()
