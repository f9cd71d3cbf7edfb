"""A profile as tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table


def tables(profile: dict[str, Any]) -> list[Table]:
    """Times, then counts and memory; one column per backward mode or renderer."""
    columns: dict[str, dict[str, Any]] = profile["columns"]
    repetitions = next(iter(columns.values()))["repetitions"]
    noun = "iterations" if profile["kind"] == "training" else "images"
    times = _table(f"ms, mean of {repetitions} {noun}", columns)
    for name in _names(columns, "stages_ms"):
        _row(times, columns, name, lambda c, n=name: f"{c['stages_ms'].get(n, 0.0):.2f}")
    times.add_section()
    _row(times, columns, "total", lambda c: f"{c['total_ms']:.2f}")

    amounts = _table("counts (means), memory", columns)
    for name in _names(columns, "counts"):
        digits = 2 if "per" in name else 0
        if "bytes" not in name:
            _row(
                amounts,
                columns,
                name,
                lambda c, n=name, d=digits: f"{c['counts'].get(n, 0.0):,.{d}f}",
            )
    if any(column["lt_buffer_bytes"] for column in columns.values()):
        _row(amounts, columns, "LT buffer, MiB", lambda c: f"{c['lt_buffer_bytes'] / 2**20:,.1f}")
    _row(amounts, columns, "peak memory, MiB", lambda c: f"{c['peak_bytes'] / 2**20:,.0f}")
    return [times, amounts]


def _table(title: str, columns: dict[str, dict[str, Any]]) -> Table:
    table = Table()
    table.add_column(title)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _row(
    table: Table,
    columns: dict[str, dict[str, Any]],
    name: str,
    cell: Callable[[dict[str, Any]], str],
) -> None:
    table.add_row(name, *map(cell, columns.values()))


def _names(columns: dict[str, dict[str, Any]], key: str) -> list[str]:
    """Names under `key` in any column, in order of appearance; `other` last."""
    names = dict.fromkeys(name for column in columns.values() for name in column[key])
    return sorted(names, key=lambda name: name == "other")
