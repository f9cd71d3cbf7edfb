"""Deep Blending for nerfbaselines, which lacks it: two scenes of the 3DGS authors' archive."""

from __future__ import annotations

import nerfbaselines
from nerfbaselines.datasets._common import download_archive_dataset

DATASET = "deepblending"
URL = "https://repo-sam.inria.fr/fungraph/3d-gaussian-splatting/datasets/input/tandt_db.zip"
VERSION = "1"

SPEC = {
    "id": DATASET,
    "download_dataset_function": f"{__name__}:download",
    "evaluation_protocol": "default",
    "metadata": {
        "id": DATASET,
        "name": "Deep Blending",
        "description": "Two indoor captures, undistorted and posed by the authors of 3DGS.",
        "paper_title": "Deep Blending for Free-Viewpoint Image-Based Rendering",
        "paper_authors": [
            "Peter Hedman",
            "Julien Philip",
            "True Price",
            "Jan-Michael Frahm",
            "George Drettakis",
            "Gabriel Brostow",
        ],
        "link": "https://repo-sam.inria.fr/fungraph/3d-gaussian-splatting/",
        "metrics": ["psnr", "ssim", "lpips"],
        "default_metric": "psnr",
        "scenes": [
            {"id": "drjohnson", "name": "Dr Johnson"},
            {"id": "playroom", "name": "Playroom"},
        ],
    },
}


def register() -> None:
    """Make `external://deepblending/SCENE` known to nerfbaselines; again does nothing."""
    if DATASET not in nerfbaselines.get_supported_datasets():
        nerfbaselines.register(SPEC)


def download(path: str, output: str) -> None:
    """Place `path` (`deepblending/SCENE`) of the archive at `output`, all of it or nothing.

    The whole archive (650 MB) passes through a temporary file; only the scene is unpacked.
    """
    dataset, _, scene = path.partition("/")
    scenes = [entry["id"] for entry in SPEC["metadata"]["scenes"]]  # type: ignore[index]
    if dataset != DATASET or scene not in scenes:
        raise nerfbaselines.DatasetNotFoundError(
            f"{path} is not a scene of {DATASET}; its scenes are {', '.join(scenes)}"
        )
    download_archive_dataset(
        URL,
        str(output),
        archive_prefix=f"db/{scene}/",
        file_type="zip",
        nb_info={
            "id": DATASET,
            "scene": scene,
            "loader": "colmap",
            "loader_kwargs": {"images_path": "images", "colmap_path": "sparse/0"},
            "evaluation_protocol": "default",
            "version": VERSION,
        },
    )


download.version = VERSION  # type: ignore[attr-defined]
