"""COLMAP models, read by nerfbaselines."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from nerfbaselines import DatasetNotFoundError
from nerfbaselines.datasets.colmap import load_colmap_dataset

from gart.datasets.convert import FEATURES, from_nerfbaselines
from gart.datasets.posed import Posed
from gart.errors import GartError

MODEL_FOLDERS = ("sparse/0", "sparse", "colmap/sparse/0")

_DAMAGE = (struct.error, ValueError, LookupError, AssertionError, OSError, TypeError)


def find_model(folder: Path) -> str | None:
    """The model inside a capture folder, relative to it, or None."""
    for model in MODEL_FOLDERS:
        if any((folder / model / f"cameras.{kind}").is_file() for kind in ("bin", "txt")):
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
    model = options.get("colmap_path") or find_model(folder) or MODEL_FOLDERS[0]
    has_points = any((folder / model / f"points3D.{kind}").is_file() for kind in ("bin", "txt"))
    images = options.get("images_path", "images")
    if not (folder / images).is_dir():
        raise GartError(_no_images(folder, images))
    try:
        dataset = load_colmap_dataset(
            folder,
            None,  # no split: gart makes it from the names
            features=FEATURES if has_points else None,
            images_path=images,
            colmap_path=model,
            masks_path=options.get("masks_path"),
        )
    except DatasetNotFoundError as error:
        raise GartError(f"{folder} is not a complete COLMAP capture: {error}") from error
    except NotImplementedError as error:
        lens = str(error).split()[0]
        raise GartError(
            f"{folder / model} has a camera of model {lens}, which gart does not support; "
            "undistort the capture with `colmap image_undistorter`, or reconstruct it with the "
            "camera model OPENCV or OPENCV_FISHEYE"
        ) from error
    except _DAMAGE as error:
        raise GartError(
            f"the COLMAP model in {folder / model} cannot be read ({type(error).__name__}: "
            f"{error}); export it again with `colmap model_converter`"
        ) from error
    return from_nerfbaselines(dataset, "colmap", folder / model)


def _no_images(folder: Path, images: str) -> str:
    others = sorted(path.name for path in folder.glob("images*") if path.is_dir())
    if not others:
        return f"{folder} has a COLMAP model but no folder {images} with its photographs"
    return (
        f"{folder} has no folder {images} but has {', '.join(others)}; rename one, or choose it in "
        f'{folder / "nb-info.json"}: {{"loader": "colmap", '
        f'"loader_kwargs": {{"images_path": "{others[0]}"}}}}'
    )
