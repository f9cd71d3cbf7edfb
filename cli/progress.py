"""Progress on the terminal: rich bars, or plain lines now and then when there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rich.progress

    from gart.training import Progress

PLAIN_SECONDS = 10.0
"""Seconds between two plain lines: a log of a long run stays readable."""
BAR_SECONDS = 0.1
"""Seconds between two looks of a bar: an iteration can be shorter than it takes to describe it."""


@contextmanager
def status(text: str) -> Iterator[None]:
    """Say that something is under way, on terminals only."""
    if not sys.stdout.isatty():
        yield
        return
    from rich.console import Console

    with Console().status(text):
        yield


class _Reporter:
    """One bar, or plain lines."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar: rich.progress.Progress | None = None
        self._task: Any = None
        self._last = time.monotonic()

    def __enter__(self) -> Any:
        if sys.stdout.isatty():
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                *self._more_columns(TimeRemainingColumn()),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=None, text="")
            self._last = 0.0  # a bar shows the first step at once
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _more_columns(self, remaining: Any) -> list[Any]:
        return [remaining]

    def _is_due(self, done: int, total: int) -> bool:
        seconds = PLAIN_SECONDS if self._bar is None else BAR_SECONDS
        return done == total or time.monotonic() - self._last >= seconds

    def _show(self, done: int, total: int, text: str = "") -> None:
        if not self._is_due(done, total):
            return
        self._last = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, text=text)
        else:
            print(f"{self._title} {done}/{total}  {text}".rstrip(), flush=True)


class TrainingProgress(_Reporter):
    """Shows a `gart.training.Progress` after every iteration."""

    def __init__(self, device: str) -> None:
        super().__init__("training")
        self._device = device

    def __call__(self, progress: Progress) -> None:
        """Show where the run stands."""
        if not self._is_due(progress.iteration, progress.iterations):
            return
        from gart.profiling import peak_memory

        left = timedelta(seconds=round(progress.seconds_left))
        self._show(
            progress.iteration,
            progress.iterations,
            f"{progress.speed:.1f} it/s  loss {progress.loss:.4f}  PSNR {progress.psnr:.2f} dB  "
            f"{progress.gaussians} Gaussians  {peak_memory(self._device) / 2**30:.2f} GiB  "
            f"{left} left",
        )

    def _more_columns(self, remaining: Any) -> list[Any]:
        return []  # the run's own estimate stands in the text


class ImageProgress(_Reporter):
    """Shows how many images of a command are done."""

    def __call__(self, done: int, total: int, record: object) -> None:
        """Show that `done` of `total` images are done."""
        self._show(done, total)


class DownloadProgress(_Reporter):
    """Shows how many bytes of a download have come."""

    def __init__(self) -> None:
        super().__init__("downloading")
        self._began: tuple[float, int] | None = None

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are there."""
        now = time.monotonic()
        if self._began is None or done < self._began[1]:
            self._began = now, done
        seconds = now - self._began[0]
        speed = (done - self._began[1]) / seconds / 1e6 if seconds > 0 else 0.0
        self._show(-(-done // 10**6), -(-total // 10**6), f"MB  {speed:.1f} MB/s")
