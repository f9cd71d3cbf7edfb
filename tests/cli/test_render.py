import re

import numpy as np
import pytest

import gart.io.encoders as gart_encoders
from gart.datasets import load
from gart.io import read_image, save_trajectory


def images(folder):
    return sorted(p.name for p in folder.iterdir() if p.suffix == ".png")


def test_render_writes_the_held_out_views(gart, there):
    capture = load("demo", downscale=4)
    code, out, _ = gart("render")
    folder = there / "runs/demo/renders/test_rt"
    assert code == 0
    assert out.endswith(f"saved {len(capture.test)} views to runs/demo/renders/test_rt\n")
    assert images(folder) == sorted(view.name for view in capture.test)
    for name in images(folder):
        assert read_image(folder / name).shape == capture.test[0].image.shape
    kept = f"({len(capture.test)} of them were there already)\n"
    assert gart("render")[1].endswith(f"runs/demo/renders/test_rt {kept}")


def test_render_splits(gart, there, tmp_path):
    capture = load("demo", downscale=4)
    sizes = {"test": len(capture.test), "train": len(capture.train)}
    sizes["all"] = sizes["test"] + sizes["train"]
    for split, size in sizes.items():
        folder = tmp_path / split
        assert gart("render", "demo", "--split", split, "--output", str(folder))[0] == 0
        assert len(images(folder)) == size


def test_render_a_trajectory_from_a_splat_file(gart, there, tmp_path):
    cameras = [view.camera.undistorted() for view in load("demo", downscale=4).train[:2]]
    save_trajectory(tmp_path / "path.json", cameras, fps=5)
    splats, path = "runs/demo/point_cloud.ply", str(tmp_path / "path.json")
    for mode in ("rt", "tilegs"):
        folder = tmp_path / mode
        line = ["render", splats, "--trajectory", path, "--mode", mode, "--output", str(folder)]
        assert gart(*line)[0] == 0
        assert images(folder) == ["00000.png", "00001.png"]
    video = tmp_path / "flight.mp4"
    assert gart("render", splats, "--trajectory", path, "--output", str(video))[0] == 0
    assert video.read_bytes()[4:8] == b"ftyp"


@pytest.mark.parametrize("path", ["orbit", "spiral", "interpolate"])
def test_render_a_path_through_the_capture(gart, there, tmp_path, path):
    line = ["render", "demo", "--trajectory", path, "--frames", "3", "--output", str(tmp_path)]
    code, out, err = gart(*line, "--width", "40", "--outputs", "color, rgba,opacity,depth")
    assert (code, err) == (0, "")
    assert out.endswith(f"saved 3 views to {tmp_path}\n")
    assert len(images(tmp_path)) == 3 * 4
    assert read_image(tmp_path / "00002.png").shape == (30, 40, 3)
    assert read_image(tmp_path / "00002.rgba.png").shape == (30, 40, 4)
    depth = np.load(tmp_path / "00000.depth.npy")
    assert depth.shape == (30, 40)
    assert depth.max() > 1


def test_a_path_has_its_own_default_folder(gart, there):
    assert (
        gart("render", "demo", "--trajectory", "orbit", "--frames", "2", "--height", "12")[0] == 0
    )
    assert len(images(there / "runs/demo/renders/orbit_rt")) == 2


def test_field_of_view_and_video(gart, there, tmp_path, monkeypatch):
    monkeypatch.setattr(gart_encoders, "FFMPEG", "no_such_package")
    line = ["render", "demo", "--trajectory", "orbit", "--frames", "2", "--width", "32"]
    narrow, wide = tmp_path / "narrow", tmp_path / "wide"
    for folder, fov in ((narrow, "10"), (wide, "120")):
        assert gart(*line, "--height", "32", "--fov", fov, "--output", str(folder))[0] == 0
    # The wide view sees the black around the table, the narrow one the table alone.
    dark = [(read_image(f / "00000.png").sum(-1) < 30).float().mean() for f in (narrow, wide)]
    assert dark[0] < dark[1]
    for name, formats in (
        ("a.mp4", "H.264|MPEG-4, which browsers do not play"),
        ("a.webm", "VP[89]"),
    ):
        code, out, _ = gart(*line, "--fps", "5", "--output", str(tmp_path / name))
        assert code == 0
        assert re.search(rf"saved 2 views to .*{name} \(({formats})", out)
        assert (tmp_path / name).stat().st_size > 100


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        (("--lens", "equirectangular", "--height", "32"), (32, 64, 3)),
        (("--lens", "orthographic", "--height", "20"), (20, 27, 3)),
        (("--lens", "fisheye", "--fov", "200", "--width", "24", "--height", "24"), (24, 24, 3)),
        (("--aperture", "0.1", "--samples", "2", "--width", "24"), (18, 24, 3)),
        (("--rolling-shutter", "1", "--width", "24"), (18, 24, 3)),
    ],
    ids=lambda value: value[1] if isinstance(value[0], str) else "",
)
def test_lenses_aperture_and_shutter(gart, there, tmp_path, options, shape):
    line = ["render", "demo", "--trajectory", "orbit", "--frames", "3", "--output", str(tmp_path)]
    code, out, err = gart(*line, *options)
    assert (code, err) == (0, "")
    assert out.endswith(f"saved 3 views to {tmp_path}\n")
    image = read_image(tmp_path / "00000.png")
    assert image.shape == shape
    assert image.max() > 30
    kept = "(3 of them were there already)\n"
    assert gart(*line, *options)[1].endswith(kept)
    # Another aperture or shutter is another image.
    if "--aperture" in options:
        assert kept not in gart(*line, *options, "--focus", "1")[1]
    if "--rolling-shutter" in options:
        assert kept not in gart(*line, "--width", "24", "--rolling-shutter", "0.5")[1]


def test_wrong_render_options(gart, there, tmp_path):
    for option, message in (
        (("--width", "0"), "--width is 0; expected pixels from 1 to 32768"),
        (("--fov", "200"), "--fov is 200; expected degrees between 0 and 180"),
        (("--outputs", "colour"), "output is 'colour'; expected some of color, rgba, opacity"),
        (("--trajectory", "orbit", "--frames", "0"), "--frames is 0; expected 1 to 100000"),
        (("--lens", "round"), "'round' is not one of 'pinhole', 'fisheye', 'equirectangular'"),
        (("--lens", "equirectangular", "--fov", "9"), "has no field of view; leave --fov out"),
        (("--extent", "2"), "--extent is the height of what --lens orthographic shows"),
        (("--rolling-shutter", "1"), "takes the motion of a path; give --trajectory too"),
        (("--focus", "1"), "--focus is of an aperture; give --aperture RADIUS too"),
        (("--aperture", "-1"), "thin lens has radius -1"),
    ):
        code, _, err = gart("render", "demo", "--output", str(tmp_path), *option)
        assert code == 2
        assert message in err
    code, _, err = gart("render", "demo", "--trajectory", "gone.json")
    assert code == 1
    assert "trajectory gone.json cannot be read" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--aperture", "0.1"), "this camera has an aperture or a rolling shutter; use --mode rt"),
        (("--lens", "equirectangular"), "this camera is equirectangular; use --mode rt"),
    ],
)
def test_the_rasterizer_refuses_what_it_cannot_show(gart, there, tmp_path, options, message):
    code, _, err = gart("render", "demo", "--mode", "tilegs", "--output", str(tmp_path), *options)
    assert code == 1
    assert message in err
