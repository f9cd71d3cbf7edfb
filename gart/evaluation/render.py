"""Rendering many views to image files or to a video."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.errors import GartError, UsageError
from gart.evaluation.kept import KeptFrames
from gart.evaluation.views import Settings, render_view
from gart.io.images import save_counts, save_depth, save_normals, save_png
from gart.io.video import VideoFile, is_video
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.tracing import Surface, TraceSettings, trace_surface

ENDINGS = {
    "color": (".png",),
    "rgba": (".rgba.png",),
    "opacity": (".opacity.png",),
    "depth": (".depth.npy", ".depth.png"),
    "exr": (".depth.exr",),
    "median_depth": (".median_depth.npy", ".median_depth.png"),
    "median_depth_exr": (".median_depth.exr",),
    "normals": (".normals.npy", ".normals.png"),
    "normals_exr": (".normals.exr",),
    "hit_count": (".hit_count.npy", ".hit_count.png"),
}
"""Output -> endings of its files: colour over the background; colour without it, with straight
alpha; opacity; depth as float32 scene units and, to look at, in 16 bits; the former as OpenEXR; so
too median depth and normals, these in 8 bits; the number of hits as it is."""
OUTPUTS = tuple(ENDINGS)
SURFACE_OUTPUTS = OUTPUTS[OUTPUTS.index("median_depth") :]
"""What `gart.tracing.Surface` holds."""
PHOTO_SUFFIXES = {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".exr", ".heic"}

Report = Callable[[int, int, str], None]
"""Called after each view with: views done, views in all, and its name."""


class Rendered(NamedTuple):
    """What came of it.

    Attributes:
        kept: views that were there already.
        others: files of earlier, other renderings that lie in the folder too.
        codec: a video's format, "" for a folder.
    """

    kept: int = 0
    others: int = 0
    codec: str = ""


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
) -> Rendered:
    """Render named cameras to `output`: a folder, or a video when it ends in .mp4 or .webm.

    In a folder a view `a/b.jpg` becomes `a/b.png`, and further outputs have the `ENDINGS`. Files
    appear whole or not at all. Those that are there already from the same scene, camera and
    settings are kept (`gart.evaluation.kept`), so that an interrupted rendering goes on where it
    stopped. A video appears when it is complete, and shows colour.

    Raises:
        UsageError: an unknown mode or output, one that the mode does not have, or further outputs
            with a video.
        GartError: nothing to render, two views for one file, cameras of several sizes for a video.
    """
    output = Path(output)
    if unknown := [name for name in outputs if name not in OUTPUTS]:
        raise UsageError(f"output is {unknown[0]!r}; expected some of {', '.join(OUTPUTS)}")
    surfaces = [name for name in outputs if name in SURFACE_OUTPUTS]
    if surfaces and mode != "rt":
        raise UsageError(
            f"output is {surfaces[0]!r}, which comes from the hits of rays, and --mode is {mode}; "
            "use --mode rt"
        )
    if not views:
        raise GartError(f"there is no view to render to {output}; choose another split")
    backdrop = torch.tensor(background, device=gaussians.device)
    if is_video(output):
        if tuple(outputs) != ("color",):
            raise UsageError(f"{output}: a video shows colour only; write to a folder instead")
        with VideoFile(output, fps) as video:
            for i, (name, camera) in enumerate(views):
                video.add(render_view(gaussians, camera, mode, settings).over(backdrop))
                report(i + 1, len(views), name)
        return Rendered(codec=video.codec)
    endings = {ending: wanted for wanted in outputs for ending in ENDINGS[wanted]}
    stems = [_stem(name) for name, _ in views]
    counts = Counter(stem + ending for stem in stems for ending in endings)
    if double := [file for file, count in counts.items() if count > 1]:
        raise GartError(f"two views would be written to {output / double[0]}; rename a photograph")
    frames = KeptFrames(output, gaussians, mode, background, settings)
    kept = 0
    for i, (name, camera) in enumerate(views):
        digest = frames.digest(camera)
        files = {stems[i] + ending: wanted for ending, wanted in endings.items()}
        missing = [file for file in files if not frames.has(file, digest)]
        plain = [file for file in missing if files[file] not in SURFACE_OUTPUTS]
        if plain:
            rendering = render_view(gaussians, camera, mode, settings)
            for file in plain:
                _save(output / file, files[file], rendering, backdrop)
                frames.add(file, digest)
        if len(missing) > len(plain):
            assert settings is None or isinstance(settings, TraceSettings)
            with torch.no_grad():
                surface = trace_surface(gaussians, camera, settings)
            for file in missing:
                if file not in plain:
                    _save_surface(output / file, files[file], surface)
                    frames.add(file, digest)
        kept += not missing
        report(i + 1, len(views), name)
    return Rendered(kept, frames.others())


def _save(path: Path, wanted: str, rendering: Rendering, backdrop: Tensor) -> None:
    if wanted == "color":
        save_png(path, rendering.over(backdrop))
    elif wanted == "rgba":
        straight = rendering.color / rendering.opacity.clamp_min(1e-6)[..., None]
        save_png(path, torch.cat([straight, rendering.opacity[..., None]], -1))
    elif wanted == "opacity":
        save_png(path, rendering.opacity)
    else:
        save_depth(path, rendering.depth)


def _save_surface(path: Path, wanted: str, surface: Surface) -> None:
    if wanted == "hit_count":
        save_counts(path, surface.hit_count)
    elif wanted.startswith("normals"):
        save_normals(path, surface.normals)
    else:
        save_depth(path, surface.median_depth)


def _stem(name: str) -> str:
    """`name` without the suffix of an image file; other dots (frame.0001) belong to the name.

    Names that lead out of the capture's image folder stay in the renderings' folder: outside of it
    lie the photographs themselves.
    """
    path = Path(name)
    path = Path(*(part for part in path.parts if part not in ("..", path.anchor)))
    return str(path.with_suffix("") if path.suffix.lower() in PHOTO_SUFFIXES else path)
