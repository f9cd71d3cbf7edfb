"""An HTML report: the table, and photograph, rendering and error of every view.

A folder that can be moved or served as it is: relative links, no script, nothing from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from gart.evaluation.evaluate import Pictures
from gart.evaluation.table import Table
from gart.io.atomic import write_bytes
from gart.io.images import save_png

FULL_ERROR = 64
"""Mean difference over the channels, of 255, that the brightest colour of an error image stands
for; larger ones look the same."""
KINDS = ("photograph", "rendering", "error")

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1500px;
  padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #8886; padding: .25rem .9rem .25rem 0; text-align: left; }
tr.published { opacity: .75; font-style: italic; }
.wide { overflow-x: auto; }
.view { display: grid; grid-template-columns: repeat(3, 1fr); gap: .5rem; margin: 0 0 1.5rem; }
.view h3 { grid-column: 1 / -1; font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
.view h3 small { font-weight: normal; }
figure { margin: 0; }
figcaption { font-size: .85rem; }
img { display: block; height: auto; width: 100%; }
.scale { background: linear-gradient(to right, STOPS); display: inline-block; height: .8em;
  width: 12em; }
"""


@dataclass
class _Section:
    title: str
    folder: str
    views: list[dict[str, Any]] = field(default_factory=list)


class Report:
    """A report that grows by the pictures of each evaluation and is complete after `write`.

    Args:
        folder: made if absent; files of the same names are replaced.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._sections: list[_Section] = []

    def section(self, title: str) -> Pictures:
        """Begin a section; what it returns is `evaluate`'s `pictures`."""
        section = _Section(title, f"{len(self._sections):02d}")
        self._sections.append(section)

        def add(record: dict[str, Any], image: Tensor, photo: Tensor, mask: Tensor | None) -> None:
            # Numbers for names: those of photographs hold slashes and what links cannot.
            stem = f"{section.folder}/{len(section.views):04d}"
            pictures = (photo, image, error_image(image, photo, mask))
            for kind, picture in zip(KINDS, pictures, strict=True):
                save_png(self.folder / f"{stem}.{kind}.png", picture)
            height, width = image.shape[:2]
            section.views.append({**record, "stem": stem, "width": width, "height": height})

        return add

    def write(self, table: Table, remarks: Iterable[str] = ()) -> Path:
        """Write index.html and return its path; `remarks` stand under the table."""
        notes = "".join(f"<p>{escape(note)}</p>" for note in [*remarks, *table.notes()])
        body = f"<h1>gart: evaluation</h1>{_html_table(table)}{notes}{_legend()}"
        body += "".join(map(_html_section, self._sections))
        style = _STYLE.replace("STOPS", ", ".join(_stops()))
        text = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width"><title>gart: evaluation</title>'
            f"<style>{style}</style></head>\n<body>{body}</body></html>\n"
        )
        path = self.folder / "index.html"
        write_bytes(path, text.encode(errors="backslashreplace"))  # names hold any bytes
        return path


def error_image(image: Tensor, photo: Tensor, mask: Tensor | None = None) -> Tensor:
    """[H, W, 3] uint8: the mean absolute difference over the channels in colours from black to
    light yellow, which is `FULL_ERROR` and more; grey where `mask` is false.

    Args:
        image, photo: [H, W, 3] uint8.
        mask: [H, W] bool or None.
    """
    mean = (image.int() - photo.int()).abs().float().mean(-1)
    level = (mean * 255 / FULL_ERROR).round().clamp(0, 255).to(torch.uint8)
    colors = _palette()[level.cpu().long()]
    if mask is not None:
        colors[~mask.cpu()] = 128
    return colors


def _palette() -> Tensor:
    """[256, 3] uint8 RGB."""
    levels = np.arange(256, dtype=np.uint8)[:, None]
    bgr = cv2.applyColorMap(levels, cv2.COLORMAP_INFERNO)[:, 0]
    return torch.from_numpy(np.ascontiguousarray(bgr[:, ::-1]))


def _stops() -> list[str]:
    return [f"rgb({r}, {g}, {b})" for r, g, b in _palette()[::15].tolist()]


def _legend() -> str:
    return (
        '<p>Error: 0 <span class="scale"></span> '
        f"{FULL_ERROR} of 255 and more, mean over the channels; grey: not counted.</p>"
    )


def _html_table(table: Table) -> str:
    headings, lines = table.cells()
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = ""
    for row, line in zip(table.rows, lines, strict=True):
        kind = ' class="published"' if row.source else ""
        body += f"<tr{kind}>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _html_section(section: _Section) -> str:
    return f"<h2>{escape(section.title)}</h2>" + "".join(map(_html_view, section.views))


def _html_view(view: dict[str, Any]) -> str:
    values = []
    if view.get("psnr") is not None:
        values.append(f"{view['psnr']:.2f} dB")
    names = {"ssim": "SSIM", "lpips": "LPIPS"}
    values += [f"{names[n]} {view[n]:.4f}" for n in names if view.get(n) is not None]
    figures = "".join(
        f'<figure><a href="{view["stem"]}.{kind}.png"><img src="{view["stem"]}.{kind}.png" '
        f'alt="{kind}" loading="lazy" width="{view["width"]}" height="{view["height"]}"></a>'
        f"<figcaption>{kind}</figcaption></figure>"
        for kind in KINDS
    )
    title = f"{escape(view['name'])} <small>{', '.join(values)}</small>"
    return f'<div class="view"><h3>{title}</h3>{figures}</div>'
