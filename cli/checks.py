"""What `gart doctor` and `gart data check` print, and how they end."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gart.cli.output import printable

if TYPE_CHECKING:
    from gart.doctor import Check


def report(checks: list[Check], json: Path | None) -> None:
    """Print the checks and write them to `json`; ends with exit code 1 where one is a problem."""
    for line in lines(checks):
        print(line)
    broken = any(check.status == "problem" for check in checks)
    if json is not None:
        from gart.io.atomic import write_json

        write_json(json, {"ok": not broken, "checks": [asdict(check) for check in checks]})
    if broken:
        raise typer.Exit(1)


def lines(checks: list[Check]) -> list[str]:
    """One aligned line a check; what to do about it stands below."""
    name = max(len(check.name) for check in checks)
    status = max(len(check.status) for check in checks)
    found = []
    for check in checks:
        found.append(f"{check.name:{name}}  {check.status:{status}}  {printable(check.value)}")
        if check.mend:
            found.append(f"{'':{name}}  {'':{status}}  -> {printable(check.mend)}")
    return found
