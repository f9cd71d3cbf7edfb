from __future__ import annotations

import math

import pytest
import torch

from gart.cameras import Camera
from gart.capture import Capture, View
from gart.scene import Gaussians


def looking_at_origin(
    angle: float, radius: float = 4.0, size: tuple[int, int] = (24, 20), model: str = "pinhole"
) -> Camera:
    """A camera on a circle round the y axis."""
    center = torch.tensor([radius * math.sin(angle), 0.3, -radius * math.cos(angle)])
    z = torch.nn.functional.normalize(-center, dim=0)
    x = torch.nn.functional.normalize(torch.linalg.cross(torch.tensor([0.0, 1, 0]), z), dim=0)
    rotation = torch.stack([x, torch.linalg.cross(z, x), z], 1)
    width, height = size
    c2w = torch.cat([rotation, center[:, None]], 1)
    return Camera(c2w, 1.2 * width, 1.2 * width, width / 2, height / 2, width, height, model)


@pytest.fixture
def camera_at():
    return looking_at_origin


def random_gaussians(n: int, degree: int = 1, seed: int = 0) -> Gaussians:
    g = torch.Generator().manual_seed(seed)
    return Gaussians(
        means=torch.randn(n, 3, generator=g) * 0.5,
        quats=torch.randn(n, 4, generator=g),
        log_scales=torch.randn(n, 3, generator=g) * 0.3 - 2,
        opacity_logits=torch.randn(n, generator=g),
        sh=torch.randn(n, (degree + 1) ** 2, 3, generator=g) * 0.3,
    )


@pytest.fixture
def make_gaussians():
    return random_gaussians


@pytest.fixture
def small_capture() -> Capture:
    """Six photographs of a smooth pattern with noise, and 40 points around the origin."""
    g = torch.Generator().manual_seed(5)
    views = []
    for i in range(6):
        camera = looking_at_origin(0.4 * i - 1)
        rows = torch.linspace(0, 1, camera.height)[:, None, None]
        columns = torch.linspace(0, 1, camera.width)[None, :, None]
        image = 255 * (0.5 * rows + 0.3 * columns + 0.1 * torch.rand(20, 24, 3, generator=g))
        views.append(View(f"{i}.png", camera, image.to(torch.uint8)))
    points = torch.randn(40, 3, generator=g) * 0.6
    colors = torch.randint(0, 256, (40, 3), generator=g, dtype=torch.uint8)
    return Capture("small", views[:5], views[5:], points, colors, background=(0.1, 0.2, 0.3))
