"""One table of several results, published ones beside them: Markdown, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from gart.errors import UsageError
from gart.evaluation.evaluate import UNDISTORTED
from gart.evaluation.published import GPU, PUBLISHED, SOURCE
from gart.io.atomic import json_able, write_bytes

METRICS = ("psnr", "ssim", "lpips", "lpips_3dgs")
SUFFIXES = (".md", ".csv", ".json")

_NOTES = {
    "lpips": "LPIPS is the protocol's own; LPIPS 3DGS feeds VGG images as [0, 1], as the papers' "
    "scripts do: compare published values with that column.",
    "protocol": "Published rows follow the conventions of protocol 3dgs; set rows of another "
    "protocol beside each other only.",
    "tanksandtemples": "Tanks and Temples by name is nerfbaselines' own reconstruction; the "
    "published rows are of the photographs and cameras that the authors of 3DGS distribute.",
    "undistorted": "(u): compared with undistorted photographs, as tilegs renders pinhole images.",
    "exposure": "(e): colours of each rendering were fitted to its held-out photograph first.",
}


@dataclass(frozen=True)
class Row:
    """One line; None where a value is not known.

    Attributes:
        dataset: its name, "" for a capture of one's own.
        scene: or which mean.
        method: gart and its mode, or a published method.
        psnr, ssim, lpips, lpips_3dgs: means over the images; psnr in dB.
        gaussians: their number.
        train_seconds: time of training.
        gpu: what it was trained on.
        images: held-out images.
        protocol: how images were compared.
        undistorted: photographs were undistorted first.
        exposure: colours were fitted to each photograph first.
        source: where a published row is from, "" for one's own.
    """

    dataset: str
    scene: str
    method: str
    psnr: float | None = None
    ssim: float | None = None
    lpips: float | None = None
    lpips_3dgs: float | None = None
    gaussians: float | None = None
    train_seconds: float | None = None
    gpu: str | None = None
    images: int | None = None
    protocol: str = ""
    undistorted: bool = False
    exposure: bool = False
    source: str = ""


def row_of(
    result: dict[str, Any],
    dataset: str,
    scene: str,
    train_seconds: float | None = None,
    gpu: str | None = None,
) -> Row:
    """The row of what `evaluate` returned."""
    return Row(
        dataset=dataset,
        scene=scene,
        method=f"gart {result['mode']}",
        **{name: result["mean"].get(name) for name in METRICS},
        gaussians=result["gaussians"],
        train_seconds=train_seconds,
        gpu=gpu,
        images=result["images"],
        protocol=result["protocol"]["name"],
        undistorted=result["photographs"] == UNDISTORTED,
        exposure=result.get("exposure", False),
    )


class Table:
    """Rows by data set: each scene, means where a method has several scenes, published rows.

    Attributes:
        rows: all of them, in order.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows: list[Row] = []
        for dataset in dict.fromkeys(row.dataset for row in rows):
            own = [row for row in rows if row.dataset == dataset]
            self.rows += [*own, *(_means(own) if dataset else []), *_published(dataset)]

    def notes(self) -> list[str]:
        """What a reader must know to compare the rows."""
        published = any(row.source for row in self.rows)
        other = any(row.protocol != "3dgs" for row in self.rows)
        wanted = {
            "lpips": any(row.lpips is not None for row in self.rows),
            "protocol": published and other,
            "tanksandtemples": any(row.dataset == "tanksandtemples" for row in self.rows),
            "undistorted": any(row.undistorted for row in self.rows),
            "exposure": any(row.exposure for row in self.rows),
        }
        return [_NOTES[name] for name, is_wanted in wanted.items() if is_wanted]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows as text, columns that are empty left out."""
        headings = [heading for heading, _ in _COLUMNS]
        lines = [[show(row) for _, show in _COLUMNS] for row in self.rows]
        used = [i for i in range(len(headings)) if any(line[i] for line in lines)]
        return [headings[i] for i in used], [[line[i] for i in used] for line in lines]

    def markdown(self) -> str:
        """A Markdown table and the notes under it."""
        headings, lines = self.cells()
        widths = [max(map(len, column)) for column in zip(headings, *lines, strict=True)]
        rule = ["-" * width for width in widths]
        text = "".join(
            "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |\n"
            for line in [headings, rule, *([_in_markdown(c) for c in row] for row in lines)]
        )
        return text + "".join(f"\n{note}\n" for note in self.notes())

    def csv(self) -> str:
        """All values, with a line of their names."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f.name for f in fields(Row)])
        writer.writerows([["" if v is None else v for v in asdict(r).values()] for r in self.rows])
        return file.getvalue()

    def json(self) -> str:
        """All values and the notes."""
        value = {"rows": [asdict(row) for row in self.rows], "notes": self.notes()}
        return json.dumps(json_able(value), indent=2) + "\n"

    def write(self, path: Path) -> None:
        """Write it in the format of the suffix, atomically.

        Raises:
            UsageError: another suffix than `SUFFIXES`.
        """
        check_suffix(path)
        texts = {".md": self.markdown, ".csv": self.csv, ".json": self.json}
        text = texts[path.suffix.lower()]()
        write_bytes(path, text.encode(errors="backslashreplace"))  # names hold any bytes


def check_suffix(path: Path) -> None:
    """Raise UsageError where a table cannot be written to `path`."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--table is {path}; expected a name that ends in {', '.join(SUFFIXES)}")


def difference(first: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Metric -> mean of the second result minus that of the first, where both have one."""
    pairs = {name: (first["mean"].get(name), value) for name, value in other["mean"].items()}
    return {
        name: b - a
        for name, (a, b) in pairs.items()
        if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)
    }


def _means(rows: Sequence[Row]) -> list[Row]:
    """A row for each method and protocol that has several scenes."""
    means = []

    def kind(row: Row) -> tuple[str, str, bool, bool]:
        return row.method, row.protocol, row.undistorted, row.exposure

    for key in dict.fromkeys(map(kind, rows)):
        same = [row for row in rows if kind(row) == key]
        if len({row.scene for row in same}) < 2 or len({row.scene for row in same}) < len(same):
            continue  # one scene, or a scene twice, whose mean would mean nothing
        method, protocol, undistorted, exposure = key
        gpus = {row.gpu for row in same}
        names = (*METRICS, "gaussians", "train_seconds")
        numbers: dict[str, Any] = {n: _mean([getattr(row, n) for row in same]) for n in names}
        means.append(
            Row(
                dataset=same[0].dataset,
                scene=f"mean of {len(same)}",
                method=method,
                **numbers,
                gpu=gpus.pop() if len(gpus) == 1 else None,
                images=sum(row.images or 0 for row in same),
                protocol=protocol,
                undistorted=undistorted,
                exposure=exposure,
            )
        )
    return means


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _published(dataset: str) -> list[Row]:
    return [
        Row(
            dataset=dataset,
            scene=entry.scenes,
            method=entry.method,
            psnr=entry.psnr,
            ssim=entry.ssim,
            lpips_3dgs=entry.lpips_3dgs,
            gaussians=entry.gaussians,
            train_seconds=entry.seconds,
            gpu=GPU,
            protocol="3dgs",
            source=SOURCE,
        )
        for entry in PUBLISHED
        if entry.dataset == dataset
    ]


def _in_markdown(cell: str) -> str:
    """A bar or a line break in a scene's name would end the cell."""
    return " ".join(cell.split()).replace("|", r"\|")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.2f}M" if value >= 1e5 else f"{value:.0f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


_COLUMNS = (
    ("data set", lambda row: row.dataset),
    ("scene", lambda row: row.scene),
    ("method", lambda row: row.method + " (u)" * row.undistorted + " (e)" * row.exposure),
    ("PSNR", lambda row: _number(row.psnr, 2)),
    ("SSIM", lambda row: _number(row.ssim, 3)),
    ("LPIPS", lambda row: _number(row.lpips, 3)),
    ("LPIPS 3DGS", lambda row: _number(row.lpips_3dgs, 3)),
    ("Gaussians", lambda row: _count(row.gaussians)),
    ("training", lambda row: _time(row.train_seconds)),
    ("trained on", lambda row: row.gpu or ""),
    ("protocol", lambda row: row.protocol),
    ("source", lambda row: row.source),
)
