"""Video files: mp4 through OpenCV."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import cv2
import numpy as np
import torch
from torch import Tensor

from gart.errors import GartError
from gart.io.atomic import atomic
from gart.io.images import quantise

CODECS = ("avc1", "mp4v")
"""Tried in order: H.264 plays everywhere, but OpenCV's wheels may lack its encoder; then MPEG-4."""


class VideoFile:
    """An mp4 being written: `with VideoFile(path, fps) as video: video.add(frame)`.

    The first frame sets the size; encoders want even sides, so an odd last row or column is
    dropped. The file appears under its name when all frames are in; after an error nothing is left.

    Raises:
        GartError: the suffix is not .mp4, a frame has another size, no frame came, or no encoder.
    """

    def __init__(self, path: str | Path, fps: float) -> None:
        self.path, self.fps = Path(path), fps
        self._writer: cv2.VideoWriter | None = None
        self._shape: torch.Size | None = None
        self._stack = ExitStack()
        if self.path.suffix.lower() != ".mp4":
            raise GartError(f"{path}: videos are written as .mp4; got {self.path.suffix!r}")
        if not fps > 0:
            raise GartError(f"{path}: fps is {fps}; expected a positive number")

    def __enter__(self) -> VideoFile:
        self._temporary = self._stack.enter_context(atomic(self.path))
        return self

    def add(self, frame: Tensor) -> None:
        """Append a frame: [H, W, 3], float in [0, 1] or uint8."""
        if frame.dtype != torch.uint8:
            frame = quantise(frame)
        if self._shape is None:
            self._shape = frame.shape
            self._writer = self._open(frame.shape[1] // 2 * 2, frame.shape[0] // 2 * 2)
        if frame.shape != self._shape:
            raise GartError(
                f"{self.path}: a frame is {frame.shape[1]} x {frame.shape[0]}, the first one is "
                f"{self._shape[1]} x {self._shape[0]}; frames of a video have one size: "
                "write to a folder instead"
            )
        even = frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2].cpu().numpy()
        assert self._writer is not None
        self._writer.write(np.ascontiguousarray(even[..., ::-1]))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.release()
        elif kind is None:
            error = GartError(f"{self.path}: no frame was written")
            self._stack.__exit__(GartError, error, None)
            raise error
        self._stack.__exit__(kind, error, traceback)

    def _open(self, width: int, height: int) -> cv2.VideoWriter:
        level = cv2.getLogLevel()
        cv2.setLogLevel(0)  # a codec may be missing
        try:
            for codec in CODECS:
                fourcc = cv2.VideoWriter.fourcc(*codec)
                size = (width, height)
                writer = cv2.VideoWriter(str(self._temporary), fourcc, self.fps, size)
                if writer.isOpened():
                    return writer
        finally:
            cv2.setLogLevel(level)
        raise GartError(
            f"{self.path}: OpenCV opens no mp4 encoder ({', '.join(CODECS)}) for "
            f"{width} x {height} frames at {self.fps:g} a second; write to a folder instead"
        )
