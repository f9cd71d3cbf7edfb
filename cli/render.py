"""`gart render`: a run or splat file to images or a video."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gart.cli.device import choose_device
from gart.cli.options import Lens, RenderMode, Run, Split, Tracer
from gart.cli.progress import ImageProgress, status
from gart.errors import UsageError

if TYPE_CHECKING:
    from gart.cameras import Camera
    from gart.cli.runs import Source


def render(
    run: Run = None,
    mode: RenderMode = "rt",
    tracer: Tracer = "tiles",
    split: Annotated[Split, typer.Option(help="Which photographs' cameras to render.")] = "test",
    trajectory: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Render a camera path instead: orbit, spiral, interpolate (along the training "
            "views), or a nerfbaselines-v1 JSON file.",
        ),
    ] = None,
    frames: Annotated[int, typer.Option(help="Images of an orbit, spiral or interpolation.")] = 120,
    fps: Annotated[
        float | None,
        typer.Option(help="Of a video.  [default: the trajectory file's, or 30]"),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Of the images, in pixels.")] = None,
    height: Annotated[int | None, typer.Option(help="Of the images, in pixels.")] = None,
    fov: Annotated[
        float | None,
        typer.Option(help="Field of view from top to bottom in degrees, of a pinhole or fisheye."),
    ] = None,
    lens: Annotated[
        Lens | None,
        typer.Option(
            help="Of the cameras, without distortion: fisheyes of 180 degrees unless --fov is "
            "given, panoramas of all directions, or parallel rays.  [default: their own]",
            show_default=False,
        ),
    ] = None,
    extent: Annotated[
        float | None,
        typer.Option(
            help="Height of what --lens orthographic shows, in scene units.  [default: what the "
            "cameras see of what they look at]",
            show_default=False,
        ),
    ] = None,
    aperture: Annotated[
        float | None,
        typer.Option(metavar="RADIUS", help="In scene units: blur what is out of focus."),
    ] = None,
    focus: Annotated[
        float | None,
        typer.Option(
            metavar="DISTANCE",
            help="To what an --aperture shows sharp, in scene units.  [default: to what the "
            "cameras look at]",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="Rays a pixel through an --aperture.")] = 64,
    rolling_shutter: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="Of the time between two frames of a --trajectory that passes from the first to "
            "the last row.",
        ),
    ] = None,
    outputs: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Some of color,rgba,opacity,depth,exr (depth); with --mode rt also median_depth,"
            "median_depth_exr,normals,normals_exr,hit_count.",
        ),
    ] = "color",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder, or video if it ends in .mp4 or .webm.  "
            "[default: renders/ in the run folder]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Render held-out views, training views or a camera path; what is there already is kept."""
    from gart.cli.runs import Source, check_tracer
    from gart.evaluation import render_views
    from gart.trajectories import add_aperture, add_rolling_shutter, reframe, usual_extent

    check_tracer(tracer, [mode])
    source = Source.find(run)
    device = choose_device("auto", mode)
    if trajectory is not None:
        cameras, own_fps = _path(source, trajectory, frames)
        named = [(f"{i:05d}", camera) for i, camera in enumerate(cameras)]
        what = Path(trajectory).stem
    else:
        with status("loading the photographs"):
            named = [(view.name, view.camera) for view in source.views(split)]
        what, own_fps = split, 30.0
    if rolling_shutter is not None and trajectory is None:
        raise UsageError("--rolling-shutter takes the motion of a path; give --trajectory too")
    if aperture is None and focus is not None:
        raise UsageError("--focus is of an aperture; give --aperture RADIUS too")
    cameras = [camera for _, camera in named]
    if lens == "orthographic" and extent is None:
        extent = usual_extent(cameras)
    cameras = [reframe(camera, width, height, fov, lens, extent) for camera in cameras]
    if aperture is not None:
        cameras = add_aperture(cameras, aperture, focus, samples)
    if rolling_shutter is not None:
        cameras = add_rolling_shutter(cameras, rolling_shutter)
    views = [(name, camera) for (name, _), camera in zip(named, cameras, strict=True)]
    gaussians, settings = source.planned(mode, device, cameras, tracer=tracer)
    output = output or source.renders / f"{what}_{mode}"
    with ImageProgress("rendering") as progress:
        done = render_views(
            gaussians,
            views,
            output,
            mode=mode,
            background=source.background(),
            outputs=[name.strip() for name in outputs.split(",")],
            fps=fps if fps is not None else own_fps,
            settings=settings,
            report=progress,
        )
    notes = [f"{done.kept} of them were there already"] if done.kept else []
    if done.others:
        notes.append(f"{done.others} files of an earlier, other rendering are there too")
    if done.codec:
        notes.append(done.codec)
    if done.codec == "MPEG-4":
        notes.append("which browsers do not play; pip install imageio-ffmpeg for H.264")
    print(f"saved {len(views)} views to {output}" + (f" ({', '.join(notes)})" if notes else ""))


def _path(source: Source, trajectory: str, frames: int) -> tuple[list[Camera], float]:
    """Cameras and frames a second of a path's name or file."""
    from gart.io import load_trajectory
    from gart.trajectories import PATHS, make_path

    if trajectory not in PATHS:
        return load_trajectory(trajectory)
    with status("loading the photographs"):
        views = source.views("train")
    return make_path(trajectory, [view.camera for view in views], frames), 30.0
