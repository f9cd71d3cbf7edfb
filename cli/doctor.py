"""`gart doctor`: whether gart can work here, and what to mend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gart.cli.options import JsonFile
from gart.cli.output import printable

if TYPE_CHECKING:
    from gart.doctor import Check


def doctor(json: JsonFile = None) -> None:
    """Check this installation and machine; exit code 1 when something keeps gart from working."""
    from dataclasses import asdict

    from gart.doctor import examine

    checks = examine()
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
