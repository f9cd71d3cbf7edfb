"""Named data sets: where they lie, and fetching them with nerfbaselines' downloaders."""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import nerfbaselines
from nerfbaselines.datasets import blender, download_dataset, tanksandtemples

from gart.datasets import deepblending
from gart.errors import GartError

_FAILURES = (OSError, RuntimeError, zipfile.BadZipFile, tarfile.TarError, EOFError)


def cache_folder() -> Path:
    """Where named data sets are downloaded to: nerfbaselines' folder, so that both share them."""
    return Path(nerfbaselines.NB_PREFIX) / "datasets"


def dataset_folder(dataset: str, scene: str, cache: Path | None) -> Path:
    """The folder of a named scene, downloaded when it is not there.

    nerfbaselines' own `load_dataset` deletes a folder in its cache whose nb-info.json is absent or
    of another version, so it is not used for these: a folder that no downloader placed is refused.

    Raises:
        GartError: the folder was placed by hand, or the download failed.
    """
    deepblending.register()
    folder = (cache or cache_folder()) / dataset / scene
    if folder.exists():
        _check_origin(folder, getattr(_downloader(dataset), "version", None))
        return folder
    address = _address(dataset, scene)
    try:
        download_dataset(f"external://{dataset}/{scene}", folder)
    except _FAILURES as error:
        reason = getattr(error, "reason", None) or error
        layout = "transforms_train.json" if dataset == "blender" else "images/ and sparse/0/"
        raise GartError(
            f"could not download {dataset}/{scene} from {address} ({reason}); fetch and unpack it "
            f"elsewhere and give the folder that holds {layout}, for example: "
            f"gart train path/to/{scene}"
        ) from error
    return folder


def _check_origin(folder: Path, version: str | None) -> None:
    info = folder / "nb-info.json"
    try:
        found = json.loads(info.read_text(encoding="utf-8"))
        if version is None or found.get("version") == version:
            return
        problem = f"its nb-info.json has version {found.get('version')!r}, not {version!r}"
    except (OSError, ValueError, AttributeError):
        problem = "it has no readable nb-info.json"
    raise GartError(
        f"{folder} was not placed there by this downloader ({problem}) and is left as it is; "
        f"use it directly with: gart train {folder}, or move it away to download the data set"
    )


def _downloader(dataset: str) -> Callable[..., None]:
    spec = nerfbaselines.get_dataset_spec(dataset)
    module, _, name = spec["download_dataset_function"].partition(":")
    function: Callable[..., None] = getattr(import_module(module), name)
    return function


def _address(dataset: str, scene: str) -> str:
    """What the downloader will ask for; its errors do not say."""
    if dataset == "deepblending":
        return deepblending.URL
    if dataset == "tanksandtemples":
        return tanksandtemples._URL2DOWN.format(scene=scene)
    if dataset == "blender":
        return blender._URL.format(scene=scene)
    if scene in ("flowers", "treehill"):
        return "https://storage.googleapis.com/gresearch/refraw360/360_extra_scenes.zip"
    return "http://storage.googleapis.com/gresearch/refraw360/360_v2.zip"
