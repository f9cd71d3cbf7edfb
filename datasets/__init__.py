"""Scene names and folders become captures; installed as `gart.datasets`.

Importing this package costs nothing: torch and nerfbaselines come with the first `load`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gart.datasets.names import scene_names

if TYPE_CHECKING:
    from gart.capture import Capture

__all__ = ["load", "scene_names"]


def load(scene: str, *, downscale: int = 1, cache: Path | None = None) -> Capture:
    """The photographs, cameras and sparse points of a scene.

    Args:
        scene: a folder, a name of `scene_names` (`garden`, `mipnerf360/garden`), or `demo`.
            An existing folder wins over a name; `demo` is always the built-in scene.
        downscale: make the photographs this many times smaller, by area averaging.
        cache: where downloaded data sets lie; by default $GART_DATA, or nerfbaselines' folder.

    Raises:
        UsageError: no such scene, or a downscale below 1.
        GartError: what the scene needs is missing, damaged or contradicts itself, or cannot be
            downloaded.
    """
    from gart.datasets.loading import load_scene

    return load_scene(scene, downscale, cache)
