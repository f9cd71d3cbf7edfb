"""How Ctrl-C and SIGTERM end a command: one line, and the exit code that shells give it."""

from __future__ import annotations

import signal
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

WORDS = {INTERRUPTED: "interrupted", TERMINATED: "terminated"}
"""Said of each exit code."""


def terminate(number: int, frame: FrameType | None) -> None:
    """Handler of SIGTERM: unwinds as Ctrl-C does, so that no temporary file stays behind, and works
    as a container's first process, which the system's own handling leaves running.
    """
    raise SystemExit(TERMINATED)
