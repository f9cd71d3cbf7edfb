"""Which photographs are held out."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from gart.datasets.posed import Photograph, Posed, some
from gart.errors import GartError

HOLD_OUT = 8
EVERY_EIGHTH = "every 8th by name"


def held_out(index: int) -> bool:
    """Whether the photograph at `index` of the names in order is a test view."""
    return index % HOLD_OUT == 0


def divide(folder: Path, posed: Posed) -> tuple[list[Photograph], list[Photograph], str]:
    """Training photographs, held-out ones, both by name, and the rule that divided them.

    The first of these decides: split.txt (lines `train NAME`, `test NAME`); train_list.txt and
    test_list.txt (a name a line); the capture's own files (`Photograph.split`); every 8th name.
    Where only one set is listed, the rest is the other; where both are, photographs in neither are
    left out.

    Raises:
        GartError: a listed name is not a posed photograph or is in both sets, a line of split.txt
            is not of that form, or nothing is left to train on.
    """
    photographs = sorted(posed.photographs, key=lambda p: p.name)
    names = {p.name for p in photographs}
    lists = {split: folder / f"{split}_list.txt" for split in ("train", "test")}
    sets: dict[str, set[str]]
    if (file := folder / "split.txt").is_file():
        sets, rule = _read_split(file, names), file.name
    elif present := {s: f for s, f in lists.items() if f.is_file()}:
        sets = {s: _known(_lines(f), names, f) for s, f in present.items()}
        rule = " and ".join(f.name for f in present.values())
    elif own := {p.split for p in photographs if p.split is not None}:
        sets = {split: {p.name for p in photographs if p.split == split} for split in own}
        rule = "the capture's own files"
    else:
        sets, rule = (
            {"test": {p.name for i, p in enumerate(photographs) if held_out(i)}},
            EVERY_EIGHTH,
        )
    train = sets["train"] if "train" in sets else names - sets["test"]
    test = sets["test"] if "test" in sets else names - train
    if both := train & test:
        raise GartError(f"{folder} puts photographs in both train and test ({rule}): {some(both)}")
    if not train:
        raise GartError(
            f"{folder} has {len(names)} posed photographs and none to train on ({rule}); "
            "list some as `train NAME` in its split.txt"
        )
    return (
        [p for p in photographs if p.name in train],
        [p for p in photographs if p.name in test],
        rule,
    )


def _lines(file: Path) -> list[str]:
    # As the readers of models do: names may be of any bytes, and hold other separators of lines.
    text = file.read_bytes().decode("utf-8-sig", "surrogateescape")
    return [line.strip() for line in text.split("\n") if line.strip()]


def _read_split(file: Path, names: Collection[str]) -> dict[str, set[str]]:
    sets: dict[str, list[str]] = {}
    for line in _lines(file):
        split, *name = line.split(maxsplit=1)
        if split not in ("train", "test") or not name:
            raise GartError(f"{file} has the line {line!r}; expected `train NAME` or `test NAME`")
        sets.setdefault(split, []).append(name[0])
    if not sets:
        raise GartError(f"{file} is empty; list photographs in it, or remove it")
    return {split: _known(listed, names, file) for split, listed in sets.items()}


def _known(listed: list[str], names: Collection[str], file: Path) -> set[str]:
    if unknown := set(listed) - set(names):
        raise GartError(
            f"{file} names photographs that are not posed: {some(unknown)}; remove these lines"
        )
    return set(listed)
