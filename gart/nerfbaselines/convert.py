"""nerfbaselines' loaded training sets as gart's captures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gart.capture import Capture, View
from gart.datasets.convert import to_camera
from gart.errors import GartError


def to_capture(dataset: dict[str, Any]) -> Capture:
    """A loaded training set of nerfbaselines, as training views.

    Raises:
        GartError: images that are not 8-bit sRGB, or a bad camera; the message names the image.
    """
    metadata = dataset["metadata"]
    if (space := metadata.get("color_space", "srgb")) != "srgb":
        raise GartError(f"the data set's images have color_space {space!r}; gart trains on srgb")
    background = metadata.get("background_color")
    points, colors = dataset["points3D_xyz"], dataset["points3D_rgb"]
    capture = Capture(
        name=str(metadata.get("scene") or Path(dataset["image_paths_root"]).parent.name),
        train=[_view(dataset, i) for i in range(len(dataset["image_paths"]))],
        test=[],
        metadata={"source": "nerfbaselines"},
    )
    if background is not None:
        r, g, b = (np.asarray(background, np.float64) / 255).tolist()
        capture.background = (r, g, b)
    if points is not None and colors is not None:
        capture.points = torch.from_numpy(np.array(points, np.float32).reshape(-1, 3))
        capture.point_colors = torch.from_numpy(np.array(colors, np.uint8).reshape(-1, 3))
    return capture


def _view(dataset: dict[str, Any], index: int) -> View:
    name = os.path.relpath(dataset["image_paths"][index], dataset["image_paths_root"])
    try:
        camera = to_camera(dataset["cameras"][index])
    except GartError as error:
        raise GartError(f"{name} has a bad camera: {error}") from error
    # Images of mixed sizes may be padded to one.
    image = np.asarray(dataset["images"][index])[: camera.height, : camera.width]
    if image.dtype != np.uint8 or image.shape != (camera.height, camera.width, image.shape[-1]):
        raise GartError(
            f"{name} is {image.dtype} of shape {list(image.shape)}; "
            f"expected uint8 of {camera.height} x {camera.width} pixels"
        )
    mask = None
    if dataset["masks"] is not None:
        cropped = np.asarray(dataset["masks"][index])[: camera.height, : camera.width]
        mask = torch.from_numpy(np.ascontiguousarray(cropped > 0))
    return View(Path(name).as_posix(), camera, torch.from_numpy(image.copy()), mask)
