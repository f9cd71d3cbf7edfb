"""Image files: 8-bit colour and opacity, depth, normals, numbers of hits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import torch
from torch import Tensor

from gart.errors import GartError
from gart.io.atomic import atomic, write_bytes

Rounding = Literal["nearest", "truncate"]


def quantise(image: Tensor, rounding: Rounding = "nearest") -> Tensor:
    """Values in [0, 1] (others are clamped) to uint8.

    `nearest` is what image writers do; `truncate` drops the fraction, as nerfbaselines does (which
    costs up to 0.05 dB at 34 dB).
    """
    scaled = image * 255
    return (scaled + 0.5 if rounding == "nearest" else scaled).clamp(0, 255).to(torch.uint8)


def save_png(path: str | Path, image: Tensor, rounding: Rounding = "nearest") -> None:
    """Write [H, W, 3] colours, [H, W, 4] with straight alpha or an [H, W] map, float in [0, 1] or
    uint8, as 8-bit PNG.
    """
    if image.dtype != torch.uint8:
        image = quantise(image, rounding)
    _write(path, image.cpu().numpy())


def save_depth(path: str | Path, depth: Tensor) -> None:
    """Write an [H, W] depth map, atomically, by the suffix.

    `.npy` and `.exr` hold the float32 values in scene units. `.png` is for looking at: 16 bits,
    65535 being the image's largest depth.

    Raises:
        GartError: `.exr` with an OpenCV that was built without it.
    """
    if not _save_values(path, depth.float()):
        scale = 65535 / max(float(depth.max()), 1e-30)
        _write(path, _sixteen_bits(depth * scale))


def save_normals(path: str | Path, normals: Tensor) -> None:
    """Write [H, W, 3] normals in [-1, 1], atomically, by the suffix.

    `.npy` and `.exr` hold the float32 values, `.png` x, y and z as red, green and blue: 8 bits, -1
    being 0 and 1 being 255.

    Raises:
        GartError: `.exr` with an OpenCV that was built without it.
    """
    if not _save_values(path, normals.float()):
        save_png(path, (normals + 1) / 2)


def save_counts(path: str | Path, counts: Tensor) -> None:
    """Write [H, W] whole numbers as they are, atomically: `.npy` in their type, `.png` in 16 bits,
    65535 standing for more too.
    """
    if not _save_values(path, counts):
        _write(path, _sixteen_bits(counts))


def _save_values(path: str | Path, values: Tensor) -> bool:
    """Write `values` as they are if the suffix is `.npy` or `.exr`; whether it was."""
    path = Path(path)
    if path.suffix == ".npy":
        with atomic(path) as temporary:
            np.save(temporary, values.cpu().numpy())
    elif path.suffix == ".exr":
        os.environ.setdefault("OPENCV_IO_ENABLE_OPENEXR", "1")  # off by default, since 4.5.5
        _write(path, values.cpu().numpy())
    return path.suffix in (".npy", ".exr")


def _sixteen_bits(values: Tensor) -> np.ndarray:
    return values.round().clamp(0, 65535).cpu().numpy().astype(np.uint16)


def read_image(path: str | Path) -> Tensor:
    """Read an image as [H, W, 3] or [H, W, 4] uint8, RGB or RGBA.

    Orientation tags are not applied, as in COLMAP. Grey becomes RGB, 16 bits become 8.

    Raises:
        GartError: missing or not an image.
    """
    path = Path(path)
    if not path.is_file():
        raise GartError(f"image {path} does not exist")
    data = np.fromfile(path, np.uint8)  # not imread, which cannot open every file name
    image = cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if len(data) else None
    if image is None:
        raise GartError(f"image {path} cannot be decoded; is it damaged, or no image?")
    if image.dtype == np.uint16:
        image = ((image.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if image.dtype != np.uint8:
        raise GartError(f"image {path} holds {image.dtype} values; expected 8 or 16 bits")
    conversion = {2: cv2.COLOR_GRAY2RGB, 3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGBA}
    channels = image.shape[2] if image.ndim == 3 else 2
    if channels not in conversion:
        raise GartError(f"image {path} has {channels} channels; expected grey, RGB or RGBA")
    return torch.from_numpy(cv2.cvtColor(image, conversion[channels]))


def _write(path: str | Path, image: np.ndarray) -> None:
    """By the suffix."""
    if image.ndim == 3:
        has_alpha = image.shape[2] == 4
        image = cv2.cvtColor(image, cv2.COLOR_RGBA2BGRA if has_alpha else cv2.COLOR_RGB2BGR)
    suffix = Path(path).suffix.lower()
    try:
        done, data = cv2.imencode(suffix, image)
    except cv2.error:
        done = False
    if not done:
        raise GartError(f"{path}: this OpenCV cannot encode {suffix[1:].upper()}")
    write_bytes(path, data.tobytes())
