"""From nerfbaselines' data set to gart's cameras and points; its own detection of other formats."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from nerfbaselines import camera_model_from_int
from nerfbaselines.datasets import load_dataset
from nerfbaselines.datasets._common import MultiDatasetError

from gart.cameras import Camera
from gart.datasets.posed import Photograph, Posed, Split, make_camera, make_lens
from gart.errors import GartError
from gart.lenses import PARAMETERS

_ORDER = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")
"""nerfbaselines' order of coefficients, whatever the model; it may end early."""

_FEATURES = frozenset(("color", "points3D_xyz", "points3D_rgb"))


def read_detected(folder: Path) -> Posed:
    """Whatever else nerfbaselines detects or nb-info.json names, in that loader's own split.

    Raises:
        GartError: no loader of nerfbaselines can read it.
    """
    found: list[Posed] = []
    splits: tuple[Split, Split] = ("train", "test")
    for split in splits:
        try:
            dataset = load_dataset(
                str(folder),
                split,
                features=_FEATURES,
                # All lenses: nerfbaselines' undistortion of the others moves no pixel.
                supported_camera_models=frozenset(PARAMETERS),
                load_features=False,
            )
        except MultiDatasetError as error:
            reasons = "; ".join(f"{name}: {text}" for name, text in sorted(error.errors.items()))
            raise GartError(
                f"{folder} is not a capture that gart can read: it has no sparse/0 (COLMAP), "
                f"transforms.json or transforms_train.json, and nerfbaselines says {reasons}"
            ) from error
        except Exception as error:  # loaders fail in many ways on data they do not expect
            raise GartError(
                f"nerfbaselines cannot load the {split} photographs of {folder}: "
                f"{type(error).__name__}: {error}"
            ) from error
        found.append(_convert(dataset, folder, split))
    posed = found[0]
    posed.photographs += found[1].photographs
    return posed


def _convert(dataset: dict[str, Any], folder: Path, split: Split) -> Posed:
    """Convert a data set whose images are not loaded; all its photographs are in `split`."""
    cameras, root = dataset["cameras"], Path(dataset["image_paths_root"])
    masks = dataset["mask_paths"]
    photographs = []
    for i, path in enumerate(map(Path, dataset["image_paths"])):
        name = Path(os.path.relpath(path, root)).as_posix()
        try:
            camera = to_camera(cameras[i])
        except GartError as error:
            raise GartError(f"{folder} has a bad camera for {name}: {error}") from error
        mask = Path(masks[i]) if masks is not None else None
        photographs.append(Photograph(name, path, camera, mask, split))
    posed = Posed("nerfbaselines", photographs, root)
    if dataset["points3D_xyz"] is not None:
        posed.points = np.asarray(dataset["points3D_xyz"], np.float32).reshape(-1, 3)
        posed.point_colors = np.asarray(dataset["points3D_rgb"], np.uint8).reshape(-1, 3)
    background = dataset["metadata"].get("background_color")
    if background is not None:
        r, g, b = np.asarray(background, np.float64) / 255
        posed.background = (float(r), float(g), float(b))
    return posed


def to_camera(camera: Any) -> Camera:
    """A single camera of nerfbaselines (arrays without a leading axis).

    Raises:
        GartError: a number is not finite, the pose is no rigid motion, or gart lacks the lens.
    """
    model = camera_model_from_int(int(camera.camera_models))
    named = dict(zip(_ORDER, np.asarray(camera.distortion_parameters).tolist(), strict=False))
    if model == "opencv_fisheye":  # its p1 and p2 mean nothing
        named = {name: named.get(name, 0.0) for name in PARAMETERS[model]}
    return make_camera(
        camera.poses,
        np.asarray(camera.intrinsics).tolist(),
        np.asarray(camera.image_sizes).tolist(),
        *make_lens(model, named),
    )
