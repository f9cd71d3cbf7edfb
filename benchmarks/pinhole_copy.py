"""Writes a capture without lens distortion, for trainers that know pinhole cameras only.

    python benchmarks/pinhole_copy.py CAPTURE FOLDER

FOLDER becomes a COLMAP text model with PNG photographs, undistorted as `gart eval --mode tilegs`
does, the same split, and masks where a pixel has no source. Its poses, points and focal lengths are
the capture's. So gart and a rasterizer train on, and are judged by, the same pixels.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation
from torch import Tensor

from gart.capture import Capture, View
from gart.datasets import load
from gart.evaluation.views import photograph


def write_view(folder: Path, view: View) -> str:
    """Save the undistorted photograph, and its mask where there is one; its file name."""
    pixels, mask = photograph(view, "tilegs")
    name = str(Path(view.name).with_suffix(".png"))
    save(folder / "images" / name, pixels)
    if mask is not None and not mask.all():
        save(folder / "masks" / name, 255 * mask.byte())
    return name


def save(path: Path, pixels: Tensor) -> None:
    """An 8-bit PNG, its folder made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.numpy()).save(path)


def write_copy(capture: Capture, folder: Path) -> None:
    """The whole capture: `images`, `masks`, `sparse/0` and `split.txt`."""
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    cameras: dict[tuple[object, ...], int] = {}
    images: list[str] = []
    split: list[str] = []
    for part, views in (("train", capture.train), ("test", capture.test)):
        for view in views:
            camera = view.camera
            name = write_view(folder, view)
            lens = (camera.width, camera.height, camera.fx, camera.fy, camera.cx, camera.cy)
            key = cameras.setdefault(lens, len(cameras) + 1)
            rotation = Rotation.from_matrix(camera.viewmat[:3, :3].double().numpy())
            x, y, z, w = rotation.as_quat()
            pose = (w, x, y, z, *camera.viewmat[:3, 3].tolist())
            numbers = " ".join(repr(float(value)) for value in pose)
            images.append(f"{len(images) + 1} {numbers} {key} {name}\n\n")
            split.append(f"{part} {name}\n")
    (model / "cameras.txt").write_text(
        "".join(f"{key} PINHOLE {' '.join(map(repr, lens))}\n" for lens, key in cameras.items())
    )
    (model / "images.txt").write_text("".join(images))
    points = np.asarray(capture.points, np.float64)
    colors = np.asarray(capture.point_colors)
    (model / "points3D.txt").write_text(
        "".join(
            f"{i + 1} {' '.join(map(repr, xyz.tolist()))} {' '.join(map(str, rgb))} 0\n"
            for i, (xyz, rgb) in enumerate(zip(points, colors, strict=True))
        )
    )
    (folder / "split.txt").write_text("".join(split))


def main() -> None:
    """Copy the capture named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("capture", help="what gart train takes")
    parser.add_argument("folder", type=Path, help="a new folder")
    arguments = parser.parse_args()
    write_copy(load(arguments.capture), arguments.folder)


if __name__ == "__main__":
    main()
