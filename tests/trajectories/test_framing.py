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
