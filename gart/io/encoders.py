"""Video encoders: imageio-ffmpeg's FFmpeg where that package is installed, else OpenCV's.

imageio-ffmpeg is preferred: it holds a constant quality and brings H.264, which OpenCV's wheels
lack; their MPEG-4 is at a low bitrate and no browser plays it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np

from gart.errors import GartError

FFMPEG = "imageio_ffmpeg"
FFMPEG_CODECS = {".mp4": ("H.264", "libx264", "18"), ".webm": ("VP9", "libvpx-vp9", "24")}
"""Suffix -> name, FFmpeg's encoder, and its constant rate factor: no visible loss."""
OPENCV_CODECS = {
    ".mp4": {"avc1": "H.264", "mp4v": "MPEG-4"},
    ".webm": {"VP90": "VP9", "VP80": "VP8"},
}
"""Suffix -> codes and names, tried in order: a wheel may lack an encoder."""


class Encoder(Protocol):
    """A video file that is open for writing.

    Attributes:
        codec: name of the format.
    """

    codec: str

    def write(self, frame: np.ndarray) -> None:
        """Append [H, W, 3] uint8 RGB of the size it was opened with."""

    def close(self) -> None:
        """Complete the file; a full disk goes unnoticed, so `count_frames` must tell."""


def open_encoder(path: Path, suffix: str, width: int, height: int, fps: float) -> Encoder:
    """The best encoder there is for videos with `suffix`.

    Raises:
        GartError: none is there.
    """
    if find_spec(FFMPEG) is not None:
        try:
            return _Ffmpeg(path, suffix, width, height, fps)
        except (OSError, RuntimeError):
            pass  # a package without a working ffmpeg
    for code, name in OPENCV_CODECS[suffix].items():
        with _silence():
            fourcc = cv2.VideoWriter.fourcc(*code)
            writer = cv2.VideoWriter(str(path), fourcc, fps, (width, height))
        if writer.isOpened():
            return _OpenCv(writer, name)
    raise GartError(
        f"no {suffix} encoder for {width} x {height} frames at {fps:g} a second: OpenCV has none "
        f"of {', '.join(OPENCV_CODECS[suffix])}; pip install imageio-ffmpeg, or write to a folder "
        "instead"
    )


def count_frames(path: Path) -> int:
    """How many frames of a video file can be read."""
    count = 0
    with _silence():
        video = cv2.VideoCapture(str(path))
        while video.grab():
            count += 1
        video.release()
    return count


class _OpenCv:
    def __init__(self, writer: cv2.VideoWriter, codec: str) -> None:
        self._writer, self.codec = writer, codec

    def write(self, frame: np.ndarray) -> None:
        self._writer.write(np.ascontiguousarray(frame[..., ::-1]))

    def close(self) -> None:
        self._writer.release()


class _Ffmpeg:
    def __init__(self, path: Path, suffix: str, width: int, height: int, fps: float) -> None:
        import imageio_ffmpeg

        self.codec, encoder, quality = FFMPEG_CODECS[suffix]
        self._frames = imageio_ffmpeg.write_frames(
            str(path),
            (width, height),
            fps=fps,
            codec=encoder,
            quality=None,
            macro_block_size=2,
            ffmpeg_log_level="error",
            output_params=["-crf", quality, "-b:v", "0"]
            if suffix == ".webm"
            else ["-crf", quality],
        )
        self._frames.send(None)  # starts ffmpeg

    def write(self, frame: np.ndarray) -> None:
        try:
            self._frames.send(np.ascontiguousarray(frame))
        except OSError as error:
            raise GartError(f"ffmpeg stopped: {' '.join(str(error).split())[-300:]}") from error

    def close(self) -> None:
        self._frames.close()


@contextmanager
def _silence() -> Iterator[None]:
    """Drop what FFmpeg inside OpenCV says, straight to the terminal, about codecs it tries."""
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
