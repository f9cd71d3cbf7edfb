"""`gart doctor`: whether gart can work here, and what to mend."""

from __future__ import annotations

from gart.cli.checks import report
from gart.cli.options import JsonFile


def doctor(json: JsonFile = None) -> None:
    """Check this installation and machine; exit code 1 when something keeps gart from working."""
    from gart.doctor import examine

    report(examine(), json)
