"""Deep Blending for nerfbaselines, which lacks it: two scenes of the 3DGS authors' archive.

`gart.nerfbaselines.spec` registers it, so that nerfbaselines knows `external://deepblending/SCENE`.
"""

from __future__ import annotations

from pathlib import Path

import nerfbaselines

from gart.datasets.downloads import VERSION, download_scene
from gart.datasets.registry import DATASETS

DATASET = "deepblending"

SPEC = {
    "id": DATASET,
    "download_dataset_function": f"{__name__}:download",
    "evaluation_protocol": "default",
    "metadata": {
        "id": DATASET,
        "name": DATASETS[DATASET].title,
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
        "link": DATASETS[DATASET].homepage,
        "metrics": ["psnr", "ssim", "lpips"],
        "default_metric": "psnr",
        "scenes": [
            {"id": "drjohnson", "name": "Dr Johnson"},
            {"id": "playroom", "name": "Playroom"},
        ],
    },
}


def download(path: str, output: str) -> None:
    """Place `path` (`deepblending/SCENE`) of the archive at `output`, all of it or nothing."""
    dataset, _, scene = path.partition("/")
    scenes = DATASETS[DATASET].scenes
    if dataset != DATASET or scene not in scenes:
        raise nerfbaselines.DatasetNotFoundError(
            f"{path} is not a scene of {DATASET}; its scenes are {', '.join(scenes)}"
        )
    download_scene(DATASET, scene, Path(output), lambda done, total: None)


download.version = VERSION  # type: ignore[attr-defined]
