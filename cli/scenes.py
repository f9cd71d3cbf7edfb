"""The scenes that help texts list."""

from __future__ import annotations

import textwrap

from gart.datasets.names import DEMO, scene_names


def scene_list() -> str:
    """Names a scene can be given by, one data set a line; \\b keeps help from joining the lines."""
    lines = ["Scene names:", f"{DEMO} (built in)"]
    for dataset, scenes in scene_names().items():
        lines += textwrap.wrap(f"{dataset}: {', '.join(scenes)}", 76, subsequent_indent="  ")
    return "\b\n" + "\n".join(lines)
