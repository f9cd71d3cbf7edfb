"""`gart render`: a run or splat file to images or a video."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gart.cli.device import choose_device
from gart.cli.options import RenderMode, Run, Split
from gart.cli.progress import ImageProgress, status


def render(
    run: Run = None,
    mode: RenderMode = "rt",
    split: Annotated[Split, typer.Option(help="Which photographs' cameras to render.")] = "test",
    trajectory: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Render this camera path (nerfbaselines-v1 JSON) instead."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder, or video if it ends in .mp4.  [default: renders/ in the run folder]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Render held-out views, training views or a camera path."""
    from gart.cli.runs import Source
    from gart.evaluation import render_views
    from gart.io import load_trajectory

    source = Source.find(run)
    device = choose_device("auto", mode)
    fps = 30.0
    if trajectory is not None:
        cameras, fps = load_trajectory(trajectory)
        views = [(f"{i:05d}", camera) for i, camera in enumerate(cameras)]
        what = trajectory.stem
    else:
        with status("loading the photographs"):
            views = [(view.name, view.camera) for view in source.views(split)]
        what = split
    gaussians, settings = source.planned(mode, device, [camera for _, camera in views])
    output = output or source.renders / f"{what}_{mode}"
    with ImageProgress("rendering") as progress:
        render_views(
            gaussians,
            views,
            output,
            mode=mode,
            background=source.background(),
            fps=fps,
            settings=settings,
            report=progress,
        )
    print(f"saved {len(views)} views to {output}")
