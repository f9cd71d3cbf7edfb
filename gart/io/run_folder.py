"""The folder of one training run, and how the command line finds it.

config.yaml       resolved settings, data set, versions, GPU
checkpoints/      written by gart.training
point_cloud.ply   the result, standard 3DGS layout
cameras.json      cameras of the photographs, where they were refined
metrics.jsonl     one line per logged step
eval.json         what gart eval measured
renders/          images and videos
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml

from gart.errors import GartError, UsageError
from gart.io.atomic import json_able, write_bytes
from gart.io.environment import environment
from gart.io.ply import load_ply
from gart.scene import Gaussians

T = TypeVar("T")

ENTRIES = (
    "config.yaml",
    "checkpoints",
    "point_cloud.ply",
    "metrics.jsonl",
    "eval.json",
    "renders",
    "cameras.json",
)
"""All that gart puts into a run folder, and all that overwriting removes."""


class RunFolder:
    """Paths and small files of one run.

    Attributes:
        path: the folder.
        config, checkpoints, point_cloud, metrics, eval, renders, cameras: paths in it, existing or
            not.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        entries = (self.path / entry for entry in ENTRIES)
        self.config, self.checkpoints, self.point_cloud, self.metrics, *rest = entries
        self.eval, self.renders, self.cameras = rest

    @property
    def exists(self) -> bool:
        """True when this is a run folder: it holds a config.yaml."""
        return self.config.is_file()

    @classmethod
    def create(
        cls, path: str | Path, *, overwrite: bool = False, resume: bool = False
    ) -> RunFolder:
        """The folder to train into, made if absent.

        `resume` wants an existing run and changes nothing; `overwrite` empties an existing run of
        `ENTRIES`, and of nothing else.

        Raises:
            UsageError: both flags; a run is there and neither flag is; no run to resume; the folder
                holds something that is no run.
        """
        run = cls(path)
        if overwrite and resume:
            raise UsageError("--resume and --overwrite exclude each other; give one of them")
        if resume:
            if not run.exists:
                raise UsageError(
                    f"nothing to resume: {run.path} holds no run (no config.yaml); "
                    "leave out --resume to start one"
                )
            return run
        if run.path.exists() and not run.path.is_dir():
            raise UsageError(f"{run.path} is a file; give another folder with --out")
        if run.exists and not overwrite:
            raise UsageError(
                f"{run.path} already holds a run; continue it with --resume, replace it with "
                "--overwrite, or give another folder with --out"
            )
        if not run.exists and run.path.is_dir() and any(run.path.iterdir()):
            raise UsageError(
                f"{run.path} is not empty and holds no run (no config.yaml); "
                "give another folder with --out"
            )
        # config.yaml goes last: whatever interrupts this, the folder still counts as a run.
        with run.locked():
            for entry in reversed(ENTRIES):
                target = run.path / entry
                if target.is_dir() and not target.is_symlink():
                    shutil.rmtree(target)
                else:
                    target.unlink(missing_ok=True)
        return run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other trainings out of the folder, which is made if absent.

        The system drops the lock with the process, however that ends.

        Raises:
            GartError: another training holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise GartError(
                f"another gart is training into {self.path}; wait for it, or give another folder "
                "with --out"
            ) from error
        except OSError:
            pass  # some network file systems have no locks
        try:
            yield
        finally:
            os.close(handle)

    def write_config(
        self,
        training: Mapping[str, Any],
        dataset: Mapping[str, Any],
        device: torch.device | str = "cpu",
    ) -> None:
        """Write config.yaml: `training` settings, `dataset` (name, source, downscale, ...: what
        loads the capture again), and what gart runs on.
        """
        config = {
            "gart": {
                **environment(device),
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            },
            "dataset": dict(dataset),
            "training": dict(training),
        }
        text = yaml.safe_dump(json_able(config), sort_keys=False, allow_unicode=True)
        write_bytes(self.config, text.encode())

    def read_config(self) -> dict[str, Any]:
        """config.yaml with its three mappings `gart`, `dataset` and `training`.

        Raises:
            GartError: missing or damaged.
        """
        try:
            config = yaml.safe_load(self.config.read_text("utf-8"))
        except OSError as error:
            raise GartError(
                f"{self.config} cannot be read ({error.strerror}); is {self.path} a run folder?"
            ) from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise GartError(f"{self.config} is not valid YAML: {error}") from error
        for section in ("gart", "dataset", "training"):
            if not isinstance(config, dict) or not isinstance(config.get(section), dict):
                raise GartError(
                    f"{self.config} lacks the section {section!r}; "
                    "was it edited? train the scene again, or restore the file"
                )
        return config

    def recorded(self, section: str, key: str, kind: type[T]) -> T:
        """One value of config.yaml.

        Raises:
            GartError: as `read_config`; or the value is absent, or of another type.
        """
        value = self.read_config()[section].get(key)
        if not isinstance(value, kind):
            raise GartError(
                f"{self.config}: {key} under {section} is {value!r}; expected {kind.__name__}: "
                "restore the file, or train the scene again with --overwrite"
            )
        return value

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl; non-finite numbers become null."""
        line = json.dumps(json_able(dict(record)), allow_nan=False)
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines of metrics.jsonl; a last line cut off by a crash is left out.

        Raises:
            GartError: another line is damaged.
        """
        if not self.metrics.is_file():
            return []
        lines = self.metrics.read_bytes().split(b"\n")[:-1]
        return [self._metrics_record(number, line) for number, line in enumerate(lines, 1)]

    def _metrics_record(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise GartError(
                f"{self.metrics} line {number} is no JSON object; delete that line to continue"
            )
        return record

    def rewind_metrics(self, iteration: int) -> None:
        """Drop the lines past `iteration`, where a resumed run will write its own."""
        kept = [r for r in self.read_metrics() if r.get("iteration", 0) <= iteration]
        write_bytes(self.metrics, "".join(json.dumps(r) + "\n" for r in kept).encode())

    def load_gaussians(self) -> Gaussians:
        """The run's result.

        Raises:
            GartError: training has not finished, or the file is damaged.
        """
        if not self.point_cloud.is_file():
            raise GartError(
                f"{self.path} has no {self.point_cloud.name}: its training has not finished; "
                "continue it with gart train SCENE --resume"
            )
        return load_ply(self.point_cloud)


def newest_run(root: Path = Path("runs")) -> RunFolder:
    """The run under `root` that was started last.

    Raises:
        UsageError: there is none.
    """
    runs = _runs(root)
    if not runs:
        raise UsageError(f"there is no run under {root}/; train one first: gart train demo")
    return max(runs, key=lambda run: run.config.stat().st_mtime_ns)


def find_run(argument: str | None, root: Path = Path("runs")) -> RunFolder | Path:
    """What the RUN argument means: a run folder, a scene name under `root`, or a splat file.

    Returns:
        A RunFolder, or the path of a `.ply`; without an argument the newest run.

    Raises:
        UsageError: none of these; the message lists the runs there are.
    """
    if argument is None:
        return newest_run(root)
    path = Path(argument)
    folders = [path, root / path]
    if len(path.parts) == 2 and path.parts[0] not in ("..", "/"):
        folders.append(root / path.name)  # dataset/scene
    for run in map(RunFolder, folders):
        if run.exists:
            return run
    if path.is_file():
        if path.suffix.lower() == ".ply":
            return path
        raise UsageError(f"{path} is no splat file that gart reads; expected a .ply")
    if path.suffix.lower() == ".ply":
        raise UsageError(f"splat file {path} does not exist")
    what = "is a folder without a config.yaml, so no run" if path.is_dir() else "is no run"
    names = ", ".join(sorted(run.path.name for run in _runs(root))) or "none"
    raise UsageError(
        f"{argument} {what}; runs under {root}/: {names}; give one of them, a run folder or a "
        ".ply, or train the scene first: gart train SCENE"
    )


def _runs(root: Path) -> list[RunFolder]:
    return [RunFolder(config.parent) for config in root.glob("*/config.yaml")]
