"""One training run: a Trainer driven into a run folder."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import fmean

import torch

from gart.capture import Capture
from gart.errors import GartError
from gart.io.cameras import save_cameras
from gart.io.ply import save_ply
from gart.io.run_folder import RunFolder
from gart.training.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from gart.training.config import TrainConfig
from gart.training.plan import plan_training
from gart.training.trainer import Trainer

RECENT = 50
"""Iterations whose mean loss and PSNR are shown: single views differ too much."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    Attributes:
        iteration, iterations: done and in all.
        loss, psnr: means over the last `RECENT` iterations whose numbers have come in, NaN before
            any has; psnr in dB, of training views.
        gaussians: their number.
        speed: iterations a second since the start or the resume.
        seconds_left: estimate at that speed.
    """

    iteration: int
    iterations: int
    loss: float
    psnr: float
    gaussians: int
    speed: float
    seconds_left: float


def train(
    capture: Capture,
    config: TrainConfig,
    folder: RunFolder,
    device: torch.device | str = "cpu",
    resume: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Train `capture` into `folder`: settings, metrics, checkpoints and the final point cloud.

    With `resume` the newest checkpoint is continued exactly, as if the run had not stopped.
    An interrupt or SIGTERM waits for the iteration to end, saves a checkpoint and is raised as
    KeyboardInterrupt or SystemExit(143); a second one acts at once and saves nothing.

    Raises:
        UsageError: the budget does not fit in memory.
        GartError: no training views, a value that is not finite, a file that cannot be written, a
            checkpoint that cannot be read or belongs to other settings, another training into
            `folder`.
    """
    plan_training(capture, config, device)
    with folder.locked():
        _train(Trainer(capture, config, device), capture, folder, resume, report)


def _train(
    trainer: Trainer,
    capture: Capture,
    folder: RunFolder,
    resume: bool,
    report: Callable[[Progress], None],
) -> None:
    config = trainer.config
    if resume:
        if saved := checkpoints(folder.checkpoints):
            trainer.load_state(load_checkpoint(saved[-1]))
    else:
        dataset = {"name": capture.name, "background": list(capture.background), **capture.metadata}
        folder.write_config(config.as_dict(), dataset, trainer.device)

    def save() -> None:
        metrics.collect(wait=True)
        save_checkpoint(folder.checkpoints, trainer.state(), config.checkpoint_keep)

    try:
        folder.rewind_metrics(trainer.iteration)
        metrics = _Metrics(trainer, folder)
        with _held_interrupts() as interrupts:
            for progress in _iterate(trainer, metrics):
                try:
                    report(progress)
                    if interrupts:
                        raise _stop(interrupts[0])
                except (KeyboardInterrupt, SystemExit):
                    save()
                    raise
                if trainer.iteration % config.checkpoint_every == 0:
                    save()
        save()
        if cameras := trainer.refined_cameras():
            save_cameras(folder.cameras, cameras)
        save_ply(folder.point_cloud, trainer.export())
    except OSError as error:
        raise GartError(
            f"run folder {folder.path} cannot be written ({error}); "
            "free some space or make it writable, then continue with --resume"
        ) from error


class _Metrics:
    """The numbers of iterations as they come in: recent means, and lines of metrics.jsonl."""

    def __init__(self, trainer: Trainer, folder: RunFolder) -> None:
        self._trainer, self._folder = trainer, folder
        self._losses: deque[float] = deque(maxlen=RECENT)
        self._psnrs: deque[float] = deque(maxlen=RECENT)
        logged = folder.read_metrics()
        self._earlier = float(logged[-1].get("seconds") or 0.0) if logged else 0.0
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since this part of the run began."""
        return time.perf_counter() - self._start

    def means(self) -> tuple[float, float]:
        """Of loss and PSNR; NaN before the first have come in."""
        return _mean(self._losses), _mean(self._psnrs)

    def collect(self, wait: bool = False) -> None:
        """Take in what has come; with `wait`, all that is to come."""
        config = self._trainer.config
        for values in self._trainer.measured(wait):
            self._losses.append(values.loss)
            self._psnrs.append(values.psnr)
            if values.iteration % config.log_every == 0 or values.iteration == config.iterations:
                record = {**asdict(values), "seconds": self._earlier + self.seconds}
                self._folder.append_metrics(record)


def _iterate(trainer: Trainer, metrics: _Metrics) -> Iterator[Progress]:
    """Train to the end, logging; yields after every iteration."""
    config, first = trainer.config, trainer.iteration
    while trainer.iteration < config.iterations:
        trainer.advance()
        metrics.collect()
        loss, psnr = metrics.means()
        speed = (trainer.iteration - first) / metrics.seconds
        yield Progress(
            iteration=trainer.iteration,
            iterations=config.iterations,
            loss=loss,
            psnr=psnr,
            gaussians=len(trainer.gaussians),
            speed=speed,
            seconds_left=(config.iterations - trainer.iteration) / speed,
        )


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return fmean(values) if values else math.nan


def _stop(number: int) -> BaseException:
    """How a signal ends a Python program: SIGTERM by the exit code that shells give it."""
    return SystemExit(128 + number) if number == signal.SIGTERM else KeyboardInterrupt()


@contextmanager
def _held_interrupts() -> Iterator[list[int]]:
    """Note the first SIGINT or SIGTERM here instead, so that no iteration stops half-way."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted  # signals reach the main thread alone
        return

    def handle(number: int, frame: object) -> None:
        noted.append(number)
        restore()

    def restore() -> None:
        for number, previous in before.items():
            signal.signal(number, previous)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield noted
    finally:
        restore()
