"""A camera at another image size, with another lens or field of view."""

from __future__ import annotations

import math
from dataclasses import replace

from gart.cameras import MAX_SIDE, Camera, panorama_intrinsics
from gart.errors import UsageError

LENSES = ("pinhole", "fisheye", "equirectangular", "orthographic")
"""Ideal lenses that any camera can be given."""
_HALF_SPHERE = 180.0
"""Degrees that a fisheye sees unless told otherwise."""


def reframe(
    camera: Camera,
    width: int | None = None,
    height: int | None = None,
    fov: float | None = None,
    lens: str | None = None,
    extent: float | None = None,
) -> Camera:
    """`camera` with another image size, lens or vertical field of view.

    One side alone keeps the proportions. With both, the image shows as much as before from top to
    bottom, and more or less at the sides; nothing is stretched. A field of view or a lens makes it
    a camera without distortion and with square pixels that looks through the middle of its image.
    A panorama shows all directions, whatever its size, and is twice as wide as high unless both
    sides are given.

    Args:
        camera: any lens.
        width, height: pixels.
        fov: degrees from the top to the bottom edge: of a pinhole camera, which it is unless `lens`
            says otherwise, below 180; of a fisheye up to 360, by default 180.
        lens: one of `LENSES`; None keeps the camera's. `pinhole` without `fov` keeps the intrinsics
            and leaves out the distortion.
        extent: of an orthographic camera, from the top to the bottom edge in scene units.

    Raises:
        UsageError: a value out of its range, or one that the lens has no use for.
    """
    for option, side in (("--width", width), ("--height", height)):
        if side is not None and not 1 <= side <= MAX_SIDE:
            raise UsageError(f"{option} is {side}; expected pixels from 1 to {MAX_SIDE}")
    _check(lens, fov, extent)
    if lens == "equirectangular" and (width is None or height is None):
        height = height or (max(1, round(width / 2)) if width else camera.height)
        width = width or 2 * height
        if width > MAX_SIDE:
            raise UsageError(
                f"a panorama {height} pixels high is {width} wide; expected up to {MAX_SIDE}: "
                "pass a smaller --height"
            )
    if width is not None or height is not None:
        camera = _resized(camera, width, height)
    if lens == "equirectangular":
        return _made(camera, lens, *panorama_intrinsics(camera.width, camera.height)[:2])
    if lens == "orthographic":
        assert extent is not None
        return _made(camera, lens, camera.height / extent)
    if lens == "fisheye":
        fov = _HALF_SPHERE if fov is None else fov
        return _made(camera, "opencv_fisheye", camera.height / math.radians(fov))
    if fov is not None:
        return _made(camera, "pinhole", camera.height / 2 / math.tan(math.radians(fov) / 2))
    if lens is None:
        return camera
    if not camera.is_planar:
        raise UsageError(f"--lens pinhole for a camera with the lens {camera.model} needs --fov")
    return camera.undistorted()


def _check(lens: str | None, fov: float | None, extent: float | None) -> None:
    if lens is not None and lens not in LENSES:
        raise UsageError(f"--lens is {lens!r}; expected one of {', '.join(LENSES)}")
    most = 360 if lens == "fisheye" else 180
    if fov is not None:
        if lens in ("equirectangular", "orthographic"):
            raise UsageError(f"--lens {lens} has no field of view; leave --fov out")
        if not (0 < fov < most or fov == most == 360):
            raise UsageError(f"--fov is {fov:g}; expected degrees between 0 and {most}")
    if (extent is not None) != (lens == "orthographic"):
        raise UsageError("--extent is the height of what --lens orthographic shows; give both")
    if extent is not None and not 0 < extent < math.inf:
        raise UsageError(f"--extent is {extent:g}; expected a positive number of scene units")


def _made(camera: Camera, model: str, fx: float, fy: float | None = None) -> Camera:
    """At `camera`'s place and of its size, looking through the middle of its image."""
    width, height = camera.width, camera.height
    return replace(
        camera, fx=fx, fy=fy or fx, cx=width / 2, cy=height / 2, model=model, distortion=()
    )


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
