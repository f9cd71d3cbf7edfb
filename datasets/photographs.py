"""Image files to tensors of the camera's size."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from gart.cameras import Camera
from gart.capture import View
from gart.datasets.posed import Photograph, some
from gart.errors import GartError

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp"))

_EIGHT_BIT_MODES = frozenset(("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"))


def read_view(photograph: Photograph) -> View:
    """Load one photograph, and fit its camera to the image's size.

    Raises:
        GartError: the file is damaged or has more than 8 bits a channel, or its shape is not the
            camera's.
    """
    image = _read_image(photograph.path)
    height, width = image.shape[:2]
    mask = None
    if photograph.mask is not None:
        mask = torch.from_numpy(_read_image(photograph.mask)[..., :3].any(-1))
        if mask.shape != (height, width):
            raise GartError(
                f"{photograph.mask} is {mask.shape[1]} x {mask.shape[0]} pixels but its photograph "
                f"{photograph.path} is {width} x {height}"
            )
    camera = _fit(photograph, width, height)
    return View(photograph.name, camera, torch.from_numpy(image), mask)


def shrink(view: View, downscale: int) -> View:
    """The view at 1/downscale of its size, rounded to whole pixels; colours by area averaging.

    The camera takes the true ratios of the rounded sizes. With alpha, colours count by their alpha.
    A pixel of the result counts in the mask if all its area did.
    """
    width = max(1, round(view.camera.width / downscale))
    height = max(1, round(view.camera.height / downscale))
    if (width, height) == (view.camera.width, view.camera.height):
        return view
    mask = None
    if view.mask is not None:
        covered = cv2.resize(
            view.mask.numpy().astype(np.float32), (width, height), interpolation=cv2.INTER_AREA
        )
        mask = torch.from_numpy(covered > 1 - 1e-4)
    image = _area_average(view.image.numpy(), width, height)
    return View(view.name, view.camera.resized(width, height), torch.from_numpy(image), mask)


def check_present(files: Collection[Path]) -> None:
    """Raise GartError naming the first of the image files that do not exist."""
    if missing := {str(file) for file in files if not file.is_file()}:
        raise GartError(
            f"{len(missing)} of {len(files)} image files of the capture are missing: "
            f"{some(missing, 3)}; copy them there, or remove them from the model"
        )


def image_size(path: Path) -> tuple[int, int]:
    """Width and height from an image file's header."""
    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, UnidentifiedImageError) as error:
        raise GartError(f"the size of {path} cannot be read ({error})") from error


def _read_image(path: Path) -> NDArray[np.uint8]:
    """[H, W, 3] RGB, or [H, W, 4] where the file has transparency. EXIF rotation is not applied:
    COLMAP does not apply it either."""
    try:
        with Image.open(path) as image:
            if image.mode not in _EIGHT_BIT_MODES:
                raise GartError(
                    f"photograph {path} has pixels of mode {image.mode}; "
                    "convert it to 8 bits a channel"
                )
            transparent = image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info
            return np.array(image.convert("RGBA" if transparent else "RGB"))
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
        raise GartError(
            f"photograph {path} cannot be read ({error}); replace the file, or remove it from the "
            "model"
        ) from error


def _fit(photograph: Photograph, width: int, height: int) -> Camera:
    """The camera at the image's size, if some scale gives that size within rounding to pixels."""
    camera = photograph.camera
    least = max((width - 1) / camera.width, (height - 1) / camera.height)
    most = min((width + 1) / camera.width, (height + 1) / camera.height)
    if least >= most:
        raise GartError(
            f"photograph {photograph.path} is {width} x {height} pixels but its camera is "
            f"{camera.width} x {camera.height}, another aspect ratio; use the photographs that the "
            "cameras were solved for, or undistort them again"
        )
    return camera.resized(width, height)


def _area_average(image: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    if image.shape[2] == 3:
        return np.asarray(
            cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8
        )
    rgba = image.astype(np.float32)
    rgba[..., :3] *= rgba[..., 3:] / 255
    resized = cv2.resize(rgba, (width, height), interpolation=cv2.INTER_AREA)
    mean: NDArray[np.float32] = np.asarray(resized, np.float32)
    mean[..., :3] *= 255 / np.maximum(mean[..., 3:], 1e-6)
    return np.clip(np.rint(mean), 0, 255).astype(np.uint8)
