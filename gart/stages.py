"""Stage times: code marks its stages, and costs nothing unless a `Stages` recorder is active."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token

import torch

_current: ContextVar[Stages | None] = ContextVar("stages", default=None)


class Stages:
    """Milliseconds and counts by name, gathered while active (`with Stages() as stages:`).

    Active in one thread; another thread that works for the same measurement enters it again.
    """

    def __init__(self) -> None:
        self._tokens: list[Token[Stages | None]] = []
        self.ms: dict[str, list[float]] = {}
        self.counts: dict[str, list[float]] = {}

    def __enter__(self) -> Stages:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *exc: object) -> None:
        _current.reset(self._tokens.pop())


def active() -> Stages | None:
    """The recorder in force, or None."""
    return _current.get()


def add(name: str, ms: float) -> None:
    """Record one run of stage `name`."""
    if (stages := _current.get()) is not None:
        stages.ms.setdefault(name, []).append(ms)


def count(name: str, value: float) -> None:
    """Record one value of counter `name` (hits, pairs, bytes)."""
    if (stages := _current.get()) is not None:
        stages.counts.setdefault(name, []).append(value)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Time a block as stage `name`; stages do not nest."""
    if _current.get() is None:
        yield
        return
    _wait_for_gpu()
    start = time.perf_counter()
    yield
    _wait_for_gpu()
    add(name, (time.perf_counter() - start) * 1e3)


def _wait_for_gpu() -> None:
    # Kernels run on after the call that launched them returns.
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
