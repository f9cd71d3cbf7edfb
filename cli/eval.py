"""`gart eval`: a run measured on its held-out photographs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from gart.cli.device import choose_device
from gart.cli.options import JsonFile, RenderMode, Run
from gart.cli.progress import ImageProgress, status


def evaluate(
    run: Run = None,
    mode: RenderMode = "rt",
    metrics: Annotated[
        str, typer.Option(metavar="NAMES", help="Some of psnr,ssim,lpips.")
    ] = "psnr,ssim,lpips",
    protocol: Annotated[
        Literal["3dgs", "nerfbaselines"],
        typer.Option(help="Whose rounding, windows and LPIPS network to use."),
    ] = "3dgs",
    json: JsonFile = None,
) -> None:
    """Compare a scene with its held-out photographs."""
    from gart import evaluation
    from gart.cli.runs import Source
    from gart.evaluation.protocol import parse_metrics
    from gart.io.atomic import write_json

    names = parse_metrics(metrics)
    source = Source.find(run)
    device = choose_device("auto", mode)
    with status("loading the photographs"):
        views = source.views("test")
    gaussians, settings = source.planned(mode, device, [view.camera for view in views], names)
    with ImageProgress("evaluating") as progress:
        result = evaluation.evaluate(
            gaussians,
            views,
            mode=mode,
            metrics=names,
            protocol=protocol,
            background=source.background(),
            settings=settings,
            report=progress,
        )
    if source.folder is not None:
        write_json(source.folder.eval, result)
    if json is not None:
        write_json(json, result)
    print(f"{source.path}, {mode}, protocol {protocol}, {result['images']} held-out views")
    for line in _lines(result):
        print(line)


def _lines(result: dict[str, Any]) -> list[str]:
    """One line a metric; a missing one with the reason."""
    digits = {"psnr": ".2f"}
    lines = []
    for name, value in result["mean"].items():
        if value is None:
            lines.append(f"{name:10} not measured: {result['unavailable'].get(name, 'no value')}")
        else:
            lines.append(f"{name:10} {value:{digits.get(name, '.4f')}}" + " dB" * (name == "psnr"))
    return lines
