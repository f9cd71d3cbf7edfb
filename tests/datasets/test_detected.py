"""Formats that gart leaves to nerfbaselines' own detection."""

import json

import nerfbaselines
import numpy as np
import pytest
from captures import look_at_origin, random_image, save_image

from gart.datasets import load
from gart.datasets.convert import to_camera
from gart.datasets.posed import make_camera, make_lens
from gart.errors import GartError


def test_bundler(tmp_path):
    count = 9
    lines = ["# Bundle file v0.3", f"{count} 1"]
    for i in range(count):
        rotation, translation = look_at_origin(i, count)
        flip = np.diag([1, -1, -1])  # bundler's axes are OpenGL's
        rows = [*(flip @ rotation), flip @ translation]
        lines += ["30 16 12", *(" ".join(map(repr, map(float, row))) for row in rows)]
    lines += ["0.5 0.25 -0.5", "10 20 30", "0"]
    (tmp_path / "cameras.out").write_text("\n".join(lines) + "\n")
    for i in range(count):
        save_image(tmp_path / "images" / f"{i}.png", random_image(32, 24, seed=i))
    capture = load(str(tmp_path))
    assert [v.name for v in capture.test] == ["0.png", "8.png"]
    assert len(capture.train) == 7
    assert capture.metadata["loader"] == "nerfbaselines"
    assert capture.points.tolist() == [[0.5, 0.25, -0.5]]
    assert capture.point_colors.tolist() == [[10, 20, 30]]
    assert (capture.train[0].camera.fx, capture.train[0].camera.cx) == (30, 16)


def test_an_empty_folder_is_one_sentence(tmp_path):
    with pytest.raises(GartError) as error:
        load(str(tmp_path))
    message = str(error.value)
    assert message.startswith(f"{tmp_path} is not a capture that gart can read: it has no sparse/0")
    assert "bundler: Could not find cameras.out" in message
    assert "\n" not in message


def test_an_unknown_loader(tmp_path):
    (tmp_path / "nb-info.json").write_text('{"loader": "what"}')
    with pytest.raises(
        GartError, match=r"nerfbaselines cannot load the train .*ValueError: Unknown dataset loader"
    ):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "mend or remove"),
        ("[" * 100_000, "mend or remove"),
        ("[]", "holds list"),
        ('{"loader": 3}', "has loader 3 with loader_kwargs {}; expected a name and an object"),
        ('{"loader": "colmap", "loader_kwargs": ["a"]}', r"loader_kwargs \['a'\]; expected"),
        *(
            (json.dumps({"loader": "colmap", "loader_kwargs": {name: 3}}), f"has {name} 3")
            for name in ("images_path", "colmap_path", "masks_path")
        ),
    ],
    ids=range(8),
)
def test_a_damaged_nb_info(tmp_path, text, message):
    (tmp_path / "nb-info.json").write_text(text)
    with pytest.raises(GartError, match=rf"nb-info.json .*{message}"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("model", "given", "gart_model", "distortion"),
    [
        ("opencv", [1, 2, 3, 4, 0, 0], "opencv", (1, 2, 3, 4)),
        ("opencv", [1, 2, 3, 4, 5, 0], "full_opencv", (1, 2, 3, 4, 5, 0, 0, 0)),
        ("opencv", [0] * 6, "pinhole", ()),
        ("pinhole", [], "pinhole", ()),
        ("opencv_fisheye", [1, 2, 8, 9, 3, 4], "opencv_fisheye", (1, 2, 3, 4)),
        ("opencv_fisheye", [0] * 6, "opencv_fisheye", (0, 0, 0, 0)),
        ("full_opencv", [1, 2, 3, 4, 5, 6, 7, 8], "full_opencv", (1, 2, 3, 4, 5, 6, 7, 8)),
    ],
)
def test_distortion_orders(model, given, gart_model, distortion):
    camera = nerfbaselines.new_cameras(
        poses=np.eye(3, 4, dtype=np.float32),
        intrinsics=np.float32([30, 30, 16, 12]),
        camera_models=np.int32(nerfbaselines.camera_model_to_int(model)),
        image_sizes=np.int32([32, 24]),
        distortion_parameters=np.float32(given),
    )
    converted = to_camera(camera)
    assert (converted.model, converted.distortion) == (gart_model, distortion)


def test_coefficients_that_a_model_lacks_are_refused():
    assert make_lens("opencv", {"k1": 0.1, "k5": 0.0}) == ("opencv", (0.1, 0, 0, 0))
    with pytest.raises(GartError, match=r"its lens has k4 = 0\.1, which the .* OPENCV lacks"):
        make_lens("opencv", {"k1": 0.1, "k4": 0.1})


def test_a_mirrored_pose_is_refused():
    with pytest.raises(GartError, match="not a rotation"):
        make_camera(np.diag([1, 1, -1, 1])[:3], (30, 30, 16, 12), (32, 24), "pinhole", [])


@pytest.mark.parametrize(
    ("shift", "size", "message"),
    [
        (1e39, (32, 24), "not finite"),  # beyond float32
        (0, (40_000, 24), "image size is 40000 x 24; expected pixels from 1 to 32768"),
        (0, (0, 24), "image size is 0 x 24"),
        (0, (10**30, 24), "image size is 1"),
        (0, (float("inf"), 24), "infinity"),
        (0, (float("nan"), 24), "NaN"),
    ],
)
def test_numbers_out_of_any_range_are_refused(shift, size, message):
    pose = np.eye(3, 4)
    pose[0, 3] = shift
    with pytest.raises(GartError, match=message):
        make_camera(pose, (30, 30, 16, 12), size, "pinhole", [])
