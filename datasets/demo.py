"""The built-in scene: solids on a table, photographed by a ray caster of its own."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from gart.cameras import Camera
from gart.capture import Capture, View
from gart.datasets.demo_world import Array, cast, unit, vector
from gart.datasets.names import DEMO
from gart.datasets.photographs import shrink
from gart.datasets.split import EVERY_EIGHTH, held_out

VIEWS = 40
WIDTH, HEIGHT = 192, 144

_FOCAL = 1.08 * WIDTH
_TARGET = (0.0, 0.0, 0.06)
_NEAR, _FAR = 3.5, 4.1
_SAMPLES = 2  # per pixel and axis
_LIGHT_RADIUS = 0.05  # of the light's disc at distance 1: softens shadow edges
_POINTS = 3000
_POINT_NOISE = 0.004  # scene units
_SEED = 0
_LIGHT = unit(vector(0.45, -0.35, 0.82))


def demo_capture(downscale: int = 1) -> Capture:
    """40 views of 192 x 144 pixels on a spiral, every 8th held out; nearly 3,000 points.

    The same on every call. The background is black.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        views = list(pool.map(_photograph, range(VIEWS)))
    train = [view for index, view in enumerate(views) if not held_out(index)]
    points, colors = _surface_points(train)
    return Capture(
        name=DEMO,
        train=[shrink(view, downscale) for view in train],
        test=[shrink(view, downscale) for index, view in enumerate(views) if held_out(index)],
        points=points,
        point_colors=colors,
        metadata={"source": DEMO, "loader": DEMO, "downscale": downscale, "split": EVERY_EIGHTH},
    )


def _camera(index: int) -> Camera:
    """The cameras wind up three times round the table, every third farther off."""
    along = (index + 0.5) / VIEWS
    azimuth = 2 * math.pi * 3 * along
    elevation = math.radians(14 + 50 * along)
    radius = _FAR if index % 3 == 0 else _NEAR
    level = radius * math.cos(elevation)
    outward = vector(
        level * math.cos(azimuth), level * math.sin(azimuth), radius * math.sin(elevation)
    )
    forward = -unit(outward)
    right = unit(vector(*np.cross(forward[:, 0], (0, 0, 1))))
    down = vector(*np.cross(forward[:, 0], right[:, 0]))
    c2w = torch.from_numpy(np.concatenate([right, down, forward, vector(*_TARGET) + outward], 1))
    return Camera(c2w, _FOCAL, _FOCAL, WIDTH / 2, HEIGHT / 2, WIDTH, HEIGHT)


def _photograph(index: int) -> View:
    """One view; each sample of a pixel sees its own point of the light's disc."""
    camera = _camera(index)
    offsets = [(i + 0.5) / _SAMPLES for i in range(_SAMPLES)]
    directions, lights = [], []
    for dx in offsets:
        for dy in offsets:
            rays = _directions(camera, dx, dy)
            directions.append(rays)
            lamp = unit(_LIGHT + _LIGHT_RADIUS * vector(2 * dx - 1, 2 * dy - 1, 0))
            lights.append(np.broadcast_to(lamp, rays.shape))
    colors, _ = cast(_origin(camera), np.concatenate(directions, 1), np.concatenate(lights, 1))
    mean = colors.reshape(3, _SAMPLES**2, HEIGHT, WIDTH).mean(1)
    image = np.rint(255 * mean).astype(np.uint8).transpose(1, 2, 0)
    return View(f"{index:03d}.png", camera, torch.from_numpy(np.ascontiguousarray(image)))


def _directions(camera: Camera, dx: float, dy: float) -> Array:
    """[3, H * W] unit world rays through (dx, dy) of every pixel."""
    x = (np.arange(WIDTH, dtype=np.float32) + dx - camera.cx) / camera.fx
    y = (np.arange(HEIGHT, dtype=np.float32) + dy - camera.cy) / camera.fy
    x, y = (v.ravel() for v in np.meshgrid(x, y))
    return camera.c2w[:, :3].numpy() @ unit(np.stack([x, y, np.ones_like(x)]))


def _origin(camera: Camera) -> Array:
    return camera.c2w[:, 3:].numpy()


def _surface_points(views: list[View]) -> tuple[Tensor, Tensor]:
    """Seeded samples of what the views see, with noise: points [M, 3] and their colours [M, 3]."""
    random = np.random.default_rng(_SEED)
    wanted = _POINTS // len(views)
    points, colors = [], []
    for view in views:
        pixels = random.integers(WIDTH * HEIGHT, size=5 * wanted)  # many show the background
        rays = _directions(view.camera, 0.5, 0.5)[:, pixels]
        _, distances = cast(_origin(view.camera), rays, np.broadcast_to(_LIGHT, rays.shape))
        hit = np.flatnonzero(np.isfinite(distances))[:wanted]
        points.append(_origin(view.camera) + rays[:, hit] * distances[hit])
        colors.append(view.image.reshape(-1, 3)[pixels[hit]])
    cloud = np.concatenate(points, 1).T
    noise = _POINT_NOISE * random.standard_normal(cloud.shape)
    return torch.from_numpy((cloud + noise).astype(np.float32)), torch.cat(colors)
