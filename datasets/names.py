"""The scenes that can be given by name. Imports nothing heavy: help texts list them."""

from __future__ import annotations

import difflib

from gart.datasets.registry import DATASETS
from gart.errors import UsageError

DEMO = "demo"


def scene_names() -> dict[str, list[str]]:
    """Data set -> its scenes. No scene name occurs twice, so each stands for itself."""
    return {name: list(dataset.scenes) for name, dataset in DATASETS.items()}


def find_name(scene: str) -> tuple[str, str] | None:
    """(data set, scene) of `scene` or `dataset/scene`, or None."""
    for dataset, scenes in scene_names().items():
        for name in scenes:
            if scene in (name, f"{dataset}/{name}"):
                return dataset, name
    return None


def unknown_name(scene: str) -> UsageError:
    """The error for a scene that is neither a folder nor a name."""
    known = [DEMO]
    for dataset, scenes in scene_names().items():
        known += [*scenes, *(f"{dataset}/{name}" for name in scenes)]
    near = difflib.get_close_matches(scene, known, n=3)
    guess = f" did you mean {' or '.join(near)}?" if near else ""
    return UsageError(
        f"scene {scene!r} is neither an existing folder nor a known name;{guess} "
        "gart train --help lists the names"
    )
