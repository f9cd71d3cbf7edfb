"""transforms.json (instant-ngp, nerfstudio) and transforms_{train,test}.json (NeRF-synthetic).

Read here and not by nerfbaselines, which swaps p1 and p2, needs k1..k4 to be present, holds out
other photographs than for COLMAP, and takes every NeRF-synthetic photograph for 800 x 800 pixels.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gart.cameras import Camera, panorama_intrinsics
from gart.datasets.photographs import IMAGE_SUFFIXES, check_present, image_size
from gart.datasets.posed import Photograph, Posed, Split, make_camera, make_lens
from gart.errors import GartError
from gart.lenses import PARAMETERS

FILE = "transforms.json"
TRAIN_FILE = "transforms_train.json"
TEST_FILE = "transforms_test.json"

_WHITE = (1.0, 1.0, 1.0)
_MODELS = {
    **dict.fromkeys(("SIMPLE_PINHOLE", "PINHOLE"), "pinhole"),
    **dict.fromkeys(("SIMPLE_RADIAL", "RADIAL", "OPENCV"), "opencv"),
    "OPENCV_FISHEYE": "opencv_fisheye",
    "FULL_OPENCV": "full_opencv",
    "THIN_PRISM_FISHEYE": "thin_prism_fisheye",
    "EQUIRECTANGULAR": "equirectangular",
}
_COEFFICIENTS = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6", "sx1", "sy1")


def read_transforms(folder: Path) -> Posed:
    """The frames of transforms.json; photographs are named relative to the folder of them all.

    Raises:
        GartError: the file is damaged, lacks something, or has a lens that is not supported.
    """
    meta = _read(folder / FILE)
    photographs = [
        _photograph(folder, folder / FILE, meta, frame, None) for frame in meta["frames"]
    ]
    root = Path(os.path.commonpath([p.path.parent for p in photographs]))
    own_split = _own_split(folder, meta)
    named = [
        replace(p, name=p.path.relative_to(root).as_posix(), split=own_split.get(p.path))
        for p in photographs
    ]
    posed = Posed("transforms", named, root)
    if "ply_file_path" in meta:
        posed.points, posed.point_colors = _read_points(folder / meta["ply_file_path"])
    return posed


def read_synthetic(folder: Path) -> Posed:
    """The frames of transforms_train.json and transforms_test.json, over white.

    Raises:
        GartError: as `read_transforms`.
    """
    files: dict[str, Split | None] = {TRAIN_FILE: "train", TEST_FILE: "test"}
    if not (folder / TEST_FILE).is_file():
        files = {TRAIN_FILE: None}
    photographs = []
    for file, split in files.items():
        photographs += _photographs(folder, folder / file, _read(folder / file), split)
    return Posed("blender", photographs, background=_WHITE)


def _read(file: Path) -> dict[str, Any]:
    """The file's object with a list of frames that name images; null counts as absent."""
    try:
        meta = _without_nulls(json.loads(file.read_text(encoding="utf-8")))
        if not isinstance(meta["frames"], list) or not meta["frames"]:
            raise ValueError("no frames")
        meta["frames"] = [_without_nulls(frame) for frame in meta["frames"]]
        texts = [meta.get("ply_file_path", ""), *(f["file_path"] for f in meta["frames"])]
        texts += [frame.get("mask_path", "") for frame in meta["frames"]]
        for name in ("train_filenames", "val_filenames", "test_filenames"):
            texts += list(meta.get(name, []))
        if wrong := [text for text in texts if not isinstance(text, str) or "\0" in text]:
            raise ValueError(f"{wrong[0]!r} is no file's name")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GartError(
            f"{file} cannot be read ({type(error).__name__}: {error}); write it again"
        ) from error
    return meta


def _without_nulls(value: Any) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item is not None}


def _photographs(
    folder: Path, file: Path, meta: Mapping[str, Any], split: Split | None
) -> list[Photograph]:
    # Before the cameras: those without a size take it from the image.
    check_present([_image_path(folder, frame["file_path"]) for frame in meta["frames"]])
    return [_photograph(folder, file, meta, frame, split) for frame in meta["frames"]]


def _photograph(
    folder: Path, file: Path, meta: Mapping[str, Any], frame: Mapping[str, Any], split: Split | None
) -> Photograph:
    name = frame["file_path"]
    path = _image_path(folder, name)
    try:
        camera = _camera(path, {**meta, **frame})
    except KeyError as error:
        raise GartError(f"{file} lacks {error} for {name}") from error
    except (GartError, TypeError, ValueError, ArithmeticError, IndexError) as error:
        raise GartError(f"{file} has a bad camera for {name}: {error}") from error
    mask = folder / frame["mask_path"] if "mask_path" in frame else None
    name = Path(os.path.relpath(path, folder)).as_posix()
    return Photograph(name, path, camera, mask, split)


def _image_path(folder: Path, name: str) -> Path:
    path = Path(os.path.normpath(folder / name.replace("\\", "/")))
    return path if path.suffix.lower() in IMAGE_SUFFIXES else path.with_name(path.name + ".png")


def _camera(path: Path, values: Mapping[str, Any]) -> Camera:
    model = values.get("camera_model", "OPENCV_FISHEYE" if values.get("is_fisheye") else "OPENCV")
    if model not in _MODELS:
        raise GartError(f"its camera_model is {model!r}; allowed are {', '.join(_MODELS)}")
    if "w" in values and "h" in values:
        width, height = int(values["w"]), int(values["h"])
    else:
        width, height = image_size(path)
    pose = np.array(values["transform_matrix"], np.float64)[:3]
    if pose.shape != (3, 4):
        raise GartError(f"its transform_matrix has shape {list(pose.shape)}; expected 4 x 4")
    pose = pose * np.array([1, -1, -1, 1])  # OpenGL's camera axes (y up, z back) to OpenCV's
    lens = _MODELS[model]
    if lens == "equirectangular":  # focal lengths, if there are any, mean nothing
        return make_camera(pose, panorama_intrinsics(width, height), (width, height), lens, ())
    if "fl_x" in values:
        fx = float(values["fl_x"])
    else:
        fx = 0.5 * width / math.tan(0.5 * float(values["camera_angle_x"]))
    if "fl_y" in values:
        fy = float(values["fl_y"])
    elif "camera_angle_y" in values:
        fy = 0.5 * height / math.tan(0.5 * float(values["camera_angle_y"]))
    else:
        fy = fx
    center = (float(values.get("cx", width / 2)), float(values.get("cy", height / 2)))
    # Writers give a pinhole or fisheye the same keys as any lens: those it lacks mean nothing.
    keys = PARAMETERS[lens] if lens in ("pinhole", "opencv_fisheye") else _COEFFICIENTS
    named = {key: float(values[key]) for key in keys if key in values}
    return make_camera(pose, (fx, fy, *center), (width, height), *make_lens(lens, named))


def _own_split(folder: Path, meta: Mapping[str, Any]) -> dict[Path, Split]:
    """nerfstudio's train_filenames and test_filenames; val stands in for a test list."""
    split: dict[Path, Split] = {}
    for name in meta.get("train_filenames", []):
        split[_image_path(folder, name)] = "train"
    for name in meta.get("test_filenames") or meta.get("val_filenames") or []:
        split[_image_path(folder, name)] = "test"
    return split


def _read_points(file: Path) -> tuple[np.ndarray, np.ndarray]:
    from plyfile import PlyData, PlyParseError

    try:
        vertex = PlyData.read(str(file))["vertex"]
        xyz = np.stack([vertex[axis] for axis in "xyz"], -1).astype(np.float32)
        rgb = np.stack([vertex[channel] for channel in ("red", "green", "blue")], -1)
    except (OSError, PlyParseError, KeyError, ValueError) as error:
        raise GartError(f"the points {file} cannot be read ({error})") from error
    return xyz, rgb.astype(np.uint8)
