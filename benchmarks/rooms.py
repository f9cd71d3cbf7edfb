"""Scenes to measure on: rooms and splat files with their cameras, and ellipsoids in awkward places.

A room is an .npz with means, quats, scales, opacities, sh, viewmats, Ks, width and height.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from gart.cameras import Camera
from gart.errors import UsageError
from gart.io.ply import load_ply
from gart.io.trajectory import load_trajectory
from gart.reference import whitening
from gart.scene import Gaussians


def load_room(
    path: str | Path, trajectory: str | Path | None = None
) -> tuple[Gaussians, list[Camera]]:
    """The Gaussians, on the CPU, and the cameras of a room, or of a splat file and a trajectory.

    Raises:
        UsageError: a .ply without a trajectory, or a file of another kind.
    """
    kind = Path(path).suffix
    if kind == ".ply":
        if trajectory is None:
            raise UsageError(f"{path} holds no cameras; name them with --trajectory FILE.json")
        return load_ply(path), load_trajectory(trajectory).cameras
    if kind != ".npz":
        raise UsageError(f"{path} is a {kind or 'nameless'} file; expected a room .npz or a .ply")
    data = np.load(path)

    def tensor(name: str) -> torch.Tensor:
        return torch.tensor(np.ascontiguousarray(data[name], np.float32))

    scene = Gaussians(
        means=tensor("means"),
        quats=tensor("quats"),
        log_scales=tensor("scales").log(),
        opacity_logits=tensor("opacities").double().logit().float(),
        sh=tensor("sh"),
    )
    width, height = int(data["width"]), int(data["height"])
    cameras = []
    for viewmat, k in zip(data["viewmats"], data["Ks"], strict=True):
        c2w = torch.tensor(np.linalg.inv(viewmat.astype(np.float64))[:3], dtype=torch.float32)
        intrinsics = (float(k[0, 0]), float(k[1, 1]), float(k[0, 2]), float(k[1, 2]))
        cameras.append(Camera(c2w, *intrinsics, width, height))
    return scene, cameras


def add_ellipsoids_across(scene: Gaussians, cameras: list[Camera], count: int) -> Gaussians:
    """`scene` and, beside each camera, `count` faint ellipsoids that reach through its plane.

    They are the places where projections break: the camera plane cuts them, and what lies before it
    is in view. Seeded; scales are 0.03 to 0.25 scene units, 0.3 to 0.9 from the camera.
    """
    random = torch.Generator().manual_seed(0)

    def uniform(n: int, low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(n, generator=random)

    means = []
    for camera in cameras:
        angle, away = uniform(count, 0, 2 * math.pi), uniform(count, 0.3, 0.9)
        local = torch.stack([away * angle.cos(), away * angle.sin(), uniform(count, -0.1, 0.2)], 1)
        means.append(local @ camera.c2w[:, :3].T + camera.center)
    n = count * len(cameras)
    added = Gaussians(
        means=torch.cat(means),
        quats=torch.randn(n, 4, generator=random),
        log_scales=uniform(3 * n, math.log(0.03), math.log(0.25)).reshape(n, 3),
        opacity_logits=uniform(n, -4, -1),
        sh=0.3 * torch.randn(n, scene.sh.shape[1], 3, generator=random),
    )
    columns = zip(scene.tensors().values(), added.tensors().values(), strict=True)
    return Gaussians(*(torch.cat([a, b.to(a.device)]) for a, b in columns))


def across_camera_plane(scene: Gaussians, camera: Camera, alpha_min: float) -> torch.Tensor:
    """[N] bool: Gaussians whose support (response >= alpha_min) the camera's plane z = 0 cuts."""
    forward = camera.c2w[:, 2].to(scene.device, torch.float64)
    depth = (scene.means.double() - camera.center.to(scene.device).double()) @ forward
    # n^T Sigma n = |S R^T n|^2, and S R^T is S^2 times the whitening S^-1 R^T.
    whiten = whitening(scene.quats.double(), scene.log_scales.double())
    half = ((2 * scene.log_scales.double()).exp() * (whiten @ forward)).norm(dim=-1)
    opacity = scene.opacity_logits.double().sigmoid()
    radius = (2 * (opacity / alpha_min).log().clamp_min(0)).sqrt()
    return depth.abs() < radius * half
