"""COLMAP's model files, binary and text: cameras, images, points3D.

As COLMAP 3 and 4 write them; rigs and frames files beside them say nothing more about the images.
Read here because nerfbaselines cuts names with spaces and lacks half of the camera models.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MODELS = {
    0: ("SIMPLE_PINHOLE", 3),
    1: ("PINHOLE", 4),
    2: ("SIMPLE_RADIAL", 4),
    3: ("RADIAL", 5),
    4: ("OPENCV", 8),
    5: ("OPENCV_FISHEYE", 8),
    6: ("FULL_OPENCV", 12),
    7: ("FOV", 5),
    8: ("SIMPLE_RADIAL_FISHEYE", 4),
    9: ("RADIAL_FISHEYE", 5),
    10: ("THIN_PRISM_FISHEYE", 12),
    11: ("RAD_TAN_THIN_PRISM_FISHEYE", 16),
    12: ("SIMPLE_DIVISION", 4),
    13: ("DIVISION", 5),
    14: ("SIMPLE_FISHEYE", 3),
    15: ("FISHEYE", 4),
    16: ("EUCM", 6),
    17: ("EQUIRECTANGULAR", 2),
}
"""Number of a camera model in binary files -> its name and how many parameters it has."""


@dataclass(frozen=True)
class ModelCamera:
    """A camera as COLMAP states it; `model` is COLMAP's name."""

    model: str
    width: int
    height: int
    params: tuple[float, ...]


@dataclass(frozen=True)
class ModelImage:
    """A posed photograph.

    Attributes:
        name: as in the model.
        quaternion, translation: world to camera, w x y z.
        camera: key of the model's cameras.
        pixels: [P, 2] float64 keypoints.
        point_ids: [P] int64 the point that each keypoint sees, -1 for none.
    """

    name: str
    quaternion: tuple[float, ...]
    translation: tuple[float, ...]
    camera: int
    pixels: NDArray[np.float64]
    point_ids: NDArray[np.int64]


@dataclass(frozen=True)
class Points:
    """Sparse points: ids [M] int64, xyz [M, 3] float64, rgb [M, 3] uint8."""

    ids: NDArray[np.int64]
    xyz: NDArray[np.float64]
    rgb: NDArray[np.uint8]


def find_file(folder: Path, stem: str) -> Path | None:
    """`stem`.bin, else `stem`.txt, else None."""
    for suffix in (".bin", ".txt"):
        if (path := folder / (stem + suffix)).is_file():
            return path
    return None


def read_cameras(path: Path) -> dict[int, ModelCamera]:
    """Camera number -> camera.

    Raises:
        ValueError, struct.error, IndexError: the file is damaged; so for the other readers.
    """
    if path.suffix == ".txt":
        rows = (line.split() for line in _lines(path))
        return {
            int(number): ModelCamera(model, int(width), int(height), tuple(map(float, params)))
            for number, model, width, height, *params in rows
        }
    file = _Binary(path)
    cameras = {}
    for _ in range(file.count()):
        number, model, width, height = file.take("iiQQ")
        if model not in MODELS:
            raise ValueError(f"camera {number} is of model number {model}, which COLMAP 4 lacks")
        name, length = MODELS[model]
        cameras[number] = ModelCamera(name, width, height, file.take(f"{length}d"))
    return cameras


def read_images(path: Path) -> list[ModelImage]:
    """The images in the file's order."""
    images = list(_text_images(path) if path.suffix == ".txt" else _binary_images(path))
    if not images:
        raise ValueError(f"{path.name} has no images")
    return images


def _binary_images(path: Path) -> Iterator[ModelImage]:
    file = _Binary(path)
    keypoint = np.dtype([("pixel", "<f8", 2), ("point", "<i8")])
    for _ in range(file.count()):
        _, *pose, camera = file.take("i7di")
        name = file.name()
        points = file.array(keypoint, file.count())
        yield ModelImage(
            name, tuple(pose[:4]), tuple(pose[4:]), camera, points["pixel"], points["point"]
        )


def _text_images(path: Path) -> Iterator[ModelImage]:
    # Two lines an image; the second, of keypoints, may be empty and is no comment.
    # Not read as text, which would take a carriage return in a name for the end of a line.
    lines = iter(path.read_bytes().decode(errors="surrogateescape").split("\n"))
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        _, *pose, camera, name = line.split(maxsplit=9)
        values = np.array(next(lines, "").split(), np.float64).reshape(-1, 3)
        numbers = [float(value) for value in pose]
        yield ModelImage(
            name.rstrip("\r"),
            tuple(numbers[:4]),
            tuple(numbers[4:]),
            int(camera),
            values[:, :2],
            values[:, 2].astype(np.int64),
        )


def read_points(path: Path) -> Points:
    """The sparse points, without their tracks."""
    if path.suffix == ".txt":
        rows = [line.split(maxsplit=8)[:7] for line in _lines(path)]
        table = np.array(rows, np.float64).reshape(-1, 7)
        if not (np.abs(table[:, [0, 4, 5, 6]]) < 2**53).all():
            raise ValueError(f"{path.name} has a number or a colour that is no whole number")
        rgb = np.clip(table[:, 4:7], 0, 255).astype(np.uint8)
        return Points(table[:, 0].astype(np.int64), table[:, 1:4], rgb)
    file = _Binary(path)
    count = file.count()
    if count * 51 > len(file.data):  # the least bytes of a point: refuse before allocating
        raise ValueError(f"{path.name} says that it has {count} points and is too short for them")
    points = Points(np.empty(count, np.int64), np.empty((count, 3)), np.empty((count, 3), np.uint8))
    for i in range(count):
        points.ids[i], *xyz, r, g, b, _, length = file.take("q3d3BdQ")
        points.xyz[i], points.rgb[i] = xyz, (r, g, b)
        file.skip(8 * length)
    return points


class _Binary:
    """A little-endian file read from the front."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self._at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.data, self._at)
        self._at += struct.calcsize("<" + layout)
        return values

    def count(self) -> int:
        return int(self.take("Q")[0])

    def skip(self, size: int) -> None:
        if self._at + size > len(self.data):
            raise ValueError("the file ends early")
        self._at += size

    def name(self) -> str:
        end = self.data.index(b"\0", self._at)
        name = os.fsdecode(self.data[self._at : end])
        self._at = end + 1
        return name

    def array(self, dtype: np.dtype, count: int) -> NDArray:
        if self._at + count * dtype.itemsize > len(self.data):
            raise ValueError("the file ends early")
        values = np.frombuffer(self.data, dtype, count, self._at)
        self._at += values.nbytes
        return values


def _lines(path: Path) -> Iterator[str]:
    """Lines that are neither empty nor comments."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line
