"""Image files to tensors of the camera's size."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from gart.cameras import Camera
from gart.capture import View
from gart.datasets.posed import Photograph, some
from gart.errors import GartError

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp"))

_EIGHT_BIT_MODES = frozenset(
    ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "LAB", "HSV")
)
_SIXTEEN_BIT_MODES = frozenset(("I;16", "I;16L", "I;16B", "I;16N"))
"""Of grey images; colours of 16 bits come from Pillow with 8, their high byte."""
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""What Pillow raises for files that are damaged or not images."""

Size = tuple[int, int]
"""Width, height."""


def find_image(root: Path, name: str) -> Path:
    """The file of `name` below `root`, which may be stored in another Unicode normal form (as
    macOS and Linux do); `root / name` where there is none."""
    path = root / name
    if not name.isascii() and not path.exists():
        for form in ("NFC", "NFD"):
            if (other := root / unicodedata.normalize(form, name)).exists():
                return other
    return path


def read_view(photograph: Photograph) -> View:
    """Load one photograph, and fit its camera to the image's size.

    Raises:
        GartError: the file is damaged or holds no 8 or 16 bit colours, or its shape is not the
            camera's.
    """
    image = _read_image(photograph.path, photograph.camera)
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


def image_size(path: Path) -> Size:
    """Width and height from an image file's header."""
    try:
        with Image.open(path) as image:
            return image.size
    except _UNREADABLE as error:
        raise GartError(f"the size of {path} cannot be read ({error})") from error


def _read_image(path: Path, camera: Camera | None = None) -> NDArray[np.uint8]:
    """[H, W, 3] RGB, or [H, W, 4] where the file has transparency.

    EXIF rotation is applied only where the image then has the camera's shape and else has not:
    COLMAP does not apply it.
    """
    try:
        with Image.open(path) as file:
            file.load()
    except _UNREADABLE as error:
        raise GartError(
            f"photograph {path} cannot be read ({error}); replace the file, or remove it from the "
            "model"
        ) from error
    turned = camera is not None and is_turned(file, camera)
    image = ImageOps.exif_transpose(file) if turned else file
    if image.mode in _SIXTEEN_BIT_MODES:
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], 3, -1)
    if image.mode not in _EIGHT_BIT_MODES:
        raise GartError(
            f"photograph {path} has pixels of mode {image.mode}; convert it to 8 or 16 bits a "
            "channel"
        )
    return np.array(image.convert("RGBA" if is_transparent(image) else "RGB"))


def is_transparent(image: Image.Image) -> bool:
    """Whether an image file has alpha, of whatever kind."""
    return image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info


def orientation(image: Image.Image) -> int:
    """The EXIF orientation of an image file, 1 (as it is) where it says nothing readable."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except (*_UNREADABLE, TypeError):
        return 1


def is_turned(image: Image.Image, camera: Camera) -> bool:
    """Whether `camera` is one of the image after its EXIF rotation by a quarter."""
    turned = orientation(image) in (5, 6, 7, 8)
    return turned and not fits(camera, image.size) and fits(camera, image.size[::-1])


def fits(camera: Camera, size: Size) -> bool:
    """Whether scaling the camera's image can give `size`, rounded to whole pixels."""
    width, height = size
    least = max((width - 1) / camera.width, (height - 1) / camera.height)
    most = min((width + 1) / camera.width, (height + 1) / camera.height)
    return least < most


def _fit(photograph: Photograph, width: int, height: int) -> Camera:
    """The camera at the image's size."""
    camera = photograph.camera
    if not fits(camera, (width, height)):
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
