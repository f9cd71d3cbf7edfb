import cv2
import numpy as np
import pytest
import torch

import gart.io.video
from gart.errors import GartError
from gart.io.video import VideoFile


def read_frames(path):
    capture = cv2.VideoCapture(str(path))
    fps = capture.get(cv2.CAP_PROP_FPS)
    frames = []
    while (got := capture.read())[0]:
        frames.append(got[1][..., ::-1])
    return frames, fps


def test_video_reads_back(tmp_path):
    levels = [0.1, 0.5, 0.9]
    with VideoFile(tmp_path / "new" / "v.mp4", fps=25) as video:
        for level in levels:
            frame = torch.zeros(49, 65, 3)
            frame[..., 0] = level
            video.add(frame)
        assert not (tmp_path / "new" / "v.mp4").exists()  # not before it is whole
    frames, fps = read_frames(tmp_path / "new" / "v.mp4")
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
    with pytest.raises(GartError, match=r"written as .mp4; got '.avi'"):
        VideoFile(tmp_path / "v.avi", 30)
    with pytest.raises(GartError, match=r"fps is 0; expected"):
        VideoFile(tmp_path / "v.mp4", 0)


def test_no_encoder(tmp_path, monkeypatch):
    monkeypatch.setattr(gart.io.video, "CODECS", ("none",))
    with pytest.raises(GartError, match=r"opens no mp4 encoder \(none\) for 16 x 16"):
        write(tmp_path / "v.mp4", torch.zeros(16, 16, 3))
    assert list(tmp_path.iterdir()) == []


def test_trying_codecs_is_quiet(tmp_path, capfd):
    write(tmp_path / "v.mp4", torch.zeros(16, 16, 3))
    assert capfd.readouterr() == ("", "")
