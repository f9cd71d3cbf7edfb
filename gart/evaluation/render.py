"""Rendering many views to image files or to a video."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from gart.cameras import Camera
from gart.errors import GartError, UsageError
from gart.evaluation.views import Settings, render_view
from gart.io.images import save_depth, save_png
from gart.io.video import VideoFile
from gart.scene import Gaussians

OUTPUTS = ("color", "opacity", "depth")
PHOTO_SUFFIXES = {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".exr", ".heic"}

Report = Callable[[int, int, str], None]
"""Called after each view with: views done, views in all, and its name."""


def render_views(
    gaussians: Gaussians,
    views: Sequence[tuple[str, Camera]],
    output: str | Path,
    *,
    mode: str = "rt",
    background: tuple[float, float, float] = (0.0, 0.0, 0.0),
    outputs: Sequence[str] = ("color",),
    fps: float = 30.0,
    settings: Settings | None = None,
    report: Report = lambda done, total, name: None,
) -> None:
    """Render named cameras to `output`: a folder, or a video when it ends in .mp4.

    In a folder a view `a/b.jpg` becomes `a/b.png`, and with further outputs `a/b.opacity.png`,
    `a/b.depth.npy` (float32 scene units) and `a/b.depth.png` (to look at). Files appear whole or
    not at all; a video appears when it is complete, and shows colour.

    Raises:
        UsageError: an unknown mode or output, or further outputs with a video.
        GartError: nothing to render, two views for one file, cameras of several sizes for a video.
    """
    output = Path(output)
    if unknown := [name for name in outputs if name not in OUTPUTS]:
        raise UsageError(f"output is {unknown[0]!r}; expected some of {', '.join(OUTPUTS)}")
    if not views:
        raise GartError(f"there is no view to render to {output}; choose another split")
    backdrop = torch.tensor(background, device=gaussians.device)
    if output.suffix.lower() == ".mp4":
        if tuple(outputs) != ("color",):
            raise UsageError(f"{output}: a video shows colour only; write to a folder instead")
        with VideoFile(output, fps) as video:
            for i, (name, camera) in enumerate(views):
                video.add(render_view(gaussians, camera, mode, settings).over(backdrop))
                report(i + 1, len(views), name)
        return
    stems = [_stem(name) for name, _ in views]
    if len(set(stems)) < len(stems):
        double = next(stem for stem in stems if stems.count(stem) > 1)
        raise GartError(
            f"two views would be written to {output / double}.png; rename one photograph"
        )
    for i, (name, camera) in enumerate(views):
        rendering = render_view(gaussians, camera, mode, settings)
        base = str(output / stems[i])
        if "color" in outputs:
            save_png(f"{base}.png", rendering.over(backdrop))
        if "opacity" in outputs:
            save_png(f"{base}.opacity.png", rendering.opacity)
        if "depth" in outputs:
            save_depth(f"{base}.depth.npy", rendering.depth)
            save_depth(f"{base}.depth.png", rendering.depth)
        report(i + 1, len(views), name)


def _stem(name: str) -> str:
    """`name` without the suffix of an image file; other dots (frame.0001) belong to the name."""
    path = Path(name)
    return str(path.with_suffix("") if path.suffix.lower() in PHOTO_SUFFIXES else path)
