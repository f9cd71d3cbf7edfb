import cv2
import numpy as np
import pytest
from captures import look_at_origin, random_image, save_image

from gart.datasets import load
from gart.errors import GartError

COUNT = 9
FOCAL, K1, K2 = 30.0, -0.2, 0.05


def write(folder, file="bundle.out", names="list.txt", trail="", images="images"):
    """A bundle whose last camera is not posed."""
    lines = ["# Bundle file v0.3", f"{COUNT + 1} 2"]
    for i in range(COUNT):
        rotation, translation = look_at_origin(i, COUNT)
        flip = np.diag([1, -1, -1])  # y up, z backwards
        rows = [*(flip @ rotation), flip @ translation]
        lines += [f"{FOCAL} {K1} {K2}", *(" ".join(map(repr, map(float, r))) for r in rows)]
        save_image(folder / images / f"a {i}.png", random_image(32, 24, seed=i))
    lines += ["0 0 0"] * 5
    lines += ["0.5 0.25 -0.5", "10 20 30", "2 0 1 0.5 0.5 1 3 0.5 0.5"]
    lines += ["-0.5 0.25 0.25", "40 50 60", "0"]
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    listed = [f"a {i}.png{trail}" for i in range(COUNT)] + ["not posed.png"]
    (folder / names).write_text("\n".join(listed) + "\n")


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"trail": " 0 812.5"},
        {"file": "bundle/bundle.out"},
        {"names": "bundle.out.list.txt", "images": "."},
    ],
)
def test_poses_lens_and_points(tmp_path, layout):
    write(tmp_path, **layout)
    capture = load(str(tmp_path))
    assert capture.metadata["loader"] == "bundler"
    assert [view.name for view in capture.test] == ["a 0.png", "a 8.png"]
    assert capture.points.tolist() == [[0.5, 0.25, -0.5], [-0.5, 0.25, 0.25]]
    assert capture.point_colors.tolist() == [[10, 20, 30], [40, 50, 60]]
    K = np.array([[FOCAL, 0, 16], [0, FOCAL, 12], [0, 0, 1]])
    for view in [*capture.train, *capture.test]:
        rotation, translation = look_at_origin(int(view.name[2]), COUNT)
        expected, _ = cv2.projectPoints(
            capture.points.numpy().astype(float)[:, None],
            cv2.Rodrigues(rotation)[0],
            translation,
            K,
            np.array([K1, K2, 0, 0]),
        )
        np.testing.assert_allclose(view.camera.project(capture.points), expected[:, 0], atol=1e-4)


def test_the_list_is_needed(tmp_path):
    write(tmp_path)
    (tmp_path / "list.txt").write_text("a 0.png\n")
    with pytest.raises(GartError, match="has 10 cameras and its list names 1 photographs"):
        load(str(tmp_path))
    (tmp_path / "list.txt").unlink()
    with pytest.raises(GartError, match=r"bundle.out needs a file list\.txt beside it"):
        load(str(tmp_path))


def test_a_missing_photograph_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "images/a 4.png").unlink()
    with pytest.raises(GartError, match=r"lacks the photograph a 4\.png"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    "text", ["", "# Bundle file v0.2\n1 0\n", "# Bundle file v0.3\n3 1\n1 2 3"]
)
def test_damaged_bundles(tmp_path, text):
    write(tmp_path)
    (tmp_path / "bundle.out").write_text(text)
    with pytest.raises(GartError, match=r"bundle.out cannot be read \("):
        load(str(tmp_path))


def test_a_bundle_without_poses(tmp_path):
    write(tmp_path)
    (tmp_path / "bundle.out").write_text("# Bundle file v0.3\n1 0\n" + "0 0 0\n" * 5)
    (tmp_path / "list.txt").write_text("images/a 0.png\n")
    with pytest.raises(GartError, match=r"poses no photographs \(bundler\); solve for poses first"):
        load(str(tmp_path))
