"""Tiny captures on disk: cameras on a spiral, all looking at the origin."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

MODEL_IDS = {
    "SIMPLE_PINHOLE": 0,
    "PINHOLE": 1,
    "SIMPLE_RADIAL": 2,
    "RADIAL": 3,
    "OPENCV": 4,
    "OPENCV_FISHEYE": 5,
    "FULL_OPENCV": 6,
    "SIMPLE_RADIAL_FISHEYE": 8,
    "RADIAL_FISHEYE": 9,
}


def look_at_origin(index: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """World to camera, OpenCV axes: rotation [3, 3] and translation [3]."""
    azimuth, elevation = 2 * math.pi * index / count, 0.3 + 0.5 * index / count
    center = 4 * np.array(
        [
            math.cos(azimuth) * math.cos(elevation),
            math.sin(azimuth) * math.cos(elevation),
            math.sin(elevation),
        ]
    )
    forward = -center / np.linalg.norm(center)
    right = np.cross(forward, [0, 0, 1])
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    return rotation, -rotation @ center


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """(w, x, y, z) through the rotation vector."""
    vector = cv2.Rodrigues(rotation)[0][:, 0]
    angle = np.linalg.norm(vector)
    return np.array([math.cos(angle / 2), *(vector / angle * math.sin(angle / 2))])


def random_image(width: int, height: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """[H, W, C] uint8 noise."""
    shape = (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


@dataclass
class ColmapCapture:
    """A COLMAP capture to be written; attributes may be changed before `write`."""

    folder: Path
    lens: str = "PINHOLE"
    params: tuple[float, ...] = (30.0, 31.0, 16.5, 11.5)
    size: tuple[int, int] = (32, 24)
    count: int = 10
    images: str = "images"
    model: str = "sparse/0"
    names: list[str] = field(default_factory=list)

    def __post_init__(self):
        random = np.random.default_rng(1)
        self.names = self.names or [f"IMG_{i:03d}.png" for i in range(self.count)]
        self.points = random.uniform(-1, 1, (20, 3))
        self.colors = random.integers(0, 256, (20, 3))
        self.pixels = {}

    @property
    def poses(self):
        return {name: look_at_origin(i, self.count) for i, name in enumerate(self.names)}

    def write(self, *, binary: bool = False, has_points: bool = True) -> Path:
        model = self.folder / self.model
        model.mkdir(parents=True)
        (self._write_binary if binary else self._write_text)(model, has_points)
        for i, name in enumerate(self.names):
            self.pixels[name] = random_image(*self.size, seed=i)
            save_image(self.folder / self.images / name, self.pixels[name])
        return self.folder

    def _records(self):
        """Images out of name order, as COLMAP's often are: id, quaternion, translation, name."""
        poses = list(self.poses.items())
        for i in np.random.default_rng(2).permutation(self.count):
            name, (rotation, translation) = poses[i]
            yield 100 + int(i), [*quaternion(rotation), *translation], name

    def _write_text(self, model, has_points):
        width, height = self.size
        params = " ".join(map(repr, self.params))
        (model / "cameras.txt").write_text(f"# cameras\n7 {self.lens} {width} {height} {params}\n")
        lines = ["# images"]
        for image_id, pose, name in self._records():
            lines += [f"{image_id} {' '.join(map(repr, map(float, pose)))} 7 {name}", ""]
        (model / "images.txt").write_text("\n".join(lines) + "\n")
        if has_points:
            rows = [
                f"{i + 1} {x!r} {y!r} {z!r} {r} {g} {b} 0.5"
                for i, ((x, y, z), (r, g, b)) in enumerate(
                    zip(self.points.tolist(), self.colors.tolist(), strict=True)
                )
            ]
            (model / "points3D.txt").write_text("\n".join(rows) + "\n")

    def _write_binary(self, model, has_points):
        record = struct.pack("<iiQQ", 7, MODEL_IDS[self.lens], *self.size)
        record += struct.pack(f"<{len(self.params)}d", *self.params)
        (model / "cameras.bin").write_bytes(struct.pack("<Q", 1) + record)
        data = struct.pack("<Q", self.count)
        for image_id, pose, name in self._records():
            data += struct.pack("<i7di", image_id, *pose, 7) + name.encode() + b"\0"
            data += struct.pack("<Q", 0)
        (model / "images.bin").write_bytes(data)
        if has_points:
            data = struct.pack("<Q", len(self.points))
            for i, (xyz, rgb) in enumerate(zip(self.points, self.colors, strict=True)):
                data += struct.pack("<Q3d3BdQ", i + 1, *xyz, *rgb, 0.5, 0)
            (model / "points3D.bin").write_bytes(data)
