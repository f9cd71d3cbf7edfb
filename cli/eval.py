"""`gart eval`: runs measured on their held-out photographs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from gart.cli.device import choose_device
from gart.cli.options import JsonFile, Mode, Tracer, TracerName
from gart.cli.output import printable
from gart.cli.progress import ImageProgress, status
from gart.errors import GartError, UsageError

if TYPE_CHECKING:
    from gart.cli.runs import Source
    from gart.evaluation.table import Row

COLLECTIONS = {
    "mipnerf360": ("mipnerf360", "360_v2", "360_extra_scenes"),
    "tanksandtemples": ("tanksandtemples", "tandt"),
    "deepblending": ("deepblending", "db"),
}
"""Data set -> folders that its scenes usually lie in."""


def evaluate(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run folders or scene names; the newest run under runs/ if left out.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODES",
            help="rt (ray tracer), tilegs (rasterizer, pinhole cameras), or rt,tilegs: both on "
            "the same photographs, and what the second loses.",
        ),
    ] = "rt",
    tracer: Tracer = "tiles",
    metrics: Annotated[
        str, typer.Option(metavar="NAMES", help="Some of psnr,ssim,lpips.")
    ] = "psnr,ssim,lpips",
    protocol: Annotated[
        Literal["3dgs", "nerfbaselines"],
        typer.Option(help="Whose rounding, windows and LPIPS network to use."),
    ] = "3dgs",
    exposure: Annotated[
        bool,
        typer.Option(
            "--exposure",
            help="Fit the colours of each rendering to its held-out photograph first; said in the "
            "results.",
        ),
    ] = False,
    json: JsonFile = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Write a table with published results beside, as .md, .csv or .json; may be "
            "repeated.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Write an HTML report with photograph, rendering and error images.",
        ),
    ] = None,
) -> None:
    """Compare scenes with their held-out photographs."""
    from gart.cli.runs import Source, check_tracer
    from gart.evaluation.protocol import parse_metrics
    from gart.evaluation.report import Report
    from gart.evaluation.table import Table, check_suffix
    from gart.io.atomic import require_writable, write_json

    modes, names = _modes(mode), parse_metrics(metrics)
    check_tracer(tracer, modes)
    for file in table or []:
        check_suffix(file)
    sources = [Source.find(run) for run in runs] if runs else [Source.find(None)]
    for file in [*(table or []), *([json] if json else [])]:
        require_writable(file)
    pages = None if report is None else Report(report)
    rows: list[Row] = []
    results: list[dict[str, Any]] = []
    remarks: list[str] = []
    failures: list[Exception] = []
    for source in sources:
        try:
            found = _measured(source, modes, tracer, names, protocol, exposure, pages)
            rows += [_row(source, result) for result in found]
            results += [{"run": str(source.path), **result} for result in found]
            remarks += [f"{source.path}: {line}" for line in _losses(found)]
            _write_result(source, found)
        except (GartError, OSError) as error:  # the others' hours of work still make a table
            if len(sources) == 1 and not results:
                raise
            failures.append(error)
            print(printable(f"failed {source.path}: {error}"), file=sys.stderr)
    if json is not None:
        one = len(sources) == len(modes) == 1
        write_json(json, {k: v for k, v in results[0].items() if k != "run"} if one else results)
    whole = Table(rows)
    for file in table or []:
        whole.write(file)
        print(f"saved {file}")
    if pages is not None:
        print(f"saved {pages.write(whole, remarks)}")
    if len(sources) > 1:
        print(f"\n{whole.markdown()}", end="")
    if len(sources) == 1 and failures:
        raise failures[0]
    if failures:
        raise GartError(
            f"{len(failures)} of {len(sources)} runs failed and are left out, as said above; mend "
            "them and run the command again"
        )


def _modes(text: str) -> list[Mode]:
    """One or several of the modes, each once."""
    names = [name.strip() for name in text.split(",")]
    allowed = get_args(Mode)
    if bad := [name for name in names if name not in allowed or names.count(name) > 1]:
        raise UsageError(
            f"--mode has {bad[0]!r}; expected {', '.join(allowed)} or {','.join(allowed)}"
        )
    return [name for name in allowed for wanted in names if wanted == name]


def _measured(
    source: Source,
    modes: list[Mode],
    tracer: TracerName,
    metrics: tuple[str, ...],
    protocol: str,
    exposure: bool,
    pages: Any,
) -> list[dict[str, Any]]:
    """Measure a run in each mode and print the numbers."""
    from gart import evaluation

    with status("loading the photographs"):
        views = source.views("test")
    results: list[dict[str, Any]] = []
    for mode in modes:
        device = choose_device("auto", mode)
        cameras = [view.camera for view in views]
        gaussians, settings = source.planned(mode, device, cameras, metrics, tracer)
        with ImageProgress(f"evaluating {mode}" if len(modes) > 1 else "evaluating") as progress:
            result = evaluation.evaluate(
                gaussians,
                views,
                mode=mode,
                metrics=metrics,
                protocol=protocol,
                background=source.background(),
                settings=settings,
                undistorted=len(modes) > 1,
                exposure=exposure,
                report=progress,
                pictures=pages and pages.section(f"{source.path}, {mode}, protocol {protocol}"),
            )
        results.append(result)
        print(f"{source.path}, {mode}, protocol {protocol}, {result['images']} held-out views")
        if exposure:
            print("colours of each rendering were fitted to its held-out photograph first")
        for line in _lines(result):
            print(line)
    for line in _losses(results):
        print(line)
    return results


def _write_result(source: Source, results: list[dict[str, Any]]) -> None:
    """Write a run's eval.json."""
    from gart.evaluation.table import difference
    from gart.io.atomic import write_json

    if source.folder is not None:
        first, *others = results
        also = {r["mode"]: {**r, "difference": difference(first, r)} for r in others}
        write_json(source.folder.eval, {**first, "other_modes": also} if also else first)


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


def _losses(results: list[dict[str, Any]]) -> list[str]:
    """How the later modes differ from the first, on the same photographs."""
    from gart.evaluation.protocol import METRICS
    from gart.evaluation.table import difference

    lines = []
    for other in results[1:]:
        changes = [
            f"{name} {value:+.2f} dB" if name == "psnr" else f"{name} {value:+.4f}"
            for name, value in difference(results[0], other).items()
            if name in METRICS
        ]
        lines.append(f"{other['mode']} against {results[0]['mode']}: {', '.join(changes)}")
    return lines


def _row(source: Source, result: dict[str, Any]) -> Row:
    """The table's row of a run."""
    from gart.evaluation.table import row_of

    if source.folder is None:
        return row_of(result, "", source.path.stem)
    folder = source.folder
    metrics = folder.read_metrics()
    gpu = folder.read_config()["gart"].get("gpu") or "CPU"
    seconds = metrics[-1].get("seconds") if metrics else None
    dataset, scene = _origin(folder.recorded("dataset", "source", str))
    known = float(seconds) if isinstance(seconds, int | float) else None
    return row_of(result, dataset, scene, known, str(gpu))


def _origin(source: str) -> tuple[str, str]:
    """Data set and scene that a run's photographs are of; "" for one's own."""
    from gart.datasets.names import find_name

    path = Path(source)
    found = find_name(path.name)
    if found is None:
        return "", path.name
    dataset, scene = found
    is_known = path.parent.name in COLLECTIONS.get(dataset, (dataset,))
    return (dataset if is_known else "", scene)
