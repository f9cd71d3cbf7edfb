"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Backward = Literal["primitive", "hybrid", "pixel"]
Lens = Literal["pinhole", "fisheye", "equirectangular", "orthographic"]
Device = Literal["auto", "cuda", "cpu"]
Mode = Literal["rt", "tilegs"]
Split = Literal["test", "train", "all"]
TracerName = Literal["tiles", "bvh"]

Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="Run folder, scene name or splat file (.ply); the newest run under runs/ if left out.",
        show_default=False,
    ),
]
RenderMode = Annotated[
    Mode, typer.Option("--mode", help="Ray tracer, or rasterizer (pinhole cameras).")
]
Tracer = Annotated[
    TracerName,
    typer.Option(
        "--tracer",
        help="How the ray tracer finds hits: lists by tile, or a tree that takes any rays.",
    ),
]


def _print_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        print(context.get_help())
        raise typer.Exit


# A plain flag for groups of commands: typer would import pydantic to read its own, in each of them.
Help = Annotated[
    bool, typer.Option("--help", callback=_print_help, is_eager=True, help="Show this message.")
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", dir_okay=False, help="Also write the numbers here."),
]
