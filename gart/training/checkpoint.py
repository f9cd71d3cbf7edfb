"""Checkpoints: tensors as safetensors, the rest as JSON, each written aside and renamed."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gart.errors import GartError, UsageError
from gart.io.atomic import atomic, write_json
from gart.training.config import TrainConfig

FORMAT = 1


@dataclass
class State:
    """All that a run needs to go on.

    Attributes:
        tensors: Gaussians, moments, generators, orders; by name.
        values: the rest, JSON-able; `iteration` and `config` among it.
    """

    tensors: dict[str, Tensor]
    values: dict[str, object]


def save_checkpoint(folder: Path, state: State, keep: int) -> Path:
    """Write `state` into `folder` and delete all but the newest `keep` checkpoints.

    The JSON is renamed into place last: a checkpoint exists when its JSON does, so an interrupted
    or failed write leaves the previous one as the newest.

    Raises:
        GartError: the disk is full or not writable; earlier checkpoints are untouched.
    """
    stem = f"iteration_{state.values['iteration']:07d}"
    path = folder / f"{stem}.json"
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.tensors.items()}
    values = {"format": FORMAT, **state.values}
    try:
        with atomic(path.with_suffix(".safetensors")) as temporary:
            save_file(tensors, temporary, {"iteration": str(state.values["iteration"])})
        write_json(path, values)
        for old in checkpoints(folder)[:-keep]:
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise GartError(
            f"checkpoint {path} could not be written ({error}); "
            "free some space or choose another --out, then continue with --resume"
        ) from error
    return path


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints in `folder`, oldest first, as the paths of their JSON files."""
    return sorted(folder.glob("iteration_*.json"))


def load_checkpoint(path: Path) -> State:
    """Read the checkpoint whose JSON file is `path`.

    Raises:
        GartError: a file is missing, damaged or of another format, or the two belong to different
            iterations.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"it holds {type(values).__name__}, no JSON object")
        with safe_open(path.with_suffix(".safetensors"), "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise GartError(
            f"checkpoint {path} cannot be read ({error}); "
            "delete it to continue from the one before, or train anew with --overwrite"
        ) from error
    if values.get("format") != FORMAT:
        raise GartError(
            f"checkpoint {path} has format {values.get('format')}, this gart reads {FORMAT}; "
            "continue it with the version in the run's config.yaml, or train anew with --overwrite"
        )
    # Checkpoints of earlier versions do not say.
    iteration = metadata.get("iteration", str(values.get("iteration")))
    if iteration != str(values.get("iteration")):
        raise GartError(
            f"checkpoint {path} is of iteration {values.get('iteration')}, but its tensors are of "
            f"iteration {iteration}; delete it to continue from the one before, or train anew with "
            "--overwrite"
        )
    return State(tensors, values)


def require_same(state: State, config: TrainConfig, photographs: list[int]) -> None:
    """Check that `state` is of a run with these settings and photographs.

    Only memory, and how often a run logs and saves, may change when it is continued.

    Args:
        state: a checkpoint's.
        config: of the run that continues it.
        photographs: their number and their size in pixels.

    Raises:
        UsageError: it is another run's.
    """
    free = {"log_every", "checkpoint_every", "checkpoint_keep", "memory_limit"}
    saved_config: Any = state.values["config"]
    # A setting younger than the checkpoint: its default is what was done before it came.
    before = {f.name: f.default for f in fields(TrainConfig)} | saved_config
    for key, value in config.as_dict().items():
        if key not in free and before[key] != value:
            raise UsageError(
                f"the checkpoint was trained with {key}={before[key]}, now {key} is {value}; "
                f"continue with {key}={before[key]}, or train anew with --overwrite"
            )
    saved: Any = state.values["photographs"]
    if saved != photographs:
        raise UsageError(
            f"the checkpoint was trained on {saved[0]} photographs of {saved[1]} pixels, "
            f"now there are {photographs[0]} of {photographs[1]}; give the same scene and "
            "--downscale, or train anew with --overwrite"
        )
