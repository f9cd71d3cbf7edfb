"""What a reader finds in a folder, before any pixel is read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gart.cameras import Camera
from gart.errors import GartError

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Photograph:
    """One posed photograph on disk.

    Attributes:
        name: path relative to the image folder, with forward slashes.
        path: the image file.
        camera: as the model states it; the image may be of another size.
        mask: optional image file, non-zero where the photograph counts.
        split: the set that the capture's own files put it in; None where they say nothing.
    """

    name: str
    path: Path
    camera: Camera
    mask: Path | None = None
    split: Split | None = None


@dataclass
class Posed:
    """The photographs of a folder with their cameras.

    Attributes:
        loader: what read it: colmap, transforms, blender or a nerfbaselines loader.
        photographs: in any order.
        images: the folder in which unposed photographs are counted; None to count none.
        points: [M, 3] float32.
        point_colors: [M, 3] uint8.
        background: RGB in [0, 1] that the capture defines for photographs with alpha, or None.
    """

    loader: str
    photographs: list[Photograph]
    images: Path | None = None
    points: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 3), np.float32))
    point_colors: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 3), np.uint8))
    background: tuple[float, float, float] | None = None


def make_camera(
    pose: ArrayLike,
    intrinsics: Sequence[float],
    size: Sequence[int],
    model: str,
    distortion: Sequence[float],
) -> Camera:
    """A camera from nerfbaselines' conventions.

    Args:
        pose: [3, 4] camera to world, OpenCV axes.
        intrinsics: fx, fy, cx, cy in pixels.
        size: width, height.
        model: a key of `gart.cameras.DISTORTION_PARAMETERS`.
        distortion: k1 k2 p1 p2 k3 k4 [k5 k6]; may be shorter. A fisheye's four are k1 k2 k3 k4 and
            its p1 p2 mean nothing.

    Raises:
        GartError: a number is not finite, the pose is no rigid motion, or gart lacks the lens.
    """
    matrix = np.asarray(pose, dtype=np.float64)
    if not np.isfinite([*matrix.flat, *intrinsics, *distortion]).all():
        raise GartError("its pose, intrinsics or lens hold a number that is not finite")
    rotation = matrix[:, :3]
    if not np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-3) or np.linalg.det(rotation) < 0:
        raise GartError("its pose is not a rotation and a translation")
    k1, k2, p1, p2, k3, k4, k5, k6 = [*map(float, distortion), *[0.0] * (8 - len(distortion))]
    if model == "opencv_fisheye":
        lens: tuple[float, ...] = (k1, k2, k3, k4)
    elif model == "full_opencv":
        lens = (k1, k2, p1, p2, k3, k4, k5, k6)
    elif model == "opencv" and k4 != 0:
        # Written by tools whose radial polynomial goes on to r^8; in OpenCV's model k4 divides.
        raise GartError(f"its lens has k4 = {k4}, which needs the camera model OPENCV_FISHEYE")
    elif model == "opencv" and k3 != 0:
        model, lens = "full_opencv", (k1, k2, p1, p2, k3)
    elif model == "opencv" and any((k1, k2, p1, p2)):
        lens = (k1, k2, p1, p2)
    else:
        model, lens = "pinhole", ()
    fx, fy, cx, cy = map(float, intrinsics)
    width, height = map(int, size)
    try:
        return Camera(torch.from_numpy(matrix).float(), fx, fy, cx, cy, width, height, model, lens)
    except ValueError as error:
        raise GartError(str(error)) from error


def some(names: Collection[str], shown: int = 5) -> str:
    """The first few names, and how many more there are."""
    listed = ", ".join(sorted(names)[:shown])
    return listed if len(names) <= shown else f"{listed} and {len(names) - shown} more"
