"""The scenes that help texts list."""

from __future__ import annotations

from gart.datasets.names import scene_names


def scene_list() -> str:
    """Names a scene can be given by, one data set a line; \\b keeps help from joining the lines."""
    lines = [f"{dataset}: {', '.join(scenes)}" for dataset, scenes in scene_names().items()]
    return "\b\n" + "\n".join(["Scene names:", "demo (built in)", *lines])
