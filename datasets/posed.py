"""What a reader finds in a folder, before any pixel is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gart.cameras import Camera
from gart.errors import GartError
from gart.lenses import PARAMETERS, PLANAR

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
        pixels: [P, 2] float64 where the reconstruction saw points in it, in the camera's pixels.
        points: [P] int64 which of `Posed.points` each of them is.
    """

    name: str
    path: Path
    camera: Camera
    mask: Path | None = None
    split: Split | None = None
    pixels: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    points: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass
class Posed:
    """The photographs of a folder with their cameras.

    Attributes:
        loader: what read it: colmap, transforms, blender, llff, bundler or nerfbaselines.
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

    @property
    def bad_points(self) -> int:
        """How many points are not finite."""
        return int((~np.isfinite(self.points).all(1)).sum())


def make_lens(model: str, named: Mapping[str, float]) -> tuple[str, tuple[float, ...]]:
    """The simplest lens model with these coefficients, and its distortion.

    Args:
        model: a key of `gart.lenses.PARAMETERS`.
        named: coefficient -> value; those left out are 0.

    Raises:
        GartError: a coefficient that the model lacks is not 0.
    """
    if model == "opencv" and named.get("k3") and not named.get("k4"):
        model = "full_opencv"
    for name, value in named.items():
        if value and name not in PARAMETERS[model]:
            # Often written by tools whose radial polynomial goes on where OpenCV's ends.
            raise GartError(
                f"its lens has {name} = {value}, which the camera model {model.upper()} lacks; "
                "state the model that the lens was fitted with"
            )
    distortion = tuple(float(named.get(name, 0.0)) for name in PARAMETERS[model])
    if model in PLANAR and not any(distortion):
        return "pinhole", ()
    return model, distortion


def make_camera(
    pose: ArrayLike,
    intrinsics: Sequence[float],
    size: Sequence[int],
    model: str,
    distortion: Sequence[float],
) -> Camera:
    """A camera, checked.

    Args:
        pose: [3, 4] camera to world, OpenCV axes.
        intrinsics: fx, fy, cx, cy in pixels.
        size: width, height.
        model, distortion: as `gart.cameras.Camera`.

    Raises:
        GartError: a number is not finite, the pose is no rigid motion, or gart lacks the lens.
    """
    matrix = np.asarray(pose, dtype=np.float64)
    if not np.isfinite(to_float32([*matrix.flat, *intrinsics, *distortion])).all():
        raise GartError("its pose, intrinsics or lens hold a number that is not finite")
    rotation = matrix[:, :3]
    if not np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-3) or np.linalg.det(rotation) < 0:
        raise GartError("its pose is not a rotation and a translation")
    fx, fy, cx, cy = map(float, intrinsics)
    lens = tuple(map(float, distortion))
    try:
        width, height = map(int, size)
        return Camera(torch.from_numpy(matrix).float(), fx, fy, cx, cy, width, height, model, lens)
    except (ValueError, OverflowError) as error:
        raise GartError(str(error)) from error


def to_float32(values: ArrayLike) -> NDArray[np.float32]:
    """Numbers beyond float32 become infinite, which the checks of what is not finite find."""
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float64).astype(np.float32)


def some(names: Collection[str], shown: int = 5) -> str:
    """The first few names, and how many more there are."""
    listed = ", ".join(sorted(names)[:shown])
    return listed if len(names) <= shown else f"{listed} and {len(names) - shown} more"
