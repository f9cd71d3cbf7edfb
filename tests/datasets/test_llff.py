import numpy as np
import pytest
from captures import look_at_origin, random_image, save_image

from gart.datasets import load
from gart.errors import GartError

COUNT = 9


def write(folder, images="images", size=(32, 24)):
    rows = []
    for i in range(COUNT):
        rotation, translation = look_at_origin(i, COUNT)
        right, down, forward = rotation  # rows: the camera's axes in the world
        center = -rotation.T @ translation
        hwf = np.array([96.0, 128.0, 120.0])  # of photographs four times as large
        matrix = np.stack([down, right, -forward, center, hwf], 1)
        rows.append([*matrix.ravel(), 0.5, 9.0])
        save_image(folder / images / f"{i}.png", random_image(*size, seed=i))
    np.save(folder / "poses_bounds.npy", np.array(rows))


def test_poses_and_the_true_size_of_the_photographs(tmp_path):
    write(tmp_path, "images_4")
    capture = load(str(tmp_path))
    assert capture.metadata["loader"] == "llff"
    assert [view.name for view in capture.test] == ["0.png", "8.png"]
    assert len(capture.points) == 0
    for view in [*capture.train, *capture.test]:
        rotation, translation = look_at_origin(int(view.name[0]), COUNT)
        expected = np.concatenate([rotation.T, -rotation.T @ translation[:, None]], 1)
        np.testing.assert_allclose(view.camera.c2w.numpy(), expected, atol=1e-6)
        camera = view.camera
        assert (camera.model, camera.fx, camera.fy) == ("pinhole", 30, 30)
        assert (camera.cx, camera.cy, camera.width, camera.height) == (16, 12, 32, 24)


def test_the_full_size_folder_comes_first_and_nb_info_chooses_another(tmp_path):
    write(tmp_path, "images_8", (16, 12))
    write(tmp_path)
    assert load(str(tmp_path)).train[0].camera.width == 32
    (tmp_path / "nb-info.json").write_text(
        '{"loader": "llff", "loader_kwargs": {"images_path": "images_8"}}'
    )
    assert load(str(tmp_path)).train[0].camera.width == 16


def test_poses_and_photographs_must_be_as_many(tmp_path):
    write(tmp_path)
    (tmp_path / "images/3.png").unlink()
    with pytest.raises(GartError, match=r"has 9 poses and .*images has 8 photographs"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((9, 15)), r"holds float64 values of shape \[9, 15\]; expected"),
        (np.zeros((9, 17)), r"bad camera for 0\.png: "),
        (np.full((9, 17), np.nan), r"bad camera for 0\.png: "),
        (np.array([{}]), r"poses_bounds.npy cannot be read"),
        (np.full((9, 17), "x"), r"holds <U1 values of shape"),
        (np.zeros((9, 17), complex), r"holds complex128 values"),
        (np.full((9, 17), 1e30), r"bad camera for 0\.png: "),
    ],
    ids=["shape", "zeros", "nan", "pickle", "text", "complex", "huge"],
)
def test_damaged_poses(tmp_path, content, message):
    write(tmp_path)
    np.save(tmp_path / "poses_bounds.npy", content)
    with pytest.raises(GartError, match=message):
        load(str(tmp_path))


def test_a_file_that_promises_more_than_it_holds(tmp_path):
    write(tmp_path)
    file = tmp_path / "poses_bounds.npy"
    np.save(file, np.zeros((9, 17)))
    content = file.read_bytes()
    for shape in (b"(9999999, 17), }", b"(10, 17), }"):
        whole = content.replace(b"(9, 17), }" + b" " * (len(shape) - 10), shape)
        assert len(whole) == len(content)
        file.write_bytes(whole)
        with pytest.raises(GartError, match=r"poses_bounds.npy cannot be read"):
            load(str(tmp_path))
    np.savez(tmp_path / "archive.npz", a=1)
    (tmp_path / "archive.npz").rename(file)
    with pytest.raises(GartError, match=r"poses_bounds.npy cannot be read"):
        load(str(tmp_path))


def test_no_photographs_at_all(tmp_path):
    (tmp_path / "images").mkdir()
    np.save(tmp_path / "poses_bounds.npy", np.zeros((0, 17)))
    with pytest.raises(GartError, match=r"poses no photographs \(llff\)"):
        load(str(tmp_path))
