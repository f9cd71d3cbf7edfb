"""A profile as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from gart.memory import format_size


def tables(profile: dict[str, Any]) -> list[Table]:
    """Times, then counts and memory; one column per backward mode or renderer."""
    names, columns = list(profile["columns"]), list(profile["columns"].values())
    noun = "iterations" if profile["kind"] == "training" else "images"
    times = _table(f"ms, mean of {columns[0]['repetitions']} {noun}", names)
    for stage in sorted(_keys(columns, "stages_ms"), key=lambda name: name == "other"):
        times.add_row(stage, *_cells(columns, "stages_ms", stage, ".2f"))
    times.add_section()
    totals = (f"{c['total_ms']:.2f}" if "total_ms" in c else _needs(c) for c in columns)
    times.add_row("total", *totals)
    densifications = [c.get("densification_ms") for c in columns]
    if any(ms is not None for ms in densifications):
        cells = ("-" if ms is None else f"{ms:.2f}" for ms in densifications)
        times.add_row("densify, when it is due", *cells)

    amounts = _table("counts (means), memory", names)
    for count in _keys(columns, "counts"):
        if "bytes" not in count:  # memory has rows of its own
            digits = 2 if " per " in count else 0
            amounts.add_row(count, *_cells(columns, "counts", count, f",.{digits}f"))
    if any(c.get("lt_buffer_bytes") for c in columns):
        amounts.add_row("LT buffer, MiB", *(_mebibytes(c, "lt_buffer_bytes", 1) for c in columns))
    if "tile stream bytes" in _keys(columns, "counts"):
        streams = (_mebibytes(c.get("counts", {}), "tile stream bytes", 1) for c in columns)
        amounts.add_row("tile stream, MiB", *streams)
    amounts.add_row("peak memory, MiB", *(_mebibytes(c, "peak_bytes", 0) for c in columns))
    return [times, amounts]


def _needs(column: dict[str, Any]) -> str:
    """Stands for the total of a column whose LT buffer did not fit: it has nothing else."""
    return f"needs {format_size(column['needs_bytes'])}"


def _cells(columns: list[dict[str, Any]], mapping: str, key: str, spec: str) -> list[str]:
    return [f"{c[mapping].get(key, 0.0):{spec}}" if mapping in c else "" for c in columns]


def _table(title: str, names: list[str]) -> Table:
    table = Table()
    table.add_column(title)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _keys(columns: list[dict[str, Any]], mapping: str) -> list[str]:
    """Keys of that mapping in any column, in order of appearance."""
    return list(dict.fromkeys(key for column in columns for key in column.get(mapping, {})))


def _mebibytes(column: dict[str, Any], key: str, digits: int) -> str:
    return f"{column[key] / 2**20:,.{digits}f}" if key in column else ""
