"""`gart train`: photographs to a run folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gart.cli.device import choose_device
from gart.cli.interrupts import INTERRUPTED, TERMINATED, WORDS
from gart.cli.options import Backward, Device, TracerName
from gart.cli.progress import TrainingProgress, status
from gart.errors import GartError

SCENE_HELP = "Folder of posed photographs, scene name, dataset/scene, or `demo`."


class InterruptedRunError(GartError):
    """Ctrl-C or SIGTERM in a run that can be continued."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def train(
    scene: Annotated[str, typer.Argument(metavar="SCENE", help=SCENE_HELP)],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run folder.  [default: runs/SCENE]", show_default=False),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings: a YAML file or a preset's name.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated."),
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Optimisation steps.")] = None,
    budget: Annotated[int | None, typer.Option(help="Most Gaussians.")] = None,
    backward: Annotated[
        Backward | None, typer.Option(help="How the tracer gathers gradients; same results.")
    ] = None,
    tracer: Annotated[
        TracerName | None,
        typer.Option(help="How the tracer finds hits: lists by tile, or a tree; same results."),
    ] = None,
    downscale: Annotated[
        int | None, typer.Option(min=1, help="Train on images this many times smaller.")
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = "auto",
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in DIR.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in DIR.")] = False,
) -> None:
    """Train a scene from posed photographs."""
    from gart import datasets, training
    from gart.cli.runs import preset_for
    from gart.io import RunFolder

    chosen = choose_device(device)
    flags = {
        "iterations": iterations,
        "budget": budget,
        "backward": backward,
        "tracer": tracer,
        "seed": seed,
    }
    overrides = [*(settings or []), *(f"{k}={v}" for k, v in flags.items() if v is not None)]
    out = out or Path("runs") / Path(scene).resolve().name
    recorded = RunFolder(out)
    resuming = resume and recorded.exists
    if resuming and downscale is None:
        downscale = recorded.recorded("dataset", "downscale", int)
    base = config or (recorded.config if resuming else preset_for(scene))
    train_config = training.load_config(base, overrides)
    if resume or (out.exists() and not overwrite):  # refuse before the photographs are loaded
        RunFolder.create(out, resume=resume, overwrite=overwrite)
    with status(f"loading {scene}"):
        capture = datasets.load(scene, downscale=downscale or 1)
    plan = training.plan_training(capture, train_config, chosen)
    folder = RunFolder.create(out, resume=resume, overwrite=overwrite)
    print(
        f"{capture.name}: {len(capture.train)} training views, {len(capture.test)} held out, "
        f"{len(capture.points)} points; {train_config.iterations} iterations on {chosen} -> {out}\n"
        f"{plan} with its budget of {train_config.budget:,} Gaussians",
        flush=True,
    )
    if unposed := capture.metadata.get("unposed"):
        print(f"left out: {unposed} photographs without a pose", flush=True)
    try:
        with TrainingProgress(chosen) as progress:
            training.train(capture, train_config, folder, chosen, resume, progress)
    except (KeyboardInterrupt, SystemExit) as stop:
        if not folder.exists:  # nothing was trained that could be continued
            raise
        code = TERMINATED if isinstance(stop, SystemExit) else INTERRUPTED
        again = shlex.join(["gart", "train", scene, "--out", str(out), "--device", chosen])
        raise InterruptedRunError(f"{WORDS[code]}; continue with: {again} --resume", code) from None
    print(f"saved {folder.point_cloud}")
