"""What orthographic cameras show, depth of field and rolling shutter, for cameras of a path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from gart.cameras import Camera
from gart.errors import GartError, UsageError
from gart.optics import RollingShutter, ThinLens, poses_between
from gart.trajectories.paths import focus_point


def focus_depth(cameras: Sequence[Camera], option: str) -> float:
    """Median depth, along the cameras' axes, of the point that they all look at.

    Args:
        cameras: a path, or the cameras of photographs.
        option: that would give the depth where the cameras cannot, for the message.

    Raises:
        GartError: they are at one place, or look at nothing in front of them.
    """
    poses = np.stack([camera.c2w.double().numpy() for camera in cameras]) if cameras else None
    if poses is not None and np.ptp(poses[:, :, 3], axis=0).max() > 0:
        depths = ((focus_point(poses) - poses[:, :, 3]) * poses[:, :, 2]).sum(1)
        if (depth := float(np.median(depths))) > 0:
            return depth
    raise GartError(f"these cameras do not tell how far away the scene is; give {option}")


def usual_extent(cameras: Sequence[Camera]) -> float:
    """Height in scene units of what the first of `cameras`, were it a pinhole camera of the same
    intrinsics, would show at `focus_depth`.

    Raises:
        GartError: the cameras do not tell.
    """
    depth = focus_depth(cameras, "--extent UNITS")
    return depth * cameras[0].height / cameras[0].fy


def add_aperture(
    cameras: Sequence[Camera], radius: float, focus: float | None, samples: int
) -> list[Camera]:
    """`cameras` with a thin lens each.

    Args:
        cameras: of any lens.
        radius: of the aperture in scene units.
        focus: what is sharp, in scene units; None: at `focus_depth`.
        samples: rays a pixel.

    Raises:
        UsageError: a value out of its range.
        GartError: no `focus`, and the cameras do not tell.
    """
    if focus is None:
        focus = focus_depth(cameras, "--focus DISTANCE")
    try:
        lens = ThinLens(radius, focus, samples)
    except ValueError as error:
        raise UsageError(f"--aperture, --focus or --samples: {error}") from error
    return [replace(camera, aperture=lens) for camera in cameras]


def add_rolling_shutter(cameras: Sequence[Camera], fraction: float) -> list[Camera]:
    """`cameras`, frames of a path in their order, with rows exposed on the way to the next frame.

    The last frame moves on as the one before it.

    Args:
        cameras: at least two.
        fraction: of the time from frame to frame that passes between the first and the last row.

    Raises:
        UsageError: a fraction out of its range, too few frames, or frames half a turn apart.
    """
    if not 0 <= fraction <= 1:
        raise UsageError(f"--rolling-shutter is {fraction:g}; expected a fraction from 0 to 1")
    if len(cameras) < 2:
        raise UsageError("--rolling-shutter takes the motion between frames; give two at least")
    poses = [camera.c2w for camera in cameras]
    share = torch.tensor(fraction)
    try:
        ends = [poses_between(a, b, share) for a, b in pairwise(poses)]
        ends.append(poses_between(poses[-2], poses[-1], 1 + share))
    except ValueError as error:
        raise UsageError(f"--rolling-shutter: {error}") from error
    return [
        replace(camera, shutter=RollingShutter(end.float()))
        for camera, end in zip(cameras, ends, strict=True)
    ]
