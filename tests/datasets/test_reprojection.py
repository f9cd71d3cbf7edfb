"""Points project through gart's cameras to where COLMAP itself projects them."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from captures import save_image

from gart.datasets import load
from gart.errors import GartError

if find_spec("pycolmap") is None:
    pytest.skip("pycolmap, the judge, is not installed", allow_module_level=True)

LENSES = {
    "SIMPLE_PINHOLE": "pinhole",
    "PINHOLE": "pinhole",
    "SIMPLE_RADIAL": "opencv",
    "RADIAL": "opencv",
    "OPENCV": "opencv",
    "FULL_OPENCV": "full_opencv",
    "FOV": "fov",
    "SIMPLE_FISHEYE": "opencv_fisheye",
    "FISHEYE": "opencv_fisheye",
    "SIMPLE_RADIAL_FISHEYE": "opencv_fisheye",
    "RADIAL_FISHEYE": "opencv_fisheye",
    "OPENCV_FISHEYE": "opencv_fisheye",
    "THIN_PRISM_FISHEYE": "thin_prism_fisheye",
    "EQUIRECTANGULAR": "equirectangular",
    "rig": "pinhole",
}
REFUSED = ["RAD_TAN_THIN_PRISM_FISHEYE", "SIMPLE_DIVISION", "DIVISION", "EUCM"]


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    judge = Path(__file__).with_name("pycolmap_judge.py")
    done = subprocess.run([sys.executable, judge, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    blank = np.zeros((480, 640), np.uint8)
    for pixels in folder.glob("*/pixels.npz"):
        for name in np.load(pixels):
            save_image(pixels.parent / "images" / name, blank)
        for kind in ("binary", "text"):
            (pixels.parent / kind / "images").symlink_to(pixels.parent / "images")
    return folder


@pytest.mark.parametrize("kind", ["binary", "text"])
@pytest.mark.parametrize("model", LENSES)
def test_points_project_where_colmap_projects_them(judged, model, kind):
    expected = np.load(judged / model / "pixels.npz")
    capture = load(str(judged / model / kind))
    views = [*capture.train, *capture.test]
    assert {view.name for view in views} == set(expected)
    for view in views:
        assert view.camera.model == LENSES[model]
        got = view.camera.project(capture.points).numpy()
        assert np.isfinite(expected[view.name]).all()
        assert np.abs(got - expected[view.name]).max() < 1e-3


@pytest.mark.parametrize("kind", ["binary", "text"])
@pytest.mark.parametrize("model", REFUSED)
def test_models_that_gart_lacks_are_refused_by_name(judged, model, kind):
    with pytest.raises(GartError, match=rf"sparse/0 has a camera of model {model}, which gart"):
        load(str(judged / model / kind))
