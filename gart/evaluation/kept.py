"""Which files in a folder of renderings need not be rendered again.

`frames.jsonl` in the folder has a line for every file: its name, and a digest of all that decides
what it shows: the scene, the camera, the renderer with its settings, the background, and the gart
that made it. A file without a line, or with another digest, is rendered again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import gart
from gart.cameras import Camera
from gart.native import library_path
from gart.scene import Gaussians

RECORD = "frames.jsonl"


class KeptFrames:
    """The record of a folder, to ask and to add to.

    Args:
        folder: of the renderings, existing or not.
        gaussians: the scene.
        choices: all else that decides the images, besides the camera; by its `repr`.
    """

    def __init__(self, folder: Path, gaussians: Gaussians, *choices: object) -> None:
        self._folder = folder
        self._base = _digest(gaussians, choices)
        self._known: dict[str, str] = {}
        record = folder / RECORD
        text = record.read_text("utf-8", "replace") if record.is_file() else ""
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                self._known[entry["file"]] = entry["digest"]
            except (ValueError, TypeError, KeyError):
                continue  # cut off by a crash: that file is rendered again
        self._current: set[str] = set()

    def digest(self, camera: Camera) -> str:
        """Of all that decides the camera's images."""
        pose = camera.c2w.numpy().tobytes()
        end = b"" if camera.shutter is None else camera.shutter.end.numpy().tobytes()
        lens = repr((camera.lens, camera.aperture)).encode()
        return hashlib.sha256(self._base + lens + pose + end).hexdigest()

    def has(self, file: str, digest: str) -> bool:
        """Whether `file` is there and shows what `digest` says."""
        self._current.add(digest)
        return self._known.get(file) == digest and (self._folder / file).is_file()

    def others(self) -> int:
        """How many files of other cameras, scenes or settings than were asked for lie there."""
        stale = (file for file, digest in self._known.items() if digest not in self._current)
        return sum((self._folder / file).is_file() for file in stale)

    def add(self, file: str, digest: str) -> None:
        """Note that `file` was written whole."""
        self._known[file] = digest
        with (self._folder / RECORD).open("a", encoding="utf-8") as record:
            record.write(json.dumps({"file": file, "digest": digest}) + "\n")


def _digest(gaussians: Gaussians, choices: tuple[object, ...]) -> bytes:
    total = hashlib.sha256(repr((gart.__version__, choices)).encode())
    # A rebuilt library may draw other images under the same version.
    if (library := library_path(gaussians.device.type)) is not None:
        total.update(str(library.stat().st_mtime_ns).encode())
    for tensor in gaussians.tensors().values():
        total.update(repr(tuple(tensor.shape)).encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.digest()
