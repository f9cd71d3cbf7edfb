"""A capture: posed photographs and, where there is one, a sparse point cloud."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gart.cameras import Camera


@dataclass
class View:
    """One posed photograph.

    Attributes:
        name: image file name, relative to the capture's image folder.
        camera: the camera, sized as `image`.
        image: [H, W, 3] uint8 sRGB, or [H, W, 4] with straight alpha.
        mask: optional [H, W] bool, true where the photograph counts.
    """

    name: str
    camera: Camera
    image: Tensor
    mask: Tensor | None = None


@dataclass
class Capture:
    """Training and held-out views of one scene.

    Attributes:
        name: short scene name, used for the run folder.
        train, test: the views; `test` is held out.
        points: [M, 3] float32 sparse points (M may be 0).
        point_colors: [M, 3] uint8.
        background: RGB in [0, 1] behind the scene, for images with alpha.
        metadata: where it came from: source, loader, downscale, split rule; JSON-able.
    """

    name: str
    train: list[View]
    test: list[View]
    points: Tensor = field(default_factory=lambda: torch.zeros(0, 3))
    point_colors: Tensor = field(default_factory=lambda: torch.zeros(0, 3, dtype=torch.uint8))
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)
    metadata: dict[str, object] = field(default_factory=dict)
