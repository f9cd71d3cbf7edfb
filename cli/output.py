"""What reaches the terminal: names of files may hold any bytes, and terminals obey some of them."""

from __future__ import annotations

import io
import sys
import warnings


def printable(text: str) -> str:
    """`text` with control characters, line breaks and what is no Unicode written as escapes."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def prepare_output() -> None:
    """Let no name of a file end a command: what the terminal cannot show is written as escapes.

    Pillow's warnings about photographs are left out: the command says what it cannot read.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.filterwarnings("ignore", module="PIL")
