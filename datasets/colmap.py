"""COLMAP captures: a model and the photographs that it poses."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gart.cameras import Camera, panorama_intrinsics
from gart.datasets.colmap_model import (
    ModelCamera,
    ModelImage,
    Points,
    find_file,
    read_cameras,
    read_images,
    read_points,
)
from gart.datasets.photographs import find_image
from gart.datasets.posed import Photograph, Posed, make_camera, make_lens, to_float32
from gart.errors import GartError

MODEL_FOLDERS = ("sparse/0", "sparse", "colmap/sparse/0")

_LENSES = {
    "SIMPLE_PINHOLE": ("pinhole", "f cx cy"),
    "PINHOLE": ("pinhole", "fx fy cx cy"),
    "SIMPLE_RADIAL": ("opencv", "f cx cy k1"),
    "RADIAL": ("opencv", "f cx cy k1 k2"),
    "OPENCV": ("opencv", "fx fy cx cy k1 k2 p1 p2"),
    "FULL_OPENCV": ("full_opencv", "fx fy cx cy k1 k2 p1 p2 k3 k4 k5 k6"),
    "FOV": ("fov", "fx fy cx cy omega"),
    "SIMPLE_FISHEYE": ("opencv_fisheye", "f cx cy"),
    "FISHEYE": ("opencv_fisheye", "fx fy cx cy"),
    "SIMPLE_RADIAL_FISHEYE": ("opencv_fisheye", "f cx cy k1"),
    "RADIAL_FISHEYE": ("opencv_fisheye", "f cx cy k1 k2"),
    "OPENCV_FISHEYE": ("opencv_fisheye", "fx fy cx cy k1 k2 k3 k4"),
    "THIN_PRISM_FISHEYE": ("thin_prism_fisheye", "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1"),
    "EQUIRECTANGULAR": ("equirectangular", "w h"),
}
"""COLMAP's camera model -> gart's, and the order of its parameters."""

_DAMAGE = (struct.error, ValueError, LookupError, OSError, TypeError)


def find_model(folder: Path) -> str | None:
    """The model inside a capture folder, relative to it, or None."""
    for model in MODEL_FOLDERS:
        if find_file(folder / model, "cameras"):
            return model
    return None


def read_colmap(folder: Path, options: Mapping[str, str]) -> Posed:
    """All posed photographs of `folder`, lens distortion kept, with the sparse points if any.

    Args:
        folder: the capture.
        options: nb-info.json's loader_kwargs; images_path, colmap_path and masks_path are used.

    Raises:
        GartError: no images folder, an incomplete or damaged model, or an unsupported lens.
    """
    model = folder / (options.get("colmap_path") or find_model(folder) or MODEL_FOLDERS[0])
    images_path = options.get("images_path", "images")
    root = folder / images_path
    if not root.is_dir():
        raise GartError(_no_images(folder, images_path))
    files = {stem: find_file(model, stem) for stem in ("cameras", "images", "points3D")}
    for stem in ("cameras", "images"):
        if files[stem] is None:
            raise GartError(
                f"{folder} is not a complete COLMAP capture: {model} has neither {stem}.bin nor "
                f"{stem}.txt; export the model again with `colmap model_converter`"
            )
    try:
        cameras = read_cameras(files["cameras"])  # type: ignore[arg-type]
        images = read_images(files["images"])  # type: ignore[arg-type]
        points = read_points(files["points3D"]) if files["points3D"] else None
        if unknown := {image.camera for image in images} - cameras.keys():
            raise ValueError(f"images name camera {min(unknown)}, which cameras lacks")
    except _DAMAGE as error:
        raise GartError(
            f"the COLMAP model in {model} cannot be read ({type(error).__name__}: {error}); export "
            "it again with `colmap model_converter`"
        ) from error
    masks = folder / options.get("masks_path", "masks")
    posed = Posed("colmap", [], root.resolve())
    rows = _Rows(points)
    for image in images:
        posed.photographs.append(
            Photograph(
                image.name,
                find_image(root.resolve(), image.name),
                _camera(model, image, cameras[image.camera]),
                _mask(masks, image.name) if masks.is_dir() else None,
                None,
                *rows.seen(image),
            )
        )
    if points is not None:
        posed.points = to_float32(points.xyz)
        posed.point_colors = points.rgb
    return posed


def _camera(model: Path, image: ModelImage, camera: ModelCamera) -> Camera:
    if camera.model not in _LENSES:
        raise GartError(
            f"{model} has a camera of model {camera.model}, which gart does not support; undistort "
            "the capture with `colmap image_undistorter`, or reconstruct it with one of "
            f"{', '.join(_LENSES)}"
        )
    lens, order = _LENSES[camera.model]
    try:
        if len(camera.params) != len(order.split()):
            raise GartError(f"{camera.model} has the parameters {order}, not {camera.params}")
        named = dict(zip(order.split(), camera.params, strict=True))
        if lens == "equirectangular":
            intrinsics = panorama_intrinsics(named.pop("w"), named.pop("h"))
        else:
            intrinsics = _intrinsics(named)
        size = (camera.width, camera.height)
        return make_camera(_camera_to_world(image), intrinsics, size, *make_lens(lens, named))
    except GartError as error:
        raise GartError(f"{model} has a bad camera for {image.name}: {error}") from error


def _intrinsics(named: dict[str, float]) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy, taken out of `named`."""
    f = named.pop("f", None)
    fx, fy = (named.pop("fx"), named.pop("fy")) if f is None else (f, f)
    return fx, fy, named.pop("cx"), named.pop("cy")


def _camera_to_world(image: ModelImage) -> NDArray[np.float64]:
    """[3, 4]; a quaternion that is no rotation gives NaN, which `make_camera` refuses."""
    quaternion = np.array(image.quaternion)
    with np.errstate(invalid="ignore"):
        w, x, y, z = quaternion / np.linalg.norm(quaternion)
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    center = -rotation.T @ np.array(image.translation)
    return np.concatenate([rotation.T, center[:, None]], 1)


def _mask(masks: Path, name: str) -> Path:
    """COLMAP's own mask of IMAGE.jpg is IMAGE.jpg.png; nerfbaselines' is IMAGE.png."""
    whole = masks / f"{name}.png"
    return whole if whole.is_file() else (masks / name).with_suffix(".png")


class _Rows:
    """Which row of the points each keypoint sees."""

    def __init__(self, points: Points | None) -> None:
        ids = np.zeros(0, np.int64) if points is None else points.ids
        self._order = np.argsort(ids)
        self._ids = ids[self._order]

    def seen(self, image: ModelImage) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Keypoints [P, 2] that see a point, and its row [P]."""
        if not len(self._ids):
            return np.zeros((0, 2)), np.zeros(0, np.int64)
        at = np.searchsorted(self._ids, image.point_ids).clip(max=len(self._ids) - 1)
        known = self._ids[at] == image.point_ids
        return image.pixels[known], self._order[at[known]]


def _no_images(folder: Path, images: str) -> str:
    others = sorted(path.name for path in folder.glob("images*") if path.is_dir())
    if not others:
        return f"{folder} has a COLMAP model but no folder {images} with its photographs"
    return (
        f"{folder} has no folder {images} but has {', '.join(others)}; rename one, or choose it in "
        f'{folder / "nb-info.json"}: {{"loader": "colmap", '
        f'"loader_kwargs": {{"images_path": "{others[0]}"}}}}'
    )
