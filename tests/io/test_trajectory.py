import io
import json

import pytest
import torch
from nerfbaselines.io import load_trajectory as nerfbaselines_load

from gart.cameras import Camera
from gart.errors import GartError
from gart.io.trajectory import load_trajectory, save_trajectory
from gart.optics import RollingShutter, ThinLens

TURN = torch.tensor([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]])


def camera(i, **changes):
    c2w = torch.cat([TURN, torch.tensor([[0.5 * i], [0.1], [2.0]])], 1)
    return Camera(**{"c2w": c2w, "fx": 50 + i, "fy": 51, "cx": 32, "cy": 24.5,
                     "width": 64, "height": 49, **changes})  # fmt: skip


def valid():
    frame = {"pose": [1, 0, 0, 5, 0, 1, 0, 6, 0, 0, 1, 7], "intrinsics": [9, 9, 2, 2]}
    return {
        "format": "nerfbaselines-v1",
        "camera_model": "pinhole",
        "image_size": [4, 5],
        "fps": 12.5,
        "frames": [dict(frame), dict(frame)],
    }


def test_round_trip(tmp_path):
    cameras = [camera(i) for i in range(3)]
    save_trajectory(tmp_path / "t.json", cameras, fps=24)
    again, fps = load_trajectory(tmp_path / "t.json")
    assert fps == 24
    for a, b in zip(cameras, again, strict=True):
        assert torch.equal(a.c2w, b.c2w)
        assert a.lens == b.lens


@pytest.mark.parametrize("model", ["opencv_fisheye", "equirectangular", "orthographic"])
def test_other_lenses(tmp_path, model):
    cameras = [camera(i, model=model) for i in range(2)]
    save_trajectory(tmp_path / "t.json", cameras)
    assert json.loads((tmp_path / "t.json").read_text())["camera_model"] == model
    for a, b in zip(cameras, load_trajectory(tmp_path / "t.json").cameras, strict=True):
        assert a.lens == b.lens
    with pytest.raises(GartError, match=rf"camera 1 is pinhole.*holds {model} cameras of one size"):
        save_trajectory(tmp_path / "t.json", [cameras[0], camera(1)])


def test_what_a_trajectory_cannot_hold(tmp_path):
    for changes in (
        {"model": "opencv_fisheye", "distortion": (0.1,)},
        {"aperture": ThinLens(0.1, 1.0)},
        {"shutter": RollingShutter(torch.eye(3, 4))},
    ):
        with pytest.raises(GartError, match="camera 0 is no plain "):
            save_trajectory(tmp_path / "t.json", [camera(0, **changes)])


def test_nerfbaselines_reads_what_we_write(tmp_path):
    save_trajectory(tmp_path / "t.json", [camera(2)], fps=24)
    theirs = nerfbaselines_load(io.StringIO((tmp_path / "t.json").read_text()))
    assert theirs["frames"][0]["pose"].tolist() == camera(2).c2w.tolist()
    assert theirs["frames"][0]["intrinsics"].tolist() == [52, 51, 32, 24.5]
    assert theirs["image_size"] == (64, 49)


def test_pose_is_row_major(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(valid()))
    cameras, fps = load_trajectory(tmp_path / "t.json")
    assert cameras[1].center.tolist() == [5, 6, 7]
    assert (cameras[1].width, cameras[1].height, fps) == (4, 5, 12.5)


def frame_without(field):
    def change(data):
        del data["frames"][1][field]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="v2"), "format is 'v2'; expected 'nerfbaselines-v1'"),
        (lambda d: d.update(camera_model="opencv"), "camera_model is 'opencv'; expected one of"),
        (lambda d: d.update(image_size=[4]), r"image_size is \[4\]; expected 2"),
        (lambda d: d.update(image_size=[4, 0]), "image_size is 4 x 0"),
        (lambda d: d.update(image_size=[4.5, 5]), "image_size is 4.5 x 5"),
        (lambda d: d.update(image_size=[10**9, 5]), "image_size is 1e.09 x 5.* to 32768"),
        (lambda d: d.update(image_size=[10**400, 5]), "image_size is .*expected 2 finite"),
        (lambda d: d.update(fps=0), "fps 0"),
        (lambda d: d["frames"][1]["pose"].__setitem__(3, 1e39), "pose is .*; expected 12 finite"),
        (lambda d: d.update(frames=[]), "frames is empty"),
        (frame_without("pose"), "frame 1: pose is None; expected 12"),
        (frame_without("intrinsics"), "frame 1: intrinsics is None; expected 4"),
        (lambda d: d["frames"][0]["pose"].pop(), "frame 0: pose is .*expected 12"),
        (lambda d: d["frames"][0]["pose"].__setitem__(0, "a"), "frame 0: pose is "),
        (lambda d: d["frames"][0]["pose"].__setitem__(0, -1), "frame 0: pose holds no rotation"),
        (lambda d: d["frames"][0]["pose"].__setitem__(0, 2), "frame 0: pose holds no rotation"),
        (lambda d: d["frames"][1].update(intrinsics=[0, 9, 2, 2]), "frame 1: intrinsics .* 0, 9"),
        (lambda d: d["frames"].append(3), "frame 2: is int"),
    ],
)
def test_messages_name_frame_and_field(tmp_path, change, message):
    data = valid()
    change(data)
    (tmp_path / "t.json").write_text(json.dumps(data))
    with pytest.raises(GartError, match=f"t.json.*{message}"):
        load_trajectory(tmp_path / "t.json")


def test_unreadable_files(tmp_path):
    with pytest.raises(GartError, match=r"t.json cannot be read: No such file"):
        load_trajectory(tmp_path / "t.json")
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(GartError, match=r"t.json is not valid JSON"):
        load_trajectory(tmp_path / "t.json")
    (tmp_path / "t.json").write_text("[" * 100_000)
    with pytest.raises(GartError, match=r"t.json is not valid JSON"):
        load_trajectory(tmp_path / "t.json")
    (tmp_path / "t.json").write_text("[1]")
    with pytest.raises(GartError, match=r"format is 'list'"):
        load_trajectory(tmp_path / "t.json")


def test_only_pinhole_cameras_of_one_size_are_written(tmp_path):
    with pytest.raises(GartError, match=r"camera 1 is pinhole, 65 x 49.*64 x 49"):
        save_trajectory(tmp_path / "t.json", [camera(0), camera(1, width=65)])
    with pytest.raises(GartError, match=r"camera 0 is opencv"):
        save_trajectory(tmp_path / "t.json", [camera(0, model="opencv")])
    with pytest.raises(GartError, match=r"at least one camera"):
        save_trajectory(tmp_path / "t.json", [])
    assert not (tmp_path / "t.json").exists()
