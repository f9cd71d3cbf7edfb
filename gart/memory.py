"""Memory of a device: how much is free, what a size means, and what to say when it ran out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from gart.errors import GartError

MARGIN = 0.9
"""Share of the free memory that is counted on: forecasts err, and what is free lies in pieces."""
_UNLIMITED = 2**62


class OutOfMemoryError(GartError):
    """Memory ran out: the message says for what, how much was asked for, and what to lower."""


def free_memory(device: torch.device | str) -> int:
    """Bytes that may still be allocated on `device`: the GPU's with what torch keeps for reuse, or
    the RAM that the system and this process's control groups leave.
    """
    device = torch.device(device)
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reusable
    return min(_system_memory(), *group_memory())


def parse_size(text: str) -> int:
    """Bytes of `8GB`, `500 MB`, `8GiB` or a plain number.

    Raises:
        ValueError: it is none of these, with what is allowed.
    """
    match = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    try:
        number, unit, binary = match.groups() if match else ("", "", "")
        factor = (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " ")
        return int(float(number) * factor)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no size; write for example 8GB or 500MB") from None


def format_size(size: float) -> str:
    """`size` bytes as people read it, in powers of 1000: 3.1 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            value = size / scale
            return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that an allocation failed: PyTorch's on either device, through the
    native libraries too, or Python's.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, OutOfMemoryError)):
        return True
    words = ("out of memory", "can't allocate memory", "std::bad_alloc")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def explain(error: BaseException, what: str, lower: str) -> str:
    """One sentence about an `is_out_of_memory` error: `what` took how much, and what to `lower`."""
    size = _asked_for(str(error))
    asked = f"asked for {format_size(size)} more" if size else "asked for more"
    return f"out of memory: {what} {asked} than is free; {lower}"


@contextmanager
def allocating(what: str, lower: str) -> Iterator[None]:
    """Name what is done inside, should memory run out in it.

    Raises:
        OutOfMemoryError: it did.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(explain(error, what, lower)) from error


def _asked_for(message: str) -> int | None:
    """Bytes that the failed allocation wanted, where PyTorch's message says it."""
    if found := re.search(r"tried to allocate ([\d.]+ ?[KMG]?i?B)", message, re.IGNORECASE):
        return parse_size(found[1])
    found = re.search(r"tried to allocate (\d+) bytes", message)
    return int(found[1]) if found else None


def _system_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):  # not Linux: what the machine has
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def group_memory(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[int]:
    """What each control group around this process leaves (containers, batch systems)."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return [_UNLIMITED]
    left = [_UNLIMITED]
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":  # version 2
            base, most, used, cached = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, cached = root / "memory", "total_inactive_file"
            most, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = base / name.strip("/")
        # Inside a container the path may be the host's, of which only the root is visible.
        for group in {base, folder, *(p for p in folder.parents if p.is_relative_to(base))}:
            try:
                limit = int((group / most).read_text())
                taken = int((group / used).read_text())
                stat = dict(
                    line.split() for line in (group / "memory.stat").read_text().splitlines()
                )
            except (OSError, ValueError):  # no such file, or "max"
                continue
            left.append(max(limit - taken + int(stat.get(cached, 0)), 0))
    return left
