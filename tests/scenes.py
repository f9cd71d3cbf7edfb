"""Scenes and cameras that tests share: small, seeded, made from nothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.scene import Gaussians

IDENTITY = torch.eye(3, 4)


def random_gaussians(
    n: int,
    *,
    seed: int = 0,
    degree: int = 3,
    low: tuple[float, float, float] = (-2, -2, 2),
    high: tuple[float, float, float] = (2, 2, 6),
    scales: tuple[float, float] = (0.05, 0.4),
    logit: float = 0.0,
    pose: Tensor = IDENTITY,
) -> Gaussians:
    """N float32 Gaussians with means in the box `low` to `high` of the camera at `pose`."""
    random = torch.Generator().manual_seed(seed)
    low_log, high_log = math.log(scales[0]), math.log(scales[1])
    box_low, box_high = torch.tensor(low), torch.tensor(high)
    means = box_low + (box_high - box_low) * torch.rand(n, 3, generator=random)
    return Gaussians(
        means=means @ pose[:, :3].T + pose[:, 3],
        quats=torch.randn(n, 4, generator=random),
        log_scales=low_log + (high_log - low_log) * torch.rand(n, 3, generator=random),
        opacity_logits=logit + 1.5 * torch.randn(n, generator=random),
        sh=0.3 * torch.randn(n, (degree + 1) ** 2, 3, generator=random),
    )


def gaussian(
    mean: tuple[float, float, float],
    *,
    scales: tuple[float, float, float] = (0.3, 0.3, 0.3),
    quat: tuple[float, float, float, float] = (1, 0, 0, 0),
    logit: float = 0.0,
    color: tuple[float, float, float] = (0.8, 0.4, 0.1),
) -> Gaussians:
    """One float32 Gaussian of one colour."""
    return Gaussians(
        means=torch.tensor([mean], dtype=torch.float32),
        quats=torch.tensor([quat], dtype=torch.float32),
        log_scales=torch.tensor([scales], dtype=torch.float64).log().float(),
        opacity_logits=torch.tensor([logit], dtype=torch.float32),
        sh=(torch.tensor([[color]]) - 0.5) / math.sqrt(1 / (4 * math.pi)),
    )


def join(*scenes: Gaussians) -> Gaussians:
    """All Gaussians of scenes with equal SH degree, in order."""
    columns = zip(*(scene.tensors().values() for scene in scenes), strict=True)
    return Gaussians(*(torch.cat(column) for column in columns))


def random_pose(seed: int, distance: float = 0.0) -> Tensor:
    """A camera with a random rotation, `distance` from the origin: [3, 4] float32."""
    random = torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, generator=random, dtype=torch.float64))
    rotation *= torch.linalg.det(rotation).sign()
    center = torch.randn(3, generator=random, dtype=torch.float64)
    center *= distance / center.norm()
    return torch.cat([rotation, center[:, None]], 1).float()


def camera(
    width: int = 37,
    height: int = 23,
    *,
    fov: float = 60.0,
    shift: tuple[float, float] = (0.0, 0.0),
    pose: Tensor = IDENTITY,
    model: str = "pinhole",
    distortion: tuple[float, ...] = (),
) -> Camera:
    """A camera `fov` degrees wide, its principal point `shift` pixels off the image centre."""
    half = math.radians(fov) / 2
    focal = width / 2 / (half if model == "opencv_fisheye" else math.tan(half))
    return Camera(
        c2w=pose,
        fx=focal,
        fy=focal,
        cx=width / 2 + shift[0],
        cy=height / 2 + shift[1],
        width=width,
        height=height,
        model=model,
        distortion=distortion,
    )
