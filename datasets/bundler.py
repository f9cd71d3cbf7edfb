"""bundle.out of Bundler (Snavely et al. 2006), which COLMAP, VisualSFM and others write too.

A camera is f k1 k2, then the world-to-camera rotation by rows and the translation, with y up and z
backwards; the principal point is the image's middle. list.txt names the photographs in order.
nerfbaselines takes f k1 k2 for f cx cy.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from gart.cameras import Camera
from gart.datasets.photographs import find_image, image_size
from gart.datasets.posed import Photograph, Posed, make_camera, make_lens, to_float32
from gart.errors import GartError

FILES = ("bundle.out", "bundle/bundle.out")

_LISTS = ("bundle.out.list.txt", "list.txt", "../list.txt")
_HEADER = "# Bundle file v0.3"
_TRAIL = re.compile(r"\s+\d+(\s+[\d.eE+-]+)?$")
"""What list.txt may say after a name: a flag and a focal length."""


def find_bundle(folder: Path) -> Path | None:
    """The bundle file inside a capture folder, or None."""
    return next((folder / file for file in FILES if (folder / file).is_file()), None)


def read_bundler(folder: Path) -> Posed:
    """The posed photographs of a bundle file; cameras of focal length 0 are not posed.

    Raises:
        GartError: the file is damaged, there is no list.txt, or a photograph is missing.
    """
    file = find_bundle(folder)
    assert file is not None
    try:
        lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
        if not lines[0].startswith(_HEADER):
            raise ValueError(f"its first line is {lines[0]!r}, not {_HEADER}")
        count, point_count = map(int, lines[1].split())
        cameras = np.array([line.split() for line in lines[2 : 2 + 5 * count]], np.float64)
        points = lines[2 + 5 * count : 2 + 5 * count + 3 * point_count]
        xyz = np.array([line.split() for line in points[::3]], np.float64).reshape(-1, 3)
        rgb = np.array([line.split() for line in points[1::3]], np.float64).reshape(-1, 3)
        if cameras.shape != (5 * count, 3) or not len(xyz) == len(rgb) == point_count:
            raise ValueError(f"it ends before its {count} cameras and {point_count} points")
    except (OSError, ValueError, IndexError) as error:
        raise GartError(f"{file} cannot be read ({error})") from error
    names = _names(file)
    if len(names) != count:
        raise GartError(f"{file} has {count} cameras and its list names {len(names)} photographs")
    posed = Posed("bundler", [])
    for name, values in zip(names, cameras.reshape(count, 5, 3), strict=True):
        if values[0, 0] == 0:
            continue
        path = _find(folder, file.parent, name)
        try:
            camera = _camera(path, values)
        except GartError as error:
            raise GartError(f"{file} has a bad camera for {name}: {error}") from error
        posed.photographs.append(Photograph(name, path, camera))
    posed.points, posed.point_colors = to_float32(xyz), np.clip(rgb, 0, 255).astype(np.uint8)
    return posed


def _names(file: Path) -> list[str]:
    for path in (file.parent / name for name in _LISTS):
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
            return [_TRAIL.sub("", line.strip()) for line in text.split("\n") if line.strip()]
    raise GartError(f"{file} needs a file list.txt beside it, with the photographs' names by line")


def _find(folder: Path, beside: Path, name: str) -> Path:
    """Names are relative to the list, the capture or its image folder."""
    for root in (beside, folder, folder / "images"):
        if (path := find_image(root, name)).is_file():
            return path
    raise GartError(f"{folder} lacks the photograph {name} that its bundle file names")


def _camera(path: Path, values: np.ndarray) -> Camera:
    width, height = image_size(path)
    focal, k1, k2 = values[0]
    rotation, translation = values[1:4], values[4]
    # Bundler's camera axes to OpenCV's: y and z the other way round.
    pose = np.concatenate([rotation.T * [1, -1, -1], (-rotation.T @ translation)[:, None]], 1)
    lens = make_lens("opencv", {"k1": k1, "k2": k2})
    return make_camera(pose, (focal, focal, width / 2, height / 2), (width, height), *lens)
