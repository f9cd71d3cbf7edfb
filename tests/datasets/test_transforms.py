import json
import math

import cv2
import numpy as np
import pytest
import torch
from captures import look_at_origin, random_image, save_image
from plyfile import PlyData, PlyElement

from gart.datasets import load
from gart.errors import GartError

POINTS = np.random.default_rng(1).uniform(-1, 1, (20, 3))
LENS = {"fl_x": 30.0, "fl_y": 31.0, "cx": 16.5, "cy": 11.5, "w": 32, "h": 24}


def matrix(index, count):
    """Camera to world in OpenGL's axes (y up, z back), as these files have it."""
    rotation, translation = look_at_origin(index, count)
    pose = np.eye(4)
    pose[:3] = np.concatenate([rotation.T, -rotation.T @ translation[:, None]], 1)
    return (pose * np.array([1, -1, -1, 1])).tolist()


def write(folder, meta, count=10, size=(32, 24), prefix="./images/", suffix=".png", file=None):
    frames = []
    for i in range(count):
        name = f"{prefix}{i:03d}{suffix}"
        image = folder / name
        if not suffix:
            image = image.with_name(image.name + ".png")
        save_image(image, random_image(*size, channels=meta.get("channels", 3), seed=i))
        frames.append({"file_path": name, "transform_matrix": matrix(i, count)})
    meta = {**meta, "frames": frames[::-1]}
    (folder / (file or "transforms.json")).write_text(json.dumps(meta))
    return meta


def assert_projects_as_opencv(view, index, count, K, distortion, fisheye=False):
    rotation, translation = look_at_origin(index, count)
    points, vector = POINTS[:, None], cv2.Rodrigues(rotation)[0]
    K = np.array([[K[0], 0, K[2]], [0, K[1], K[3]], [0, 0, 1.0]])
    if fisheye:
        expected, _ = cv2.fisheye.projectPoints(
            points, vector, translation[:, None], K, np.array(distortion, np.float64)
        )
    else:
        expected, _ = cv2.projectPoints(points, vector, translation, K, np.array(distortion))
    got = view.camera.project(torch.from_numpy(POINTS)).numpy()
    np.testing.assert_allclose(got, expected[:, 0], atol=2e-4)


@pytest.mark.parametrize(
    ("keys", "model", "distortion"),
    [
        ({}, "pinhole", [0, 0, 0, 0]),
        ({"k1": 0.0, "p1": 0.0}, "pinhole", [0, 0, 0, 0]),
        ({"k1": -0.2, "k2": 0.07, "p1": 0.03, "p2": -0.05}, "opencv", [-0.2, 0.07, 0.03, -0.05]),
        ({"p1": 0.03}, "opencv", [0, 0, 0.03, 0]),
        ({"p2": 0.03}, "opencv", [0, 0, 0, 0.03]),
        ({"k1": -0.2, "k3": 0.05}, "full_opencv", [-0.2, 0, 0, 0, 0.05, 0, 0, 0]),
    ],
)
def test_perspective_lenses(tmp_path, keys, model, distortion):
    write(tmp_path, {**LENS, **keys})
    capture = load(str(tmp_path))
    assert [v.name for v in capture.test] == ["000.png", "008.png"]
    for view, index in ((capture.test[1], 8), (capture.train[0], 1)):
        assert view.camera.model == model
        assert_projects_as_opencv(view, index, 10, (30, 31, 16.5, 11.5), np.float64(distortion))
    assert capture.metadata["loader"] == "transforms"
    assert capture.metadata["split"] == "every 8th by name"


@pytest.mark.parametrize("sign", [{"camera_model": "OPENCV_FISHEYE"}, {"is_fisheye": True}])
def test_fisheye(tmp_path, sign):
    k = {"k1": 0.05, "k2": -0.03, "k3": 0.02, "k4": -0.01}
    write(tmp_path, {**LENS, **k, **sign})
    view = load(str(tmp_path)).test[0]
    assert view.camera.model == "opencv_fisheye"
    lens = (30, 31, 16.5, 11.5)
    assert_projects_as_opencv(view, 0, 10, lens, list(k.values()), fisheye=True)


def test_intrinsics_of_a_frame_go_before_the_file_s(tmp_path):
    meta = write(tmp_path, {**LENS, "p1": 0.01, "p2": 0.02})
    frame = next(f for f in meta["frames"] if f["file_path"].endswith("003.png"))
    frame.update({"fl_x": 40.0, "p2": -0.02})
    (tmp_path / "transforms.json").write_text(json.dumps(meta))
    camera = {v.name: v.camera for v in load(str(tmp_path)).train}
    assert camera["003.png"].fx == 40
    assert camera["003.png"].distortion == (0, 0, 0.01, -0.02)
    assert camera["004.png"].fx == 30
    assert camera["004.png"].distortion == (0, 0, 0.01, 0.02)


def test_view_angles_stand_in_for_focal_lengths(tmp_path):
    write(tmp_path, {"camera_angle_x": 0.9, "camera_angle_y": 0.6})
    camera = load(str(tmp_path)).train[0].camera
    assert camera.fx == pytest.approx(16 / math.tan(0.45))
    assert camera.fy == pytest.approx(12 / math.tan(0.3))
    assert (camera.cx, camera.cy) == (16, 12)


def test_points_of_ply_file_path(tmp_path):
    write(tmp_path, {**LENS, "ply_file_path": "sparse_pc.ply"})
    with pytest.raises(GartError, match=r"the points .*sparse_pc.ply cannot be read"):
        load(str(tmp_path))
    kinds = [(n, "f4") for n in "xyz"] + [(n, "u1") for n in ("red", "green", "blue")]
    rows = [(1.0, 2.0, 3.0, 4, 5, 6), (-1.0, 0.0, 0.5, 255, 0, 9)]
    vertices = PlyElement.describe(np.array(rows, dtype=kinds), "vertex")
    PlyData([vertices]).write(str(tmp_path / "sparse_pc.ply"))
    capture = load(str(tmp_path))
    assert capture.points.tolist() == [[1, 2, 3], [-1, 0, 0.5]]
    assert capture.point_colors.tolist() == [[4, 5, 6], [255, 0, 9]]


def test_the_file_s_own_split(tmp_path):
    files = [f"images/{i:03d}.png" for i in range(10)]
    write(tmp_path, {**LENS, "train_filenames": files[2:], "val_filenames": files[1:2]})
    capture = load(str(tmp_path))
    assert [v.name for v in capture.test] == ["001.png"]
    assert [v.name for v in capture.train] == [f"{i:03d}.png" for i in range(2, 10)]
    assert capture.metadata["split"] == "the capture's own files"
    assert capture.metadata["unlisted"] == 1


def synthetic(folder, size=(20, 16), **meta):
    meta = {"camera_angle_x": 0.7, "channels": 4, **meta}
    for split, count in (("train", 5), ("test", 3)):
        file = f"transforms_{split}.json"
        write(folder, meta, count, size, prefix=f"./{split}/r_", suffix="", file=file)
    return folder


def test_nerf_synthetic_lies_over_white_at_the_images_own_size(tmp_path):
    capture = load(str(synthetic(tmp_path)))
    assert [v.name for v in capture.train] == [f"train/r_00{i}.png" for i in range(5)]
    assert [v.name for v in capture.test] == [f"test/r_00{i}.png" for i in range(3)]
    assert capture.background == (1.0, 1.0, 1.0)
    assert capture.metadata["loader"] == "blender"
    assert capture.metadata["alpha"] == "photographs with alpha lie over RGB [1.0, 1.0, 1.0]"
    assert capture.points.shape == (0, 3)
    view = capture.train[2]
    np.testing.assert_array_equal(view.image.numpy(), random_image(20, 16, channels=4, seed=2))
    focal = 10 / math.tan(0.35)
    assert_projects_as_opencv(view, 2, 5, (focal, focal, 10, 8), np.zeros(4))


def test_nerf_synthetic_without_test_views_holds_out_every_eighth(tmp_path):
    (synthetic(tmp_path) / "transforms_test.json").unlink()
    capture = load(str(tmp_path))
    assert [v.name for v in capture.test] == ["train/r_000.png"]
    assert capture.metadata["split"] == "every 8th by name"


def test_panoramas_show_all_directions_whatever_their_focal_lengths(tmp_path):
    write(tmp_path, {"camera_model": "EQUIRECTANGULAR", "fl_x": 16, "fl_y": 24, "w": 32, "h": 24})
    camera = load(str(tmp_path)).train[0].camera
    assert camera.model == "equirectangular"
    assert camera.lens[1:5] == pytest.approx((32 / (2 * math.pi), 24 / math.pi, 16, 12))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": []}, r"transforms.json cannot be read \(ValueError: no frames\)"),
        ({"frames": {"a": 1}}, r"transforms.json cannot be read \(ValueError: no frames\)"),
        ({"frames": [3]}, r"transforms.json cannot be read \(AttributeError"),
        ({"ply_file_path": 3}, "3 is no file's name"),
        ({"train_filenames": 3}, r"cannot be read \(TypeError"),
        ({"train_filenames": [3]}, "3 is no file's name"),
        ({"test_filenames": ["a\0b"]}, "is no file's name"),
        ({"w": float("inf")}, "bad camera for ./images/009.png: cannot convert float infinity"),
        ({"w": 10**30}, "bad camera for ./images/009.png: image size is 1"),
        ({"camera_model": "EUCM"}, r"'EUCM'; allowed are SIMPLE_PINHOLE"),
        ({"k4": 0.1}, r"images/009.png: its lens has k4 = 0.1, which the .* OPENCV lacks"),
        ({"fl_x": -1}, r"bad camera for ./images/009.png: focal lengths are -1.0, 31.0"),
        ({"fl_x": "wide"}, r"bad camera for ./images/009.png: could not convert string"),
    ],
)
def test_faults_of_the_file(tmp_path, change, message):
    meta = write(tmp_path, LENS)
    (tmp_path / "transforms.json").write_text(json.dumps({**meta, **change}))
    with pytest.raises(GartError, match=message):
        load(str(tmp_path))


def test_faults_of_a_frame(tmp_path):
    meta = write(tmp_path, {k: v for k, v in LENS.items() if k != "fl_x"})
    with pytest.raises(GartError, match=r"transforms.json lacks 'camera_angle_x' for .*009.png"):
        load(str(tmp_path))
    meta["fl_x"] = 30
    stretched = np.diag([1, 2, 1, 1]) @ np.array(meta["frames"][0]["transform_matrix"])
    for pose, message in [
        (stretched.tolist(), "its pose is not a rotation and a translation"),
        (np.eye(3).tolist(), r"its transform_matrix has shape \[3, 3\]; expected 4 x 4"),
    ]:
        meta["frames"][0]["transform_matrix"] = pose
        (tmp_path / "transforms.json").write_text(json.dumps(meta))
        with pytest.raises(GartError, match=f"bad camera for ./images/009.png: {message}"):
            load(str(tmp_path))
    meta["frames"][0]["transform_matrix"] = 3
    (tmp_path / "transforms.json").write_text(json.dumps(meta))
    with pytest.raises(GartError, match=r"bad camera for ./images/009.png: "):
        load(str(tmp_path))
    meta["frames"][0]["mask_path"] = 3
    (tmp_path / "transforms.json").write_text(json.dumps(meta))
    with pytest.raises(GartError, match=r"3 is no file's name"):
        load(str(tmp_path))
    for text in ("{", "[]", "null", '{"frames": ' + "[" * 100_000):
        (tmp_path / "transforms.json").write_text(text)
        with pytest.raises(GartError, match=r"transforms.json cannot be read \("):
            load(str(tmp_path))


def test_a_view_angle_of_zero_is_refused(tmp_path):
    meta = {k: v for k, v in LENS.items() if k != "fl_x"}
    write(tmp_path, {**meta, "camera_angle_x": 0})
    with pytest.raises(GartError, match=r"bad camera for ./images/009.png: float division by zero"):
        load(str(tmp_path))


def test_null_counts_as_absent(tmp_path):
    nothing = dict.fromkeys(("ply_file_path", "train_filenames", "test_filenames", "k1", "k4"))
    write(tmp_path, {**LENS, **nothing})
    capture = load(str(tmp_path))
    assert len(capture.points) == 0
    assert capture.metadata["split"] == "every 8th by name"


@pytest.mark.parametrize("make", [lambda folder: write(folder, LENS), synthetic])
def test_missing_photographs_are_named(tmp_path, make):
    make(tmp_path)
    files = sorted(tmp_path.rglob("*00[0-3].png"))[:4]
    for file in files:
        file.unlink()
    with pytest.raises(GartError, match=r"image files of the capture are missing: .*000\.png"):
        load(str(tmp_path))


def test_a_number_that_is_not_finite_is_refused(tmp_path):
    meta = write(tmp_path, LENS)
    meta["frames"][3]["transform_matrix"][0][3] = math.nan
    (tmp_path / "transforms.json").write_text(json.dumps(meta))
    with pytest.raises(GartError, match=r"bad camera for .*006.png: .* not finite"):
        load(tmp_path)
    (tmp_path / "transforms.json").write_text(json.dumps({**meta, "frames": [{}], "k1": 0}))
    with pytest.raises(GartError, match="file_path"):
        load(tmp_path)
