import math

import pytest
import torch
from scenes import OPENCV, camera

from gart.errors import UsageError
from gart.trajectories import reframe


def test_nothing_asked_nothing_changed():
    original = camera()
    assert reframe(original) is original


@pytest.mark.parametrize("size", [{"width": 120}, {"height": 60}, {"width": 120, "height": 60}])
def test_same_proportions_are_a_resize(size):
    original = camera(40, 20, shift=(3, -2), model="opencv", distortion=OPENCV)
    assert reframe(original, **size).lens == original.resized(120, 60).lens


def test_other_proportions_crop_and_do_not_stretch():
    original = camera(40, 20, shift=(3, -2))
    wide = reframe(original, width=200, height=40)
    assert (wide.width, wide.height) == (200, 40)
    assert (wide.fx, wide.fy) == (2 * original.fx, 2 * original.fy)
    ray = torch.tensor([0.1, 0.2, 1.0])
    before, after = original.project(ray), wide.project(ray)
    middle, new_middle = torch.tensor([20.0, 10.0]), torch.tensor([100.0, 20.0])
    assert torch.allclose(after - new_middle, 2 * (before - middle))


def test_field_of_view_is_from_top_to_bottom_of_a_pinhole():
    made = reframe(camera(40, 20, shift=(3, -2), model="opencv", distortion=OPENCV), fov=90)
    assert (made.model, made.lens[5:]) == ("pinhole", (40, 20))
    assert made.lens[1:5] == pytest.approx((10, 10, 20, 10))
    taller = reframe(camera(40, 20), width=30, height=60, fov=60)
    assert taller.fy == pytest.approx(30 / math.tan(math.radians(30)))
    assert (taller.cx, taller.cy) == (15, 30)


def test_lenses():
    original = camera(40, 20, shift=(3, -2), model="opencv", distortion=OPENCV)
    fish = reframe(original, lens="fisheye", height=40, width=40, fov=200)
    assert (fish.model, fish.lens[5:]) == ("opencv_fisheye", (40, 40, 0, 0, 0, 0))
    assert fish.lens[1:5] == pytest.approx((*[40 / math.radians(200)] * 2, 20, 20))
    edge = fish.directions()[0, 20]
    assert math.degrees(math.atan2(-edge[1], edge[2])) == pytest.approx(97.5, abs=0.5)
    assert reframe(original, lens="fisheye").fy == pytest.approx(20 / math.pi)
    flat = reframe(original, lens="orthographic", extent=5)
    assert (flat.model, flat.fx, flat.fy, flat.cx) == ("orthographic", 4, 4, 20)
    assert reframe(original, lens="pinhole").lens == original.undistorted().lens
    assert reframe(fish, lens="pinhole", fov=90).fy == pytest.approx(20)


@pytest.mark.parametrize(
    ("asked", "size"),
    [({}, (40, 20)), ({"height": 64}, (128, 64)), ({"width": 90}, (90, 45)),
     ({"width": 1}, (1, 1)), ({"width": 60, "height": 60}, (60, 60))],
)  # fmt: skip
def test_a_panorama_shows_all_directions(asked, size):
    view = reframe(camera(30, 20, shift=(3, -2)), lens="equirectangular", **asked)
    assert (view.width, view.height, view.model) == (*size, "equirectangular")
    assert view.directions().isfinite().all()
    assert view.fx * 2 * math.pi == pytest.approx(view.width)
    assert view.fy * math.pi == pytest.approx(view.height)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"lens": "round"}, "--lens is 'round'; expected one of pinhole, fisheye, equirectangular"),
        ({"lens": "fisheye", "fov": 361}, "--fov is 361; expected degrees between 0 and 360"),
        ({"lens": "equirectangular", "fov": 90}, "equirectangular has no field of view; leave"),
        ({"lens": "orthographic"}, "--extent is the height of what --lens orthographic shows"),
        ({"extent": 2}, "--extent is the height of what --lens orthographic shows; give both"),
        ({"lens": "orthographic", "extent": 0}, "--extent is 0; expected a positive number"),
        ({"lens": "equirectangular", "height": 20_000}, "20000 pixels high is 40000 wide"),
    ],
)
def test_what_a_lens_has_no_use_for(asked, message):
    with pytest.raises(UsageError, match=message):
        reframe(camera(), **asked)


def test_a_fisheye_is_no_pinhole_without_a_field_of_view():
    with pytest.raises(UsageError, match="for a camera with the lens opencv_fisheye needs --fov"):
        reframe(camera(model="opencv_fisheye"), lens="pinhole")


def test_values_out_of_range():
    for side in (0, 40_000):
        with pytest.raises(UsageError, match=rf"--width is {side}; expected pixels from 1 to"):
            reframe(camera(), width=side)
    for fov in (0, 180):
        with pytest.raises(UsageError, match=rf"--fov is {fov}; expected degrees between"):
            reframe(camera(), fov=fov)


def test_the_other_side_stays_in_range_too():
    with pytest.raises(UsageError, match=r"make images of 32768 x 65536; expected pixels"):
        reframe(camera(20, 40), width=32768)
