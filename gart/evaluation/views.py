"""One view: rendered by either renderer, and its photograph made comparable."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from gart.cameras import Camera, has_ray
from gart.capture import View
from gart.errors import GartError, UsageError
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.tilegs import RasterSettings, rasterize
from gart.tracing import TraceSettings, trace

MODES = ("rt", "tilegs")
Settings = TraceSettings | RasterSettings


@torch.no_grad()
def render_view(
    gaussians: Gaussians, camera: Camera, mode: str = "rt", settings: Settings | None = None
) -> Rendering:
    """Render without gradients, on the Gaussians' device.

    `rt` traces the camera's own rays. `tilegs` rasterizes, which knows pinhole cameras only: a
    distorted planar lens is rendered as its `undistorted()` camera (see `photograph`).

    Args:
        settings: the renderer's settings, of `mode`'s type; None for its defaults.

    Raises:
        UsageError: an unknown mode.
        GartError: `tilegs` with a camera that no pinhole image can stand for, such as a fisheye.
    """
    if mode not in MODES:
        raise UsageError(f"--mode is {mode!r}; expected {' or '.join(MODES)}")
    if mode == "rt":
        assert settings is None or isinstance(settings, TraceSettings)
        return trace(gaussians, camera, settings)
    assert settings is None or isinstance(settings, RasterSettings)
    return rasterize(gaussians, rasterized_camera(camera), settings)


def render_image(
    gaussians: Gaussians,
    camera: Camera,
    mode: str = "rt",
    background: tuple[float, float, float] = (0.0, 0.0, 0.0),
    settings: Settings | None = None,
) -> Tensor:
    """Colour over `background`, [H, W, 3] float32, not clamped; the rest is as `render_view`."""
    rendering = render_view(gaussians, camera, mode, settings)
    return rendering.over(torch.tensor(background, device=rendering.color.device))


def rasterized_camera(camera: Camera) -> Camera:
    """The pinhole camera that `tilegs` renders in place of `camera`.

    Raises:
        GartError: a lens, an aperture or a shutter that no pinhole image can stand for.
    """
    if not camera.is_planar:
        raise GartError(
            f"tilegs renders pinhole images and this camera is {camera.model}; use --mode rt"
        )
    if not camera.is_central:
        raise GartError(
            "tilegs renders images from one point and this camera has an aperture or a rolling "
            "shutter; use --mode rt"
        )
    return camera.undistorted()


def is_distorted(camera: Camera) -> bool:
    """Whether its image differs from that of the pinhole camera with the same intrinsics."""
    return not camera.is_planar or any(camera.distortion)


def photograph(
    view: View, mode: str = "rt", background: tuple[float, float, float] = (0.0, 0.0, 0.0)
) -> tuple[Tensor, Tensor | None]:
    """What a rendering of the view in `mode` is compared with.

    Returns:
        The photograph, [H, W, 3] uint8, or float in [0, 1] over `background` where it has alpha;
        undistorted where `mode` renders undistorted images. And the [H, W] bool mask of pixels that
        count: the view's own, and those where the lens has a ray; None when all do.
    """
    image, mask, camera = view.image, view.mask, view.camera
    if image.shape[2] == 4:
        rgb, alpha = (image.float() / 255).split([3, 1], -1)
        image = rgb * alpha + (1 - alpha) * torch.tensor(background)
    if not is_distorted(camera):
        return image, mask
    if mode == "tilegs":
        return undistort(image, mask, camera)
    seen = has_ray(camera.lens)
    return image, seen if mask is None else seen & mask


def undistort(image: Tensor, mask: Tensor | None, camera: Camera) -> tuple[Tensor, Tensor]:
    """Resample an image of a distorted planar `camera` to what `camera.undistorted()` would see.

    Bilinear, as COLMAP's undistorter.

    Args:
        image: [H, W, 3] uint8 or float.
        mask: [H, W] bool or None.

    Returns:
        The image, of the same shape and type, and the [H, W] bool mask of its pixels that come from
        the image and, all four of their sources, from `mask`.
    """
    columns, rows, valid = _undistortion(camera.lens)

    def resample(values: np.ndarray) -> Tensor:
        border = cv2.BORDER_REPLICATE  # for the half pixel beyond the outermost centres
        warped = cv2.remap(values, columns, rows, cv2.INTER_LINEAR, borderMode=border)
        return torch.from_numpy(warped)

    undistorted = resample(image.numpy()) * valid[..., None]
    if mask is not None:
        valid = valid & (resample(mask.numpy().astype(np.float32)) > 0.999)
    return undistorted, valid


@lru_cache(maxsize=4)
def _undistortion(lens: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Where each undistorted pixel lies in the image, in OpenCV's pixels, and whether it does."""
    camera = Camera.of_lens(lens)
    x, y, _ = camera.undistorted().directions().unbind(-1)
    u, v = camera.distort(x, y)
    # Beyond a lens's field the polynomial folds back into the image: only a round trip tells.
    back_x, back_y = camera.undistort(u, v)
    seen = ((back_x - x).abs() + (back_y - y).abs()) * max(camera.fx, camera.fy) < 1e-3
    columns, rows = u * camera.fx + camera.cx, v * camera.fy + camera.cy
    seen &= (columns >= 0) & (columns <= camera.width) & (rows >= 0) & (rows <= camera.height)
    return (columns - 0.5).float().numpy(), (rows - 0.5).float().numpy(), seen
