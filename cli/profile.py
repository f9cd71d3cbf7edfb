"""`gart profile`: where time and memory go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gart.cli.device import choose_device
from gart.cli.options import JsonFile, Mode, RenderMode
from gart.cli.progress import ImageProgress
from gart.errors import UsageError

if TYPE_CHECKING:
    from gart.cli.runs import Source
    from gart.profiling.measure import Report

Backwards = Literal["primitive", "hybrid", "pixel", "all"]

SUBJECT_HELP = (
    "Run folder, scene name or folder, or splat file (.ply); the newest run if left out. "
    "A splat file, and --mode tilegs, is rendered; anything else is trained."
)


def profile(
    subject: Annotated[
        str | None, typer.Argument(metavar="RUN|SCENE", help=SUBJECT_HELP, show_default=False)
    ] = None,
    iterations: Annotated[
        int, typer.Option(min=1, help="Training iterations, or images, to average over.")
    ] = 20,
    backward: Annotated[
        Backwards | None,
        typer.Option(
            help="One backward mode; the three side by side if left out; `all` sets those of the "
            "papers' LT buffer beside them."
        ),
    ] = None,
    mode: RenderMode = "rt",
    json: JsonFile = None,
) -> None:
    """Time every stage; count memory, pairs and hits."""
    from rich.console import Console

    from gart.cli.runs import find_source
    from gart.io.atomic import write_json
    from gart.profiling import tables

    device = choose_device("auto", mode)
    source = find_source(subject)
    with ImageProgress("profiling") as progress:
        result = _measure(source, subject, device, mode, backward, iterations, progress)
    result = {"subject": str(source.path if source else subject), **result}
    if json is not None:
        write_json(json, result)
    print(f"{result['subject']} on {result['device']}: {result['gaussians']} Gaussians")
    console = Console()
    for table in tables(result):
        console.print(table)


def _measure(
    source: Source | None,
    subject: str | None,
    device: str,
    mode: Mode,
    backward: Backwards | None,
    iterations: int,
    report: Report,
) -> dict[str, Any]:
    """Profile `source`, or the untrained scene `subject` when it is None."""
    from gart import datasets
    from gart.cli.runs import preset_for
    from gart.profiling import orbit, profile_rendering, profile_training
    from gart.tracing import BACKWARD_MODES, LT_LAYOUTS
    from gart.training import Trainer, load_config
    from gart.training.checkpoint import checkpoints, load_checkpoint

    rendered = mode == "tilegs" or (source is not None and source.folder is None)
    if backward is not None and rendered:
        raise UsageError(
            f"--backward {backward} belongs to training; a splat file, and --mode tilegs, is only "
            "rendered: leave it out"
        )
    if source is not None and source.folder is None:
        gaussians = source.gaussians(device)
        return profile_rendering(
            gaussians, orbit(gaussians), mode=mode, iterations=iterations, report=report
        )
    state = None
    if source is not None and source.folder is not None:
        capture, config = source.capture(), load_config(source.folder.config)
        if saved := checkpoints(source.folder.checkpoints):
            state = load_checkpoint(saved[-1])
    else:
        assert subject is not None
        capture, config = datasets.load(subject), load_config(preset_for(subject))
    if mode == "rt":
        return profile_training(
            capture,
            config,
            device,
            iterations=iterations,
            backward=BACKWARD_MODES if backward in (None, "all") else [backward],
            lt_layouts=LT_LAYOUTS if backward == "all" else None,
            state=state,
            report=report,
        )
    trainer = Trainer(capture, config, device)
    if state is not None:
        trainer.load_state(state)
    cameras = [view.camera for view in capture.train]
    return profile_rendering(
        trainer.export(), cameras, mode=mode, iterations=iterations, report=report
    )
