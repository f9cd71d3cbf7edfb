import resource
import sys
from types import ModuleType

import cv2
import numpy as np
import pytest
import torch

import gart.io.encoders
from gart.errors import GartError
from gart.io.video import VideoFile


def read_frames(path):
    capture = cv2.VideoCapture(str(path))
    fps = capture.get(cv2.CAP_PROP_FPS)
    frames = []
    while (got := capture.read())[0]:
        frames.append(got[1][..., ::-1])
    return frames, fps


@pytest.fixture(autouse=True)
def opencv_only(monkeypatch):
    """As where imageio-ffmpeg is not installed."""
    monkeypatch.setattr(gart.io.encoders, "FFMPEG", "no_such_package")


@pytest.mark.parametrize(("name", "codecs"), [("v.mp4", "H.264 MPEG-4"), ("v.webm", "VP9 VP8")])
def test_video_reads_back(tmp_path, name, codecs):
    levels = [0.1, 0.5, 0.9]
    with VideoFile(tmp_path / "new" / name, fps=25) as video:
        for level in levels:
            frame = torch.zeros(49, 65, 3)
            frame[..., 0] = level
            video.add(frame)
        assert not (tmp_path / "new" / name).exists()  # not before it is whole
    assert video.codec in codecs.split()
    frames, fps = read_frames(tmp_path / "new" / name)
    assert len(frames) == 3
    assert fps == 25
    for frame, level in zip(frames, levels, strict=True):
        assert frame.shape == (48, 64, 3)  # odd sizes lose a row and a column
        assert np.abs(frame.reshape(-1, 3).mean(0) - [255 * level, 0, 0]).max() < 8
    assert len(list((tmp_path / "new").iterdir())) == 1


def write(path, *frames):
    with VideoFile(path, 30) as video:
        for frame in frames:
            video.add(frame)


def test_failures_leave_no_file(tmp_path):
    path = tmp_path / "v.mp4"
    with pytest.raises(GartError, match=r"v.mp4: a frame is 32 x 16, the first one is 16 x 16"):
        write(path, torch.zeros(16, 16, 3), torch.zeros(16, 32, 3))
    with pytest.raises(GartError, match=r"v.mp4: no frame was written"):
        write(path)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments(tmp_path):
    with pytest.raises(GartError, match=r"written as .mp4 or .webm; got '.avi'"):
        VideoFile(tmp_path / "v.avi", 30)
    for fps in (0, float("nan"), float("inf"), 1e4):  # encoders hang on an infinite one
        with pytest.raises(
            GartError, match=rf"fps is {fps:g}; expected 0.001 to 1000, which --fps"
        ):
            VideoFile(tmp_path / "v.mp4", fps)


def test_no_encoder(tmp_path, monkeypatch):
    monkeypatch.setitem(gart.io.encoders.OPENCV_CODECS, ".mp4", {"none": "None"})
    message = r"v.mp4: no .mp4 encoder for 16 x 16 frames at 30 a second: OpenCV has none of none; "
    with pytest.raises(GartError, match=message + "pip install imageio-ffmpeg"):
        write(tmp_path / "v.mp4", torch.zeros(16, 16, 3))
    with pytest.raises(GartError, match=r"frames of one pixel's height or width"):
        write(tmp_path / "v.mp4", torch.zeros(16, 1, 3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["v.mp4", "v.webm"])
def test_trying_codecs_is_quiet(tmp_path, capfd, name):
    write(tmp_path / name, torch.zeros(16, 16, 3))
    assert capfd.readouterr() == ("", "")


def test_ffmpeg_is_preferred_where_it_is_installed(tmp_path, monkeypatch):
    calls = []

    def write_frames(path, size, **options):
        calls.append((size, options["codec"], options["fps"]))
        with open(path, "wb") as file:
            while True:
                try:
                    frame = yield
                except GeneratorExit:
                    return
                file.write(frame.tobytes())

    package = ModuleType("imageio_ffmpeg")
    package.write_frames = write_frames
    package.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", package)
    monkeypatch.setattr(gart.io.encoders, "FFMPEG", "imageio_ffmpeg")
    monkeypatch.setattr("gart.io.video.count_frames", lambda path: 2)
    frame = torch.randint(0, 256, (17, 20, 3), dtype=torch.uint8)
    for name, encoder in (("v.mp4", "libx264"), ("v.webm", "libvpx-vp9")):
        write(tmp_path / name, frame, frame)
        assert (tmp_path / name).read_bytes() == 2 * frame[:16].numpy().tobytes()
        assert calls.pop() == ((20, 16), encoder, 30)


def test_ffmpeg_that_does_not_start_leaves_opencv(tmp_path, monkeypatch):
    package = ModuleType("imageio_ffmpeg")
    package.__spec__ = sys.__spec__

    def write_frames(*arguments, **options):
        raise RuntimeError("No ffmpeg exe could be found")
        yield

    package.write_frames = write_frames
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", package)
    monkeypatch.setattr(gart.io.encoders, "FFMPEG", "imageio_ffmpeg")
    write(tmp_path / "v.mp4", torch.zeros(16, 16, 3))
    assert len(read_frames(tmp_path / "v.mp4")[0]) == 1


@pytest.mark.parametrize("name", ["v.mp4", "v.webm"])
def test_a_disk_that_fills_up_is_noticed(tmp_path, name):
    # Encoders say nothing of it: they leave a file that is cut off.
    noise = torch.randint(0, 256, (64, 64, 3), dtype=torch.uint8)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(GartError, match=rf"{name}: \d+ of 30 frames could be written; is the"):
            write(tmp_path / name, *[noise.roll(i, 0) for i in range(30)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
