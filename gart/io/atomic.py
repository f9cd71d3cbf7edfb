"""Files that are either whole or untouched: written beside the target, then renamed over it."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it goes.

    The temporary name keeps the suffix, for writers that choose a format by it. Missing parent
    folders are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The beginning of the name, for a name of the greatest length leaves no room for more.
    temporary = path.with_name(f".{path.stem[:40]}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())  # else a power cut may keep the name and lose the content
        temporary.replace(path)
    except OSError as error:
        if error.errno is None:  # numpy's, which says how many bytes are missing and not why
            why = f"not all could be written, is the disk full? ({error})"
            raise OSError(errno.EIO, why, str(path)) from error
        if error.filename in (None, str(temporary)):  # None: of a write, as to a full disk
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def require_writable(path: str | Path) -> None:
    """Raise OSError before the work and not after it, where `path` cannot be written."""
    folder = Path(path).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        error.filename = str(path)
        raise


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a whole file atomically."""
    with atomic(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: str | Path, value: Any) -> None:
    """Write indented JSON atomically; NaN and infinities become null, which JSON can hold."""
    text = json.dumps(json_able(value), indent=2, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


def json_able(value: Any) -> Any:
    """`value` with tuples as lists, keys and paths as strings, non-finite floats as None."""
    if isinstance(value, dict):
        return {str(key): json_able(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_able(item) for item in value]
    if isinstance(value, str | Path):  # str() turns its subclasses into plain strings
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
