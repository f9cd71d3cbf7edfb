"""Paths of a camera through a captured scene: orbit, spiral, along the photographs.

Positions and directions are float64 numpy arrays in world units; cameras look along z, y down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.spatial.transform import Rotation, RotationSpline

from gart.cameras import Camera
from gart.errors import GartError, UsageError

Array = NDArray[np.float64]

TURNS = 2
"""Of a spiral; its forward and backward movement takes all of them, so that the path closes."""
REACH = 90.0
"""Percentile of the cameras' offsets from the middle one that a spiral's radii are."""
AHEAD = 3.0
"""Radii, at least, from the middle of a spiral to what it looks at; and how far ahead of cameras
that look in parallel, in their distances from the middle, that point is taken to be."""
NEARLY_PARALLEL = 1e-3
"""Least mean squared sine between optical axes that meet somewhere near."""


def make_path(name: str, cameras: Sequence[Camera], frames: int) -> list[Camera]:
    """`frames` cameras on a path, with the lens and size of the first of `cameras`.

    `orbit`: a circle round the point that the cameras look at, at their mean distance and height.
    `spiral`: two turns about the camera in the middle, looking at the same point, as far as most
    cameras are from it, but no farther than a third of the way to that point; for captures that
    face one way. `interpolate`: smoothly from each camera to the
    next, in their order; the path passes through them all, faster where they are farther apart.
    Orbit and spiral close, so that a video can loop.

    Args:
        name: a key of `PATHS`.
        cameras: at least two, at different places.
        frames: at least one.

    Raises:
        UsageError: no such path, or no frames.
        GartError: too few different cameras.
    """
    if name not in PATHS:
        raise UsageError(f"path is {name!r}; expected {', '.join(PATHS)}")
    if frames < 1:
        raise UsageError(f"--frames is {frames}; expected at least 1")
    poses = np.stack([camera.c2w.double().numpy() for camera in cameras]) if cameras else None
    if poses is None or np.ptp(poses[:, :, 3], axis=0).max() == 0:
        raise GartError(
            f"a path {name!r} needs cameras at two places at least; this capture has "
            f"{len(cameras)} view(s) at one place: give a trajectory file"
        )
    made = PATHS[name](poses, frames)
    return [replace(cameras[0], c2w=torch.from_numpy(pose).float()) for pose in made]


def _orbit(poses: Array, frames: int) -> Array:
    focus, up = focus_point(poses), up_direction(poses)
    offsets = poses[:, :, 3] - focus
    heights = offsets @ up
    level = offsets - heights[:, None] * up
    radius = np.linalg.norm(level, axis=1).mean()
    first = level[np.linalg.norm(level, axis=1).argmax()]
    across = _unit(first) if radius > 0 else _unit(poses[0, :, 0])
    along = np.cross(up, across)
    angles = 2 * np.pi * np.arange(frames) / frames
    circle = np.cos(angles)[:, None] * across + np.sin(angles)[:, None] * along
    positions = focus + heights.mean() * up + radius * circle
    return _looking(positions, np.broadcast_to(focus, positions.shape), up)


def _spiral(poses: Array, frames: int) -> Array:
    centers, focus, up = poses[:, :, 3], focus_point(poses), up_direction(poses)
    center = centers[np.linalg.norm(centers - centers.mean(0), axis=1).argmin()]
    middle = _looking(center[None], focus[None], up)[0]
    offsets = np.abs((centers - center) @ middle[:, :3])
    limit = np.linalg.norm(focus - center) / AHEAD
    radii = np.minimum(np.percentile(offsets, REACH, axis=0), limit)
    angles = 2 * np.pi * TURNS * np.arange(frames) / frames
    steps = np.stack([np.cos(angles), -np.sin(angles), np.sin(angles / TURNS)], 1)
    positions = center + (steps * radii) @ middle[:, :3].T
    return _looking(positions, np.broadcast_to(focus, positions.shape), up)


def _interpolate(poses: Array, frames: int) -> Array:
    rotations = Rotation.from_matrix(poses[:, :, :3])
    distances = np.linalg.norm(np.diff(poses[:, :, 3], axis=0), axis=1)
    angles = (rotations[:-1].inv() * rotations[1:]).magnitude()
    # A turn counts like a step, so that turning on the spot takes time too.
    steps = distances / distances.mean() + angles
    kept = np.concatenate([[True], steps > 1e-9])  # a view twice would be a moment of no length
    times = np.concatenate([[0.0], np.cumsum(steps)])[kept]
    at = np.linspace(0, times[-1], frames)
    positions = PchipInterpolator(times, poses[kept, :, 3])(at)
    turned = RotationSpline(times, rotations[kept])(at).as_matrix()
    return np.concatenate([turned, positions[:, :, None]], 2)


PATHS: dict[str, Callable[[Array, int], Array]] = {
    "orbit": _orbit,
    "spiral": _spiral,
    "interpolate": _interpolate,
}
"""Name -> function of the capture's [N, 3, 4] camera-to-world poses and the number of frames."""


def up_direction(poses: Array) -> Array:
    """[3] mean of the cameras' up, unit length."""
    return _unit(-poses[:, :, 1].mean(0))


def focus_point(poses: Array) -> Array:
    """[3] point nearest to all optical axes, in least squares.

    Where the axes are nearly parallel it is ahead of the cameras, by `AHEAD` of their spread.
    """
    centers, axes = poses[:, :, 3], poses[:, :, 2]
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]  # projects an axis away
    system = across.mean(0)
    if np.linalg.eigvalsh(system)[0] < NEARLY_PARALLEL:
        spread = np.linalg.norm(centers - centers.mean(0), axis=1).max()
        return centers.mean(0) + AHEAD * spread * _unit(axes.mean(0))
    return np.linalg.solve(system, (across @ centers[:, :, None]).mean(0)[:, 0])


def _looking(positions: Array, targets: Array, up: Array) -> Array:
    """[F, 3, 4] poses at `positions` that look at `targets`, heads up."""
    forward = _unit(targets - positions)
    right = _unit(np.cross(forward, up))
    down = np.cross(forward, right)
    return np.stack([right, down, forward, positions], 2)


def _unit(vectors: Array) -> Array:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
