"""What a capture's folder holds, what of it will be used, and what is wrong with it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from gart.cameras import Camera
from gart.datasets.check_geometry import check_geometry
from gart.datasets.loading import count_unposed, read_folder
from gart.datasets.photographs import is_transparent, is_turned, orientation, read_view
from gart.datasets.posed import Photograph, Posed, some
from gart.datasets.split import divide
from gart.doctor import Check
from gart.errors import GartError, UsageError

Report = Callable[[int, int, object], None]
"""Called with how many photographs of how many are read, and nothing else."""


def check_capture(folder: Path, report: Report = lambda *_: None) -> list[Check]:
    """Findings on a capture's folder; it cannot be trained on where one is a problem.

    Every photograph is read. Nothing is written.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give the folder of a capture")
    folder = folder.resolve()
    try:
        posed = read_folder(folder)
    except GartError as error:
        return [_problem("capture", str(error))]
    train, test, split = _check_split(folder, posed)
    found = [
        Check("capture", _describe(posed)),
        *_check_files(posed),
        *_check_photographs(posed, train, test, report),
        *check_geometry(posed, train, test),
        split,
    ]
    if any(check.status == "problem" for check in found):
        return [*found, Check("use", "nothing, until the problems above are mended", "problem")]
    return [*found, Check("use", _use(posed, train, test))]


def _describe(posed: Posed) -> str:
    unposed = count_unposed(posed)
    text = f"{posed.loader}, {len(posed.photographs)} posed photographs"
    return text + (f"; {unposed} more on disk have no pose and are left out" if unposed else "")


def _use(posed: Posed, train: Sequence[Photograph], test: Sequence[Photograph]) -> str:
    points = f"{len(posed.points)} points to start from" if len(posed.points) else "a random start"
    return f"{len(train)} photographs to train on, {len(test)} held out, {points}"


def _check_split(folder: Path, posed: Posed) -> tuple[list[Photograph], list[Photograph], Check]:
    try:
        train, test, rule = divide(folder, posed)
    except GartError as error:
        return [], [], _problem("split", str(error))
    text = f"{len(train)} train, {len(test)} test, by {rule}"
    if left := len(posed.photographs) - len(train) - len(test):
        text += f"; {left} in neither"
    if not test:
        return train, test, Check("split", text, "warning", "hold some out, to measure quality")
    return train, test, Check("split", text)


def _check_files(posed: Posed) -> Iterable[Check]:
    masks = [p.mask for p in posed.photographs if p.mask is not None]
    missing = {str(p.path) for p in posed.photographs if not p.path.is_file()}
    missing |= {str(mask) for mask in masks if not mask.is_file()}
    total = len(posed.photographs) + len(masks)
    if missing:
        yield _problem(
            "files",
            f"{len(missing)} of {total} are missing: {some(missing, 3)}",
            "copy them there, or remove them from the model",
        )
    else:
        yield Check("files", f"all {total} there" + (f", {len(masks)} masks" if masks else ""))


@dataclass(frozen=True)
class _Facts:
    """Of one photograph that could be read."""

    photograph: Photograph
    size: tuple[int, int]
    kind: str
    exif: str
    rescaled: bool
    digest: bytes


def _facts(photograph: Photograph) -> _Facts | tuple[str, str]:
    """Facts, or the name and what is wrong."""
    try:
        view = read_view(photograph)
        with Image.open(photograph.path) as image:
            kind, exif = _kind(image), _exif(image, photograph.camera)
    except GartError as error:
        return photograph.name, str(error)
    size = (view.camera.width, view.camera.height)
    digest = hashlib.sha1(view.image.numpy().tobytes()).digest()
    rescaled = size != (photograph.camera.width, photograph.camera.height)
    return _Facts(photograph, size, kind, exif, rescaled, digest)


def _kind(image: Image.Image) -> str:
    if is_transparent(image):
        return "with alpha"
    return {"RGB": "colour", "L": "grey", "CMYK": "CMYK"}.get(image.mode, f"mode {image.mode}")


def _exif(image: Image.Image, camera: Camera) -> str:
    if orientation(image) == 1:
        return ""
    if is_turned(image, camera):
        return "rotation applied, as the cameras need it,"
    return "rotation ignored, as COLMAP ignores it,"


def _check_photographs(
    posed: Posed, train: Sequence[Photograph], test: Sequence[Photograph], report: Report
) -> Iterable[Check]:
    there = [p for p in posed.photographs if p.path.is_file()]
    there = [p for p in there if p.mask is None or p.mask.is_file()]
    found, broken = [], {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for done, facts in enumerate(pool.map(_facts, there), 1):
            report(done, len(there), None)
            if isinstance(facts, _Facts):
                found.append(facts)
            else:
                broken[facts[0]] = facts[1]
    if broken:
        yield _problem(
            "photographs",
            f"{len(broken)} of {len(there)} cannot be used: {some(broken)}",
            min(broken.items())[1],
        )
    if not found:
        return
    sizes = Counter(facts.size for facts in found)
    kinds = Counter(facts.kind for facts in found)
    yield Check(
        "sizes",
        _counted(Counter({f"of {w} x {h}": n for (w, h), n in sizes.items()}))
        + f"; {_counted(kinds)}"
        + _rescaled(sum(facts.rescaled for facts in found)),
    )
    if turned := Counter(facts.exif for facts in found if facts.exif):
        yield Check("EXIF", "; ".join(f"{how} in {n}" for how, n in sorted(turned.items())))
    yield from _check_duplicates(found, {p.name for p in train}, {p.name for p in test})


def _check_duplicates(found: Sequence[_Facts], train: set[str], test: set[str]) -> Iterable[Check]:
    by_digest: dict[bytes, list[str]] = {}
    for facts in found:
        by_digest.setdefault(facts.digest, []).append(facts.photograph.name)
    groups = [names for names in by_digest.values() if len(names) > 1]
    if groups:
        leaks = sum(bool(train & set(names)) and bool(test & set(names)) for names in groups)
        text = f"{len(groups)} photographs are there more than once: {' = '.join(groups[0][:4])}"
        if leaks:
            text += f"; {leaks} both to train on and held out"
        yield Check("duplicates", text, "warning", "keep one of each")


def _rescaled(count: int) -> str:
    return f"; {count} scale their camera to their size" if count else ""


def _counted(counter: Counter[str], shown: int = 4) -> str:
    """The most frequent, with their numbers where there are several."""
    if len(counter) == 1:
        return next(iter(counter)).removeprefix("of ")
    parts = [f"{count} {name}" for name, count in counter.most_common(shown)]
    more = len(counter) - shown
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")


def _problem(name: str, text: str, mend: str = "") -> Check:
    return Check(name, text, "problem", mend)
