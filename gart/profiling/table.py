"""A profile as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def tables(profile: dict[str, Any]) -> list[Table]:
    """Times, then counts and memory; one column per backward mode or renderer."""
    names, columns = list(profile["columns"]), list(profile["columns"].values())
    noun = "iterations" if profile["kind"] == "training" else "images"
    times = _table(f"ms, mean of {columns[0]['repetitions']} {noun}", names)
    for stage in sorted(_keys(columns, "stages_ms"), key=lambda name: name == "other"):
        times.add_row(stage, *(f"{c['stages_ms'].get(stage, 0.0):.2f}" for c in columns))
    times.add_section()
    times.add_row("total", *(f"{c['total_ms']:.2f}" for c in columns))

    amounts = _table("counts (means), memory", names)
    for count in _keys(columns, "counts"):
        if "bytes" not in count:  # memory has rows of its own
            digits = 2 if " per " in count else 0
            amounts.add_row(count, *(f"{c['counts'].get(count, 0.0):,.{digits}f}" for c in columns))
    if any(c["lt_buffer_bytes"] for c in columns):
        amounts.add_row("LT buffer, MiB", *(_mebibytes(c["lt_buffer_bytes"], 1) for c in columns))
    amounts.add_row("peak memory, MiB", *(_mebibytes(c["peak_bytes"], 0) for c in columns))
    return [times, amounts]


def _table(title: str, names: list[str]) -> Table:
    table = Table()
    table.add_column(title)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _keys(columns: list[dict[str, Any]], mapping: str) -> list[str]:
    """Keys of that mapping in any column, in order of appearance."""
    return list(dict.fromkeys(key for column in columns for key in column[mapping]))


def _mebibytes(value: int, digits: int) -> str:
    return f"{value / 2**20:,.{digits}f}"
