import json
import os

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from gart.datasets import load
from gart.errors import GartError

LENSES = {
    # COLMAP model: parameters, gart's model, OpenCV distortion (None: pinhole)
    "SIMPLE_PINHOLE": ((30.0, 16.5, 11.5), "pinhole", None),
    "PINHOLE": ((30.0, 31.0, 16.5, 11.5), "pinhole", None),
    "SIMPLE_RADIAL": ((30.0, 16.5, 11.5, -0.2), "opencv", (-0.2, 0, 0, 0)),
    "RADIAL": ((30.0, 16.5, 11.5, -0.2, 0.07), "opencv", (-0.2, 0.07, 0, 0)),
    "OPENCV": (
        (30.0, 31.0, 16.5, 11.5, -0.2, 0.07, 0.013, -0.021),
        "opencv",
        (-0.2, 0.07, 0.013, -0.021),
    ),
    "OPENCV_FISHEYE": (
        (30.0, 31.0, 16.5, 11.5, 0.05, -0.03, 0.02, -0.01),
        "opencv_fisheye",
        (0.05, -0.03, 0.02, -0.01),
    ),
    "SIMPLE_RADIAL_FISHEYE": ((30.0, 16.5, 11.5, 0.05), "opencv_fisheye", (0.05, 0, 0, 0)),
    "RADIAL_FISHEYE": ((30.0, 16.5, 11.5, 0.05, -0.03), "opencv_fisheye", (0.05, -0.03, 0, 0)),
}


def by_name(capture):
    return {view.name: view for view in [*capture.train, *capture.test]}


@pytest.mark.parametrize("binary", [False, True])
def test_a_capture_is_read_as_written(colmap, binary):
    scene = colmap()
    capture = load(str(scene.write(binary=binary)))
    assert capture.name == "scene"
    assert [v.name for v in capture.test] == ["IMG_000.png", "IMG_008.png"]
    assert [v.name for v in capture.train] == [f"IMG_{i:03d}.png" for i in (1, 2, 3, 4, 5, 6, 7, 9)]
    for name, view in by_name(capture).items():
        rotation, translation = scene.poses[name]
        expected = np.concatenate([rotation.T, -rotation.T @ translation[:, None]], 1)
        np.testing.assert_allclose(view.camera.c2w.numpy(), expected, atol=1e-6)
        intrinsics = (view.camera.fx, view.camera.fy, view.camera.cx, view.camera.cy)
        assert intrinsics == scene.params
        assert (view.camera.width, view.camera.height) == scene.size
        assert view.image.dtype == torch.uint8
        np.testing.assert_array_equal(view.image.numpy(), scene.pixels[name])
        assert view.mask is None
    np.testing.assert_allclose(capture.points.numpy(), scene.points, atol=1e-6)
    np.testing.assert_array_equal(capture.point_colors.numpy(), scene.colors)
    assert capture.background == (0.0, 0.0, 0.0)
    assert capture.metadata == {
        "source": str(scene.folder),
        "loader": "colmap",
        "downscale": 1,
        "split": "every 8th by name",
        "unposed": 0,
        "unlisted": 0,
        "rescaled": 0,
    }
    json.dumps(capture.metadata)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("lens", LENSES)
def test_lenses_project_as_opencv_does(colmap, lens, binary):
    params, model, distortion = LENSES[lens]
    scene = colmap(lens=lens, params=params, count=2)
    for name, view in by_name(load(str(scene.write(binary=binary)))).items():
        assert view.camera.model == model
        rotation, translation = scene.poses[name]
        fx, fy, cx, cy = params[:4] if lens.startswith(("PIN", "OPEN")) else (30, *params[:3])
        K = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])
        points, vector = scene.points[:, None], cv2.Rodrigues(rotation)[0]
        if model == "opencv_fisheye":
            k = np.array(distortion, np.float64)
            expected = cv2.fisheye.projectPoints(points, vector, translation[:, None], K, k)[0]
        else:
            k = np.array(distortion or np.zeros(4), np.float64)
            expected = cv2.projectPoints(points, vector, translation, K, k)[0]
        got = view.camera.project(torch.from_numpy(scene.points)).numpy()
        np.testing.assert_allclose(got, expected[:, 0], atol=2e-4)
        np.testing.assert_array_equal(view.image.numpy(), scene.pixels[name])  # not undistorted


def test_a_lens_without_distortion_is_a_pinhole(colmap):
    folder = colmap(lens="SIMPLE_RADIAL", params=(30.0, 16.0, 12.0, 0.0)).write()
    assert load(str(folder)).train[0].camera.model == "pinhole"


@pytest.mark.parametrize("binary", [False, True])
def test_names_with_spaces_and_beyond_ascii(colmap, binary):
    names = ["a b  c.png", "Straße 1.png", "写真.png", "trailing .png"]
    folder = colmap(names=names, count=4).write(binary=binary)
    assert sorted(by_name(load(str(folder)))) == sorted(names)


def test_a_name_in_another_unicode_form(colmap):
    name = "caf\u00e9.png"  # as COLMAP on Linux wrote it; the disk has e and an accent
    folder = colmap(names=[name, "b.png"], count=2).write()
    (folder / "images" / name).rename(folder / "images" / "cafe\u0301.png")
    assert name in by_name(load(str(folder)))


@pytest.mark.parametrize("model", ["DIVISION", "SOMETHING"])
def test_a_camera_model_that_gart_lacks_is_refused_by_name(colmap, model):
    folder = colmap(count=2).write()
    (folder / "sparse/0/cameras.txt").write_text(f"7 {model} 32 24 30 31 16 12 0.1\n")
    with pytest.raises(GartError, match=rf"sparse/0 has a camera of model {model}.*undistort"):
        load(str(folder))


def test_cameras_that_no_image_uses_do_not_matter(colmap):
    folder = colmap(count=2).write()
    with (folder / "sparse/0/cameras.txt").open("a") as file:
        file.write("8 EUCM 32 24 30 31 16 12 0.5 1\n")
    assert len(load(str(folder)).train) == 1


def test_parameters_that_do_not_fit_the_model(colmap):
    folder = colmap(count=2).write()
    (folder / "sparse/0/cameras.txt").write_text("7 RADIAL 32 24 30 16 12 0.1\n")
    with pytest.raises(
        GartError, match=r"bad camera for IMG_00\d.png: RADIAL has the parameters f"
    ):
        load(str(folder))


def test_a_photograph_posed_twice(colmap):
    folder = colmap(count=3).write()
    images = folder / "sparse/0/images.txt"
    images.write_text(images.read_text().replace("IMG_001", "IMG_002"))
    with pytest.raises(GartError, match=r"poses photographs twice: IMG_002\.png; keep one"):
        load(str(folder))


@pytest.mark.parametrize("model", ["sparse/0", "sparse", "colmap/sparse/0"])
def test_where_the_model_may_lie(colmap, model):
    assert len(load(str(colmap(model=model).write())).points) == 20


def test_names_in_subfolders(colmap):
    names = ["left/a.png", "left/b.png", "right/a.png", "right/b.png"]
    folder = colmap(names=names, count=4).write()
    assert sorted(by_name(load(str(folder)))) == names


def test_points_may_be_absent(colmap):
    capture = load(str(colmap().write(has_points=False)))
    assert capture.points.shape == (0, 3)
    assert capture.point_colors.shape == (0, 3)
    assert len(capture.train) == 8


def test_a_colmap_model_wins_over_transforms_json_beside_it(colmap):
    folder = colmap().write()
    (folder / "transforms.json").write_text("{}")
    assert load(str(folder)).metadata["loader"] == "colmap"


def test_unposed_photographs_are_counted(colmap):
    folder = colmap().write()
    for name in ("extra.JPG", "more/extra.jpg"):
        (folder / "images" / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (3, 3)).save(folder / "images" / name)
    (folder / "images" / "Thumbs.db").write_bytes(b"")
    capture = load(str(folder))
    assert capture.metadata["unposed"] == 2
    assert len(by_name(capture)) == 10


def test_missing_photographs_are_named(colmap):
    folder = colmap().write()
    for i in (2, 4, 5, 7):
        (folder / "images" / f"IMG_{i:03d}.png").unlink()
    with pytest.raises(GartError) as error:
        load(str(folder))
    message = str(error.value)
    assert message.startswith("4 of 10 image files of the capture are missing: ")
    assert "IMG_002.png" in message
    assert "IMG_005.png and 1 more" in message
    assert "IMG_007" not in message


def test_no_images_folder(colmap):
    folder = colmap(images="photos").write()
    with pytest.raises(GartError, match="has a COLMAP model but no folder images"):
        load(str(folder))


def test_downscaled_images_folders_are_offered(colmap):
    scene = colmap(images="images_4")
    folder = scene.write()
    with pytest.raises(GartError, match="no folder images but has images_4") as error:
        load(str(folder))
    recipe = str(error.value).split("nb-info.json: ")[1]  # follow the advice
    (folder / "nb-info.json").write_text(recipe)
    assert len(load(str(folder)).train) == 8


def test_smaller_photographs_scale_the_camera(colmap):
    scene = colmap(count=2)
    folder = scene.write()
    (folder / "sparse/0/cameras.txt").write_text("7 PINHOLE 130 95 60 62 66 46\n")  # 4.06, 3.96
    capture = load(str(folder))
    camera = capture.train[0].camera
    assert (camera.width, camera.height) == (32, 24)
    assert camera.fx == pytest.approx(60 * 32 / 130)
    assert camera.fy == pytest.approx(62 * 24 / 95)
    assert camera.cx == pytest.approx(66 * 32 / 130)
    assert camera.cy == pytest.approx(46 * 24 / 95)
    assert capture.metadata["rescaled"] == 2


def test_another_aspect_ratio_is_refused(colmap):
    folder = colmap(count=2).write()
    (folder / "sparse/0/cameras.txt").write_text("7 PINHOLE 24 32 30 30 12 16\n")
    with pytest.raises(
        GartError, match=r"IMG_00\d.png is 32 x 24 pixels but its camera is 24 x 32, another aspect"
    ):
        load(str(folder))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("cameras.bin", b"\1\0\0"),
        ("cameras.bin", b"\1" + b"\0" * 7 + b"\1\0\0\0" + b"\x63\0\0\0" + b"\0" * 16),
        ("images.bin", b"\2" + b"\0" * 7),
        ("images.bin", b"\0" * 8),
        ("points3D.bin", b"\2" + b"\0" * 60),
        ("points3D.bin", b"\xff" * 80),
        ("cameras.bin", b"\0" * 8),
        ("images.bin", b"\1" + b"\0" * 71 + b"\7\0\0\0a\0" + b"\xff" * 8),
    ],
    ids=[
        "cameras_cut",
        "unknown_lens",
        "images_cut",
        "no_images",
        "points_cut",
        "many_points",
        "no_camera",
        "many_keypoints",
    ],
)
def test_damaged_models(colmap, file, content):
    folder = colmap(count=2).write(binary=True)
    (folder / "sparse/0" / file).write_bytes(content)
    with pytest.raises(GartError, match=r"the COLMAP model in .*sparse/0 cannot be read \("):
        load(str(folder))


def test_an_incomplete_model(colmap):
    folder = colmap().write()
    (folder / "sparse/0/images.txt").unlink()
    with pytest.raises(
        GartError, match=r"not a complete COLMAP capture: .* neither images.bin nor images.txt"
    ):
        load(str(folder))


def test_masks(colmap):
    scene = colmap(count=2)
    folder = scene.write()
    mask = np.zeros((24, 32), np.uint8)
    mask[:, 8:17] = 255
    (folder / "masks").mkdir()
    for name in scene.names:
        Image.fromarray(mask).save(folder / "masks" / name)
    full = load(str(folder)).train[0]
    np.testing.assert_array_equal(full.mask.numpy(), mask > 0)
    half = load(str(folder), downscale=2).train[0]
    expected = np.zeros((12, 16), bool)
    expected[:, 4:8] = True  # column 8 is covered by half
    np.testing.assert_array_equal(half.mask.numpy(), expected)


def test_masks_must_fit(colmap):
    scene = colmap(count=2)
    folder = scene.write()
    (folder / "masks").mkdir()
    for name in scene.names:
        Image.new("L", (5, 5)).save(folder / "masks" / name)
    with pytest.raises(GartError, match=r"masks.*is 5 x 5 pixels but its photograph.*is 32 x 24"):
        load(str(folder))
    (folder / "masks" / scene.names[0]).unlink()
    with pytest.raises(GartError, match=r"1 of 4 image files .* missing: .*masks/IMG_000.png"):
        load(str(folder))


@pytest.mark.parametrize("other", ["./IMG_004.png", "../images/IMG_004.png"])
def test_a_file_posed_under_two_names(colmap, other):
    folder = colmap().write()
    file = folder / "sparse/0/images.txt"
    file.write_text(file.read_text().replace("IMG_003.png", other))
    with pytest.raises(GartError, match=r"poses photographs twice: .*IMG_004.png; keep one"):
        load(str(folder))


@pytest.mark.parametrize("name", ["a\rb.png", "a\u2028b.png", os.fsdecode(b"a\xffb.png")])
def test_names_of_any_bytes(colmap, name):
    folder = colmap(count=9).write()
    file = folder / "sparse/0/images.txt"
    file.write_bytes(file.read_bytes().replace(b"IMG_003.png", os.fsencode(name)))
    (folder / "images/IMG_003.png").rename(folder / "images" / name)
    (folder / "split.txt").write_bytes(b"\xef\xbb\xbftest " + os.fsencode(name))  # with a mark
    assert [view.name for view in load(str(folder)).test] == [name]


@pytest.mark.parametrize("value", ["nan", "inf", "1e39"])
def test_points_that_are_not_finite_are_refused(colmap, value):
    folder = colmap().write()
    with (folder / "sparse/0/points3D.txt").open("a") as file:
        file.write(f"99 0 {value} 0 1 2 3 0.5\n")
    with pytest.raises(GartError, match=r"1 of the 21 points of .* are not finite; remove them"):
        load(str(folder))


@pytest.mark.parametrize("row", ["nan 0 0 0 1 2 3 0", "9 0 0 0 nan 2 3 0", "inf 0 0 0 1 2 3 0"])
def test_points_with_a_number_that_is_none(colmap, row):
    folder = colmap().write()
    (folder / "sparse/0/points3D.txt").write_text(row + "\n")
    with pytest.raises(GartError, match=r"points3D.txt has a number or a colour that is no whole"):
        load(str(folder))


def test_an_absolute_images_folder_that_is_not_there(colmap):
    folder = colmap().write()
    info = {"loader": "colmap", "loader_kwargs": {"images_path": "/nowhere/at/all"}}
    (folder / "nb-info.json").write_text(json.dumps(info))
    with pytest.raises(GartError, match=r"has no folder /nowhere/at/all but has images"):
        load(str(folder))
