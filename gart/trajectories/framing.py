"""A camera at another image size or field of view."""

from __future__ import annotations

import math
from dataclasses import replace

from gart.cameras import MAX_SIDE, Camera
from gart.errors import UsageError


def reframe(
    camera: Camera,
    width: int | None = None,
    height: int | None = None,
    fov: float | None = None,
) -> Camera:
    """`camera` with another image size or vertical field of view.

    One side alone keeps the proportions. With both, the image shows as much as before from top to
    bottom, and more or less at the sides; nothing is stretched. A field of view makes it a pinhole
    camera with square pixels that looks through the middle of its image.

    Args:
        camera: any lens.
        width, height: pixels.
        fov: degrees from the top to the bottom edge, between 0 and 180.

    Raises:
        UsageError: a value out of its range.
    """
    for option, side in (("--width", width), ("--height", height)):
        if side is not None and not 1 <= side <= MAX_SIDE:
            raise UsageError(f"{option} is {side}; expected pixels from 1 to {MAX_SIDE}")
    if fov is not None and not 0 < fov < 180:
        raise UsageError(f"--fov is {fov:g}; expected degrees between 0 and 180")
    if width is not None or height is not None:
        camera = _resized(camera, width, height)
    if fov is None:
        return camera
    focal = camera.height / 2 / math.tan(math.radians(fov) / 2)
    center = (camera.width / 2, camera.height / 2)
    return Camera(camera.c2w, focal, focal, *center, camera.width, camera.height)


def _resized(camera: Camera, width: int | None, height: int | None) -> Camera:
    if height is None:
        assert width is not None
        scale = width / camera.width
        height = max(1, round(camera.height * scale))
    else:
        scale = height / camera.height
        width = width or max(1, round(camera.width * scale))
    if max(width, height) > MAX_SIDE:
        raise UsageError(
            f"--width and --height make images of {width} x {height}; expected pixels from 1 to "
            f"{MAX_SIDE}"
        )
    return replace(
        camera,
        fx=camera.fx * scale,
        fy=camera.fy * scale,
        cx=width / 2 + (camera.cx - camera.width / 2) * scale,
        cy=height / 2 + (camera.cy - camera.height / 2) * scale,
        width=width,
        height=height,
    )
