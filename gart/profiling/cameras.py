"""Cameras for a scene that comes without any."""

from __future__ import annotations

import math

import torch

from gart.cameras import Camera
from gart.errors import GartError
from gart.scene import Gaussians


def orbit(
    gaussians: Gaussians, count: int = 8, width: int = 960, height: int = 540
) -> list[Camera]:
    """`count` cameras on a circle around the scene, looking at its median, y pointing down.

    The circle's radius is twice the median distance of the Gaussians from their median, so that
    most of them are in view.

    Raises:
        GartError: the scene is empty.
    """
    if not len(gaussians):
        raise GartError("the splat file holds no Gaussian, so there is nothing to look at")
    means = gaussians.means.detach().cpu()
    center = means.median(0).values
    radius = max(2 * float((means - center).norm(dim=1).median()), 1e-3)
    cameras = []
    for i in range(count):
        angle = 2 * math.pi * i / count
        forward = torch.tensor([math.sin(angle), 0.0, math.cos(angle)])
        down = torch.tensor([0.0, 1.0, 0.0])
        right = torch.linalg.cross(down, forward)
        c2w = torch.stack([right, down, forward, center - radius * forward], 1)
        cameras.append(Camera(c2w, width * 0.8, width * 0.8, width / 2, height / 2, width, height))
    return cameras
