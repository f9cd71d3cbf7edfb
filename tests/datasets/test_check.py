import json

import numpy as np
import pytest
from captures import ColmapCapture, random_image, save_image
from PIL import Image

from gart.datasets.check import check_capture
from gart.errors import UsageError

SIZE = (64, 48)
PARAMS = (60.0, 62.0, 33.0, 23.0)


def scene(folder, **settings) -> ColmapCapture:
    return ColmapCapture(folder, size=SIZE, params=PARAMS, **settings)


def check(folder):
    """Findings by name; where one is a problem, nothing is used."""
    found = check_capture(folder)
    by_name = {finding.name: finding for finding in found}
    assert len(by_name) == len(found)
    broken = any(finding.status == "problem" for finding in found)
    assert broken == (found[-1].status == "problem")
    return by_name


def statuses(found):
    return {name: finding.status for name, finding in found.items() if finding.status != "ok"}


def test_a_good_capture(tmp_path):
    found = check(scene(tmp_path).write())
    assert statuses(found) == {}
    assert found["capture"].value == "colmap, 10 posed photographs"
    assert found["files"].value == "all 10 there"
    assert found["sizes"].value == "64 x 48; colour"
    assert found["lenses"].value == "10 pinhole; 1 lens, 56 degrees wide"
    assert found["points"].value.startswith("20, 100% of them in view")
    assert found["split"].value == "8 train, 2 test, by every 8th by name"
    assert found["use"].value == "8 photographs to train on, 2 held out, 20 points to start from"
    assert "distortion" not in found
    assert "tracks" not in found


def test_reports_its_progress(tmp_path):
    seen = []
    check_capture(
        scene(tmp_path, count=3).write(), lambda done, total, _: seen.append((done, total))
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_no_folder(tmp_path):
    with pytest.raises(UsageError, match=r"nothing is no folder; give the folder of a capture"):
        check_capture(tmp_path / "nothing")


def test_what_cannot_be_read_is_the_only_finding(tmp_path):
    folder = scene(tmp_path).write(binary=True)
    (folder / "sparse/0/images.bin").write_bytes(b"")
    (finding,) = check_capture(folder)
    assert (finding.name, finding.status) == ("capture", "problem")
    assert "images.bin" in finding.value or "sparse/0 cannot be read" in finding.value


def test_missing_and_broken_photographs_are_named_together(tmp_path):
    folder = scene(tmp_path).write()
    (folder / "images/IMG_001.png").unlink()
    for i in (3, 5):
        file = folder / f"images/IMG_00{i}.png"
        file.write_bytes(file.read_bytes()[:1000])
    save_image(folder / "images/IMG_007.png", random_image(48, 64))
    found = check(folder)
    assert statuses(found) == {"files": "problem", "photographs": "problem", "use": "problem"}
    assert found["files"].value.startswith("1 of 10 are missing: ")
    assert "IMG_001.png" in found["files"].value
    assert found["photographs"].value == (
        "3 of 9 cannot be used: IMG_003.png, IMG_005.png, IMG_007.png"
    )
    assert "IMG_003.png cannot be read" in found["photographs"].mend
    assert "until the problems above are mended" in found["use"].value


def test_all_photographs_broken(tmp_path):
    folder = scene(tmp_path, count=2).write()
    for file in (folder / "images").iterdir():
        file.write_bytes(b"x")
    assert check(folder)["photographs"].status == "problem"


def test_kinds_sizes_and_rotations_are_counted(tmp_path):
    folder = scene(tmp_path).write()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(random_image(*SIZE, seed=50)).save(folder / "images/IMG_001.png", exif=exif)
    Image.fromarray(random_image(*SIZE[::-1], seed=51)).save(
        folder / "images/IMG_002.png", exif=exif
    )
    save_image(folder / "images/IMG_003.png", random_image(*SIZE, 4, seed=52))
    save_image(folder / "images/IMG_004.png", random_image(*SIZE, seed=53)[..., 0])
    save_image(folder / "images/IMG_005.png", random_image(32, 24, seed=54))
    (folder / "images/unposed.png").write_bytes(b"")
    found = check(folder)
    assert statuses(found) == {}
    assert found["capture"].value.endswith("; 1 more on disk have no pose and are left out")
    assert found["sizes"].value == (
        "9 of 64 x 48, 1 of 32 x 24; 8 colour, 1 with alpha, 1 grey; "
        "1 scale their camera to their size"
    )
    assert found["EXIF"].value == (
        "rotation applied, as the cameras need it, in 1; "
        "rotation ignored, as COLMAP ignores it, in 1"
    )


def test_a_photograph_that_is_there_twice(tmp_path):
    folder = scene(tmp_path).write()
    content = (folder / "images/IMG_000.png").read_bytes()  # held out
    (folder / "images/IMG_006.png").write_bytes(content)
    found = check(folder)
    assert statuses(found) == {"duplicates": "warning"}
    assert found["duplicates"].value == (
        "1 photographs are there more than once: IMG_000.png = IMG_006.png; "
        "1 both to train on and held out"
    )


class Nudged(ColmapCapture):
    """Image 1 stands where image 0 does, almost."""

    @property
    def poses(self):
        poses = super().poses
        rotation, translation = poses[self.names[0]]
        poses[self.names[1]] = rotation, translation + 1e-4
        return poses


def test_nearly_equal_poses(tmp_path):
    found = check(Nudged(tmp_path, size=SIZE, params=PARAMS).write())
    assert statuses(found) == {"equal poses": "warning"}
    assert found["equal poses"].value == (
        "1 pairs share a pose: IMG_000.png = IMG_001.png; "
        "1 pairs have one to train on and one held out"
    )


class Tripod(ColmapCapture):
    @property
    def poses(self):
        return {name: (rotation, 0 * center) for name, (rotation, center) in super().poses.items()}


def test_one_place_only(tmp_path):
    found = check(Tripod(tmp_path, size=SIZE, params=PARAMS).write())
    assert found["poses"].status == "warning"
    assert found["poses"].value == "all 10 photographs are taken from one place"


class Georeferenced(ColmapCapture):
    @property
    def poses(self):
        offset = np.array([5e6, 4e5, 0])
        return {name: (R, t - R @ offset) for name, (R, t) in super().poses.items()}


def test_coordinates_beyond_float32(tmp_path):
    capture = Georeferenced(tmp_path, size=SIZE, params=PARAMS)
    capture.points = capture.points + np.array([5e6, 4e5, 0])
    found = check(capture.write())
    assert found["poses"].status == "warning"
    assert "too far for 32-bit numbers" in found["poses"].value


def test_points_elsewhere_and_none(tmp_path):
    capture = scene(tmp_path / "elsewhere")
    capture.points = capture.points + 100
    found = check(capture.write())
    assert statuses(found) == {"points": "warning"}
    assert found["points"].value.startswith("20, 0% of them in view")
    found = check(scene(tmp_path / "none").write(has_points=False))
    assert statuses(found) == {"points": "warning"}
    assert found["use"].value.endswith("2 held out, a random start")


def test_points_that_are_not_finite(tmp_path):
    capture = scene(tmp_path)
    capture.points[3, 1] = np.nan
    assert statuses(check(capture.write(binary=True))) == {"points": "problem", "use": "problem"}


@pytest.mark.parametrize(("shift", "status"), [(0.5, "ok"), (20.0, "warning")])
def test_tracks_tell_whether_poses_and_points_fit(tmp_path, shift, status):
    capture = scene(tmp_path, count=3)
    folder = capture.write()
    file = folder / "sparse/0/images.txt"
    lines = file.read_text().split("\n")
    for at, line in enumerate(lines):
        if (name := line.rpartition(" ")[2]) in capture.poses:
            rotation, translation = capture.poses[name]
            x, y, z = (capture.points @ rotation.T + translation).T
            fx, fy, cx, cy = PARAMS
            seen = [
                f"{u + shift} {v} {i + 1}"
                for i, (u, v) in enumerate(zip(fx * x / z + cx, fy * y / z + cy, strict=True))
            ]
            lines[at + 1] = " ".join([*seen, "1 1 -1", "2 2 999"])  # of no point, and unknown
    file.write_text("\n".join(lines))
    found = check(folder)
    assert found["tracks"].status == status
    assert found["tracks"].value == (
        f"60 observations reproject within {shift:.2f} pixels in the median, 95% within {shift:.2f}"
    )


def test_a_lens_that_folds(tmp_path):
    params = (30.0, 32.0, 24.0, -0.5)  # turns over at radius 0.54 of the image
    found = check(ColmapCapture(tmp_path, size=SIZE, lens="SIMPLE_RADIAL", params=params).write())
    assert found["distortion"].status == "warning"
    assert "the lens has no ray for" in found["distortion"].value


def test_implausible_focal_lengths(tmp_path):
    params = (2000.0, 2000.0, 32.0, 24.0)
    found = check(ColmapCapture(tmp_path, size=SIZE, params=params).write())
    assert found["lenses"].status == "warning"
    assert "2 degrees wide" in found["lenses"].value


def test_splits(tmp_path):
    folder = scene(tmp_path).write()
    (folder / "split.txt").write_text("".join(f"train IMG_{i:03d}.png\n" for i in range(10)))
    found = check(folder)
    assert statuses(found) == {"split": "warning"}
    (folder / "split.txt").write_text("train what.png\n")
    found = check(folder)
    assert statuses(found) == {"split": "problem", "use": "problem"}
    assert "names photographs that are not posed: what.png" in found["split"].value


def test_masks_are_counted_and_missing_ones_are_problems(tmp_path):
    capture = scene(tmp_path)
    folder = capture.write()
    for name in capture.names:
        save_image(folder / "masks" / f"{name}.png", np.full(SIZE[::-1], 255, np.uint8))
    assert check(folder)["files"].value == "all 20 there, 10 masks"
    (folder / "masks/IMG_004.png.png").unlink()
    found = check(folder)
    assert found["files"].status == "problem"
    assert found["files"].value.startswith("1 of 20 are missing")


def test_nerf_synthetic(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        frames = []
        for i in range(count):
            pose = np.eye(4)
            pose[:3, 3] = (i, 0.5 * (split == "test"), 4)
            frames.append({"file_path": f"./{split}/r_{i}", "transform_matrix": pose.tolist()})
            image = random_image(32, 32, 4, seed=10 * count + i)
            save_image(tmp_path / split / f"r_{i}.png", image)
        meta = {"camera_angle_x": 0.7, "frames": frames}
        (tmp_path / f"transforms_{split}.json").write_text(json.dumps(meta))
    found = check(tmp_path)
    assert statuses(found) == {"points": "warning"}
    assert found["sizes"].value == "32 x 32; with alpha"
    assert found["split"].value == "3 train, 2 test, by the capture's own files"


def test_observations_behind_their_cameras(tmp_path):
    capture = scene(tmp_path, count=3)
    folder = capture.write()
    file = folder / "sparse/0/images.txt"
    lines = file.read_text().split("\n")
    for at, line in enumerate(lines):
        if line.rpartition(" ")[2] in capture.poses:
            lines[at + 1] = "5 5 1 6 6 2 7 7 3"
    file.write_text("\n".join(lines))
    points = folder / "sparse/0/points3D.txt"
    rows = points.read_text().split("\n")
    for i in range(3):  # above the cameras, which look down
        number, *_ = rows[i].split()
        rows[i] = f"{number} 0 0 1000 1 2 3 0.5"
    points.write_text("\n".join(rows))
    found = check(folder)
    assert found["tracks"].status == "warning"
    assert found["tracks"].value == "9 of 9 observations are behind their cameras"
