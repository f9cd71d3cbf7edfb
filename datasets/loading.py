"""`load`: from what the user wrote to a capture."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from gart.capture import Capture, View
from gart.datasets import llff, transforms
from gart.datasets.bundler import find_bundle, read_bundler
from gart.datasets.colmap import find_model, read_colmap
from gart.datasets.convert import read_detected
from gart.datasets.demo import demo_capture
from gart.datasets.downloads import dataset_folder
from gart.datasets.names import DEMO, find_name, unknown_name
from gart.datasets.photographs import IMAGE_SUFFIXES, check_present, read_view, shrink
from gart.datasets.posed import Photograph, Posed, some
from gart.datasets.split import divide
from gart.errors import GartError, UsageError

_SYNTHETIC_LOADER = "nerfbaselines.datasets.blender:load_blender_dataset"


def load_scene(scene: str, downscale: int, cache: Path | None) -> Capture:
    """See `gart.datasets.load`."""
    if downscale < 1:
        raise UsageError(f"downscale is {downscale}; expected a whole number of at least 1")
    if scene == DEMO:
        return demo_capture(downscale)
    folder = Path(scene).expanduser()
    if folder.is_dir():
        return _load_folder(folder.resolve(), str(folder.resolve()), downscale)
    if folder.is_file():
        raise UsageError(f"scene {scene} is a file; give the folder of the capture")
    found = find_name(scene)
    if found is None:
        raise unknown_name(scene)
    return _load_folder(dataset_folder(*found, cache), "/".join(found), downscale)


def _load_folder(folder: Path, source: str, downscale: int) -> Capture:
    posed = read_folder(folder)
    if bad := posed.bad_points:
        raise GartError(
            f"{bad} of the {len(posed.points)} points of {folder} are not finite; remove them from "
            "the model"
        )
    files = [p.path for p in posed.photographs]
    check_present([*files, *(p.mask for p in posed.photographs if p.mask is not None)])
    train, test, rule = divide(folder, posed)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        loaded = list(pool.map(lambda p: _load_view(p, downscale), [*train, *test]))
    views = [view for view, _ in loaded]
    metadata: dict[str, object] = {
        "source": source,
        "loader": posed.loader,
        "downscale": downscale,
        "split": rule,
        "unposed": count_unposed(posed),
        "unlisted": len(posed.photographs) - len(views),
        "rescaled": sum(rescaled for _, rescaled in loaded),
    }
    if posed.background is not None:
        metadata["alpha"] = f"photographs with alpha lie over RGB {list(posed.background)}"
    return Capture(
        name=folder.name,
        train=views[: len(train)],
        test=views[len(train) :],
        points=torch.from_numpy(posed.points),
        point_colors=torch.from_numpy(posed.point_colors),
        background=posed.background or (0.0, 0.0, 0.0),
        metadata=metadata,
    )


def read_folder(folder: Path) -> Posed:
    """By nb-info.json's loader where there is one, else by what lies in the folder.

    Raises:
        GartError: no reader knows it, or it is damaged, incomplete or contradicts itself.
    """
    loader, options = _read_info(folder)
    if loader == "colmap" or (loader is None and find_model(folder)):
        posed = read_colmap(folder, options)
    elif loader in (None, "nerfstudio") and (folder / transforms.FILE).is_file():
        posed = transforms.read_transforms(folder)
    elif loader in (None, _SYNTHETIC_LOADER) and (folder / transforms.TRAIN_FILE).is_file():
        posed = transforms.read_synthetic(folder)
    elif loader in (None, "llff") and (folder / llff.FILE).is_file():
        posed = llff.read_llff(folder, options)
    elif loader in (None, "bundler") and find_bundle(folder):
        posed = read_bundler(folder)
    else:
        posed = read_detected(folder)
    if not posed.photographs:
        raise GartError(f"{folder} poses no photographs ({posed.loader}); solve for poses first")
    files = Counter(os.path.normpath(p.path) for p in posed.photographs)
    if twice := {p.name for p in posed.photographs if files[os.path.normpath(p.path)] > 1}:
        raise GartError(f"{folder} poses photographs twice: {some(twice)}; keep one of each")
    return posed


def _read_info(folder: Path) -> tuple[str | None, Mapping[str, Any]]:
    """The loader of nb-info.json, if any, and its arguments."""
    file = folder / "nb-info.json"
    if not file.is_file():
        return None, {}
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise GartError(f"{file} cannot be read ({error}); mend or remove it") from error
    if not isinstance(info, dict):
        raise GartError(f"{file} holds {type(info).__name__}; expected a JSON object")
    loader, options = info.get("loader"), info.get("loader_kwargs") or {}
    if not isinstance(loader, str | None) or not isinstance(options, dict):
        raise GartError(
            f"{file} has loader {loader!r} with loader_kwargs {options!r}; expected a name and an "
            "object"
        )
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("images_path", "colmap_path", "masks_path"):
        if not isinstance(given.get(name, ""), str):
            raise GartError(f"{file} has {name} {given[name]!r}; expected a folder's name")
    return loader, given


def _load_view(photograph: Photograph, downscale: int) -> tuple[View, bool]:
    view, camera = read_view(photograph), photograph.camera
    rescaled = (view.camera.width, view.camera.height) != (camera.width, camera.height)
    return shrink(view, downscale), rescaled


def count_unposed(posed: Posed) -> int:
    """How many photographs lie in the capture's image folder that no camera belongs to."""
    if posed.images is None:
        return 0
    files = (p for p in posed.images.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    return len(set(files) - {p.path for p in posed.photographs})
