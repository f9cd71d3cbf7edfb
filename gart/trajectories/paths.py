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
MAX_FRAMES = 100_000
"""Of a path: an hour of video."""
NEARLY_PARALLEL = 1e-3
"""Least mean squared sine between optical axes that meet somewhere near."""
PARALLEL, MEETING = 0.95, 0.5
"""Agreement of axes that may be parallel but for noise: they are where they miss their nearest
point by more than this share of the distances between the cameras."""
AGREEING = 0.5
"""Agreement of directions that have a common one."""
ALONG_UP = 0.8
"""Cosine to the up direction from which a view counts as along it."""
SAME = 1e-6
"""Relative distance that counts as none."""


def make_path(name: str, cameras: Sequence[Camera], frames: int) -> list[Camera]:
    """`frames` cameras on a path, with the lens and size of the first of `cameras`.

    `orbit`: a circle round the point that the cameras look at, at their mean distance and height;
    of cameras that face one way, on their side of it.
    `spiral`: two turns about the camera in the middle, looking at the same point, as far as most
    cameras are from it, but no farther than a third of the way to that point; for captures that
    face one way. `interpolate`: smoothly from each camera to the
    next, in their order; the path passes through them all, faster where they are farther apart.
    Orbit and spiral close, so that a video can loop.

    Args:
        name: a key of `PATHS`.
        cameras: at least two, at different places.
        frames: from 1 to `MAX_FRAMES`.

    Raises:
        UsageError: no such path, or no such number of frames.
        GartError: too few different cameras.
    """
    if name not in PATHS:
        raise UsageError(f"path is {name!r}; expected {', '.join(PATHS)}")
    if not 1 <= frames <= MAX_FRAMES:
        raise UsageError(f"--frames is {frames}; expected 1 to {MAX_FRAMES}")
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
    # Round the back of what all cameras face there is nothing to see: stay on their side.
    axis = _side(poses) if _agreement(poses[:, :, 2]) > PARALLEL else up
    offsets = poses[:, :, 3] - focus
    heights = offsets @ axis
    level = offsets - heights[:, None] * axis
    radius = np.linalg.norm(level, axis=1).mean()
    first = level[np.linalg.norm(level, axis=1).argmax()]
    across = _unit(first)
    along = np.cross(axis, across)
    if not radius > SAME * np.linalg.norm(offsets, axis=1).mean():
        raise GartError(
            "a path 'orbit' needs cameras beside what they look at; this capture has all of them "
            "above it: take spiral or interpolate"
        )
    angles = 2 * np.pi * np.arange(frames) / frames
    circle = np.cos(angles)[:, None] * across + np.sin(angles)[:, None] * along
    positions = focus + heights.mean() * axis + radius * circle
    return _looking(positions, np.broadcast_to(focus, positions.shape), up)


def _spiral(poses: Array, frames: int) -> Array:
    centers, focus, up = poses[:, :, 3], focus_point(poses), up_direction(poses)
    nearest = np.linalg.norm(centers - centers.mean(0), axis=1).argmin()
    center = centers[nearest]
    if abs(_unit(focus - center) @ up) > ALONG_UP:  # else the path would turn about its own view
        up = -poses[nearest, :, 1]
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
    """[3] mean of the cameras' up, unit length.

    Cameras that look straight down from all headings, as a drone's do, have no common up; for them
    it is towards the side that they look from.
    """
    ups, axes = -poses[:, :, 1], poses[:, :, 2]
    if _agreement(ups) > AGREEING or _agreement(axes) < AGREEING:
        return _unit(ups.mean(0))
    return _side(poses)


def _side(poses: Array) -> Array:
    """[3] from what cameras with a common view look at to them: normal of their centres' plane."""
    offsets, back = poses[:, :, 3] - poses[:, :, 3].mean(0), _unit(-poses[:, :, 2].mean(0))
    normal = np.linalg.svd(np.vstack([offsets, np.zeros((3, 3))]))[2][2]
    # Of centres on a line the plane is any; then it is no plane that they look across.
    return normal * np.sign(normal @ back) if abs(normal @ back) > ALONG_UP else back


def focus_point(poses: Array) -> Array:
    """[3] point nearest to all optical axes, in least squares.

    Where the axes are nearly parallel, also but for noise, it is ahead of the cameras, by `AHEAD`
    of their spread.
    """
    centers, axes = poses[:, :, 3], poses[:, :, 2]
    offsets = centers - centers.mean(0)
    ahead = centers.mean(0) + AHEAD * np.linalg.norm(offsets, axis=1).max() * _unit(axes.mean(0))
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]  # projects an axis away
    system = across.mean(0)
    if np.linalg.eigvalsh(system)[0] < NEARLY_PARALLEL:
        return ahead
    focus = np.linalg.solve(system, (across @ centers[:, :, None]).mean(0)[:, 0])
    missed = (across @ (focus - centers)[:, :, None]).std()
    if _agreement(axes) > PARALLEL and missed > MEETING * offsets.std():
        return ahead
    return focus


def _looking(positions: Array, targets: Array, up: Array) -> Array:
    """[F, 3, 4] poses at `positions` that look at `targets`, heads up."""
    forward = _unit(targets - positions)
    right = _unit(np.cross(forward, up))
    down = np.cross(forward, right)
    return np.stack([right, down, forward, positions], 2)


def _agreement(directions: Array) -> float:
    """Length of the mean of unit vectors: 1 where they are equal, near 0 where they cancel."""
    return float(np.linalg.norm(directions.mean(0)))


def _unit(vectors: Array) -> Array:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
