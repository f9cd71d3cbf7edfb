"""Video files: mp4 and webm."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from gart.errors import GartError
from gart.io.atomic import atomic
from gart.io.encoders import Encoder, count_frames, open_encoder
from gart.io.images import quantise

SUFFIXES = (".mp4", ".webm")
MAX_FPS = 1000
"""Of a video; one frame takes as many seconds at most. Encoders hang or fail far beyond."""


def is_video(path: str | Path) -> bool:
    """Whether `path` names a video by its suffix."""
    return Path(path).suffix.lower() in SUFFIXES


class VideoFile:
    """A video being written: `with VideoFile(path, fps) as video: video.add(frame)`.

    The first frame sets the size; encoders want even sides, so an odd last row or column is
    dropped. The file appears under its name when all frames are in; after an error nothing is left.

    Attributes:
        codec: name of the format, known after the first frame: H.264, MPEG-4, VP9 or VP8.

    Raises:
        GartError: the suffix is not one of `SUFFIXES`, fps are out of range, a frame has another
            size or is a pixel small, no frame came, or no encoder.
    """

    def __init__(self, path: str | Path, fps: float) -> None:
        self.path, self.fps = Path(path), fps
        self.codec = ""
        self._frames = 0
        self._encoder: Encoder | None = None
        self._shape: torch.Size | None = None
        self._stack = ExitStack()
        if not is_video(path):
            raise GartError(
                f"{path}: videos are written as {' or '.join(SUFFIXES)}; got {self.path.suffix!r}"
            )
        if not 1 / MAX_FPS <= fps <= MAX_FPS:
            raise GartError(
                f"{path}: fps is {fps:g}; expected {1 / MAX_FPS} to {MAX_FPS}, which --fps sets"
            )

    def __enter__(self) -> VideoFile:
        self._temporary = self._stack.enter_context(atomic(self.path))
        return self

    def add(self, frame: Tensor) -> None:
        """Append a frame: [H, W, 3], float in [0, 1] or uint8."""
        if frame.dtype != torch.uint8:
            frame = quantise(frame)
        height, width = (side // 2 * 2 for side in frame.shape[:2])
        if self._encoder is None:
            self._shape = frame.shape
            self._encoder = self._open(width, height)
            self.codec = self._encoder.codec
        if frame.shape != self._shape:
            assert self._shape is not None
            raise GartError(
                f"{self.path}: a frame is {frame.shape[1]} x {frame.shape[0]}, the first one is "
                f"{self._shape[1]} x {self._shape[0]}; frames of a video have one size: "
                "write to a folder instead"
            )
        self._encoder.write(frame[:height, :width].cpu().numpy())
        self._frames += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failure = error
        try:
            if self._encoder is not None:
                self._encoder.close()
            if error is None:
                self._check()
        except GartError as late:
            failure = late
        self._stack.__exit__(type(failure) if failure else None, failure, traceback)
        if failure is not error:
            assert failure is not None
            raise failure

    def _check(self) -> None:
        if not self._frames:
            raise GartError(f"{self.path}: no frame was written")
        if (there := count_frames(self._temporary)) < self._frames:
            raise GartError(
                f"{self.path}: {there} of {self._frames} frames could be written; is the disk full?"
            )

    def _open(self, width: int, height: int) -> Encoder:
        if not (width and height):
            raise GartError(f"{self.path}: frames of one pixel's height or width make no video")
        try:
            return open_encoder(self._temporary, self.path.suffix.lower(), width, height, self.fps)
        except GartError as error:
            raise GartError(f"{self.path}: {error}") from error
