"""Trains a capture with gsplat 1.5.3, the peer that `gart train` is held against.

    python benchmarks/train_gsplat.py CAPTURE --out FOLDER [--budget N] [--iterations N]

gsplat's public API alone: `rasterization`, `MCMCStrategy`, and the settings of its own example
trainer for MCMC (learning rates, regularisation, first scales and opacities, schedules). From gart
come what must be equal for both: reading the capture, the split, the fused photometric loss (faster
than a loss in PyTorch operations, so the time is in gsplat's favour) and the metrics. Distorted
captures go through `pinhole_copy.py` first. FOLDER gets `eval.json`, held-out renderings and the
scene as `point_cloud.ply`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import gsplat
import torch
from gsplat import MCMCStrategy, rasterization
from measuring import machine
from torch import Tensor
from torch.nn.functional import normalize

from gart.capture import Capture, View
from gart.datasets import load
from gart.evaluation.evaluate import lpips_networks
from gart.evaluation.protocol import METRICS, find_protocol
from gart.evaluation.views import photograph
from gart.io.images import quantise, save_png
from gart.io.ply import save_ply
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.training import TrainConfig
from gart.training.initialization import initial_gaussians, scene_extent
from gart.training.journal import Journal
from gart.training.loss import photometric_loss
from gart.training.photographs import Photograph

SH_EVERY = 1000
PAGE = 100


class Peer:
    """gsplat's parameters, optimisers and strategy on a capture."""

    def __init__(self, capture: Capture, budget: int, iterations: int, seed: int) -> None:
        self.capture, self.iterations = capture, iterations
        cameras = [view.camera for view in capture.train]
        extent = scene_extent(cameras)
        generator = torch.Generator().manual_seed(seed)
        # gsplat's first scales: a tenth of the distance to the neighbours, opacity a half.
        config = TrainConfig(init_scale=0.1, init_opacity=0.5, budget=budget)
        first = initial_gaussians(capture, config, generator).to("cuda")
        tensors = {
            "means": first.means,
            "scales": first.log_scales,
            "quats": torch.rand(len(first), 4, generator=generator).cuda(),
            "opacities": first.opacity_logits,
            "sh0": first.sh[:, :1].clone(),
            "shN": first.sh[:, 1:].clone(),
        }
        rates = {
            "means": 1.6e-4 * extent,
            "scales": 5e-3,
            "quats": 1e-3,
            "opacities": 5e-2,
            "sh0": 2.5e-3,
            "shN": 2.5e-3 / 20,
        }
        self.params = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}
        )
        self.optimizers = {
            name: torch.optim.Adam(
                [{"params": self.params[name], "lr": rate, "name": name}], eps=1e-15, fused=True
            )
            for name, rate in rates.items()
        }
        self.decay = torch.optim.lr_scheduler.ExponentialLR(
            self.optimizers["means"], 0.01 ** (1 / iterations)
        )
        self.strategy = MCMCStrategy(cap_max=budget)
        self.state = self.strategy.initialize_state()
        self.background = torch.tensor(capture.background, device="cuda")
        self.photographs = [Photograph.of(view, "cuda") for view in capture.train]
        self.matrices = [self.of_view(view) for view in capture.train]
        self.journal = Journal("cuda", PAGE)

    def of_view(self, view: View) -> tuple[Tensor, Tensor, int, int]:
        """World-to-camera [1, 4, 4], intrinsics [1, 3, 3], width, height."""
        camera = view.camera
        if any(camera.distortion) or not camera.is_planar:
            raise SystemExit("gsplat's rasterization knows no distortion: run pinhole_copy.py")
        return camera.viewmat[None].cuda(), camera.K[None].cuda(), camera.width, camera.height

    def render(
        self, view: tuple[Tensor, Tensor, int, int], degree: int
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Colour [H, W, 3] without background, opacity [H, W], gsplat's meta."""
        p = self.params
        color, alpha, meta = rasterization(
            p["means"],
            p["quats"],
            p["scales"].exp(),
            p["opacities"].sigmoid(),
            torch.cat([p["sh0"], p["shN"]], 1),
            *view,
            sh_degree=degree,
            packed=False,
        )
        return color[0], alpha[0, ..., 0], meta

    def step(self, number: int, step: int) -> None:
        """One iteration on a training view, from 0."""
        photo = self.photographs[number]
        color, alpha, meta = self.render(self.matrices[number], min(step // SH_EVERY, 3))
        rendering = Rendering(color, alpha, alpha)
        by_color, by_alpha = photometric_loss(
            rendering, photo, self.background, 0.2, self.journal, step + 1
        )
        self.journal.close(step + 1, photo.name, len(self.params["means"]))
        regularisation = 0.01 * (
            self.params["opacities"].sigmoid().mean() + self.params["scales"].exp().mean()
        )
        torch.autograd.backward([color, alpha, regularisation], [by_color, by_alpha, None])
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.decay.step()
        self.strategy.step_post_backward(
            self.params,
            self.optimizers,
            self.state,
            step,
            meta,
            lr=self.decay.get_last_lr()[0],
        )
        self.journal.read()

    def scene(self) -> Gaussians:
        """The trained Gaussians."""
        p = {name: tensor.detach() for name, tensor in self.params.items()}
        return Gaussians(
            p["means"],
            normalize(p["quats"], dim=-1),
            p["scales"],
            p["opacities"],
            torch.cat([p["sh0"], p["shN"]], 1),
        )


def evaluate(peer: Peer, folder: Path) -> dict[str, Any]:
    """Held-out metrics by gart's protocol `3dgs`, renderings saved."""
    networks, unavailable = lpips_networks(torch.device("cuda"))
    print(*unavailable.values(), sep="\n")
    rules = find_protocol("3dgs")
    records: list[dict[str, Any]] = []
    for view in peer.capture.test:
        with torch.no_grad():
            color, alpha, _ = peer.render(peer.of_view(view), 3)
        image = quantise(color + (1 - alpha)[..., None] * peer.background, rules.rounding)
        photo, mask = photograph(view, "tilegs", peer.capture.background)
        if photo.dtype != torch.uint8:
            photo = quantise(photo, rules.rounding)
        mask = None if mask is None else mask.cuda()
        values = rules.measure(image, photo.cuda(), mask, METRICS, networks)
        records.append({"name": view.name, **values})
        save_png(folder / "renders" / "test_gsplat" / f"{Path(view.name).stem}.png", image.cpu())
    keys = [key for key, value in records[0].items() if isinstance(value, float)]
    mean = {key: math.fsum(record[key] for record in records) / len(records) for key in keys}
    return {"mean": mean, "per_image": records}


def main() -> None:
    """Train the capture named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("capture", help="what gart train takes")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=int, default=1_000_000)
    parser.add_argument("--iterations", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    capture = load(arguments.capture)
    peer = Peer(capture, arguments.budget, arguments.iterations, arguments.seed)
    order: list[int] = []
    torch.cuda.synchronize()
    began = time.perf_counter()
    for step in range(arguments.iterations):
        order = order or torch.randperm(len(capture.train)).tolist()
        peer.step(order.pop(), step)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    found = {
        **machine("cuda"),
        "gsplat": gsplat.__version__,
        "capture": capture.name,
        "iterations": arguments.iterations,
        "gaussians": len(peer.params["means"]),
        "train_seconds": seconds,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        **evaluate(peer, arguments.out),
    }
    save_ply(arguments.out / "point_cloud.ply", peer.scene().to("cpu"))
    (arguments.out / "eval.json").write_text(json.dumps(found, indent=2))
    print(json.dumps({key: value for key, value in found.items() if key != "per_image"}))


if __name__ == "__main__":
    main()
