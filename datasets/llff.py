"""poses_bounds.npy (LLFF: Mildenhall et al. 2019): a pinhole camera for every photograph.

A row holds a 3 x 5 matrix and two depth bounds: the camera-to-world rotation with columns down,
right and backwards, the centre, and height, width, focal length in pixels of the full-size
photographs. Rows follow the photographs by sorted name. There are no points.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gart.datasets.photographs import IMAGE_SUFFIXES
from gart.datasets.posed import Photograph, Posed, make_camera
from gart.errors import GartError

FILE = "poses_bounds.npy"


def read_llff(folder: Path, options: Mapping[str, str]) -> Posed:
    """The photographs of `images`, or of the first folder images_N if there is none.

    Args:
        folder: the capture.
        options: nb-info.json's loader_kwargs; images_path is used.

    Raises:
        GartError: the file is damaged, or does not fit the photographs.
    """
    file = folder / FILE
    try:
        # A header can promise any size: mapped, it is refused where the file is shorter.
        rows = np.lib.format.open_memmap(file, mode="r")
    except (OSError, ValueError, OverflowError) as error:
        raise GartError(f"{file} cannot be read ({error}); make it again with LLFF") from error
    if rows.ndim != 2 or rows.shape[1] != 17 or rows.dtype.kind not in "fiu":
        raise GartError(
            f"{file} holds {rows.dtype} values of shape {list(rows.shape)}; expected numbers of "
            "shape [photographs, 17]"
        )
    images = _images(folder, options.get("images_path"))
    files = sorted(p for p in images.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
    if len(files) != len(rows):
        raise GartError(
            f"{file} has {len(rows)} poses and {images} has {len(files)} photographs; they belong "
            "together by sorted name, so remove or add what is not in both"
        )
    photographs = []
    for path, row in zip(files, rows.astype(np.float64), strict=True):
        matrix = row[:15].reshape(3, 5)
        height, width, focal = matrix[:, 4]
        down, right, back = matrix[:, :3].T
        pose = np.stack([right, down, -back, matrix[:, 3]], 1)
        try:
            camera = make_camera(
                pose, (focal, focal, width / 2, height / 2), (width, height), "pinhole", ()
            )
        except GartError as error:
            raise GartError(f"{file} has a bad camera for {path.name}: {error}") from error
        photographs.append(Photograph(path.name, path, camera))
    return Posed("llff", photographs, images)


def _images(folder: Path, chosen: str | None) -> Path:
    wanted = [folder / (chosen or "images")]
    if chosen is None:
        wanted += sorted(folder.glob("images_*"))
    for path in wanted:
        if path.is_dir():
            return path
    raise GartError(f"{folder} has {FILE} but no folder {wanted[0].name} with its photographs")
