import math

import pytest
import torch
from oracle import assert_images_agree
from scenes import camera, random_gaussians

from gart.lenses import FISHEYES, PARAMETERS, distort, undistort

LENSES = {
    "pinhole": (),
    "opencv": (-0.15, 0.04, 0.003, -0.002),
    "full_opencv": (0.2, -0.1, 0.003, -0.002, 0.02, 0.3, -0.04, 0.01),
    "fov": (0.9,),
    "opencv_fisheye": (0.04, -0.01, 0.004, -0.001),
    "thin_prism_fisheye": (0.04, -0.01, 0.003, -0.002, 0.004, -0.001, 0.005, -0.004),
}


def grid(reach):
    steps = torch.linspace(-reach, reach, 41, dtype=torch.float64)
    return torch.meshgrid(steps, steps, indexing="ij")


@pytest.mark.parametrize("model", PARAMETERS)
def test_undistort_inverts_distort(model):
    reach = 1.2 if model in FISHEYES else 0.7  # 97 degrees off axis, and 45
    x, y = grid(reach)
    u, v = distort(model, LENSES[model], x, y)
    if model != "pinhole":
        assert (u - x).abs().max() > 0.01
    back_x, back_y = undistort(model, LENSES[model], u, v)
    torch.testing.assert_close((back_x, back_y), (x, y), rtol=0, atol=1e-9)


@pytest.mark.parametrize("model", PARAMETERS)
def test_a_lens_without_distortion_is_ideal(model):
    x, y = grid(1.0)
    zeros = (0.0,) * len(PARAMETERS[model])
    for image in (distort(model, zeros, x, y), undistort(model, zeros, x, y)):
        torch.testing.assert_close(image, (x, y), rtol=0, atol=1e-12)


def test_models_agree_where_they_are_the_same_lens():
    x, y = grid(0.7)
    k1, k2, p1, p2 = LENSES["opencv"]
    torch.testing.assert_close(
        distort("opencv", (k1, k2, p1, p2), x, y),
        distort("full_opencv", (k1, k2, p1, p2, 0, 0, 0, 0), x, y),
    )
    k = LENSES["opencv_fisheye"]
    torch.testing.assert_close(
        distort("opencv_fisheye", k, x, y),
        distort("thin_prism_fisheye", (*k[:2], 0, 0, *k[2:], 0, 0), x, y),
    )


def test_beyond_a_lens_there_is_nothing():
    one = torch.ones(1, dtype=torch.float64)
    # r (1 - r^2 / 3) turns at r = 1, where it is 2/3; radius 2 of the image is beyond.
    for model, zeros in (("opencv", 3), ("opencv_fisheye", 3), ("thin_prism_fisheye", 7)):
        x, y = undistort(model, (-1 / 3, *[0.0] * zeros), 2 * one, 0 * one)
        assert x.isnan().all()
        assert y.isnan().all()
    # A field-of-view lens images 90 degrees off axis at pi / (2 omega).
    edge = math.pi / 2 / 0.9
    assert undistort("fov", (0.9,), 1.001 * edge * one, 0 * one)[0].isnan().all()
    assert undistort("fov", (0.9,), 0.999 * edge * one, 0 * one)[0].isfinite().all()


def test_the_field_of_view_lens_is_smooth_at_its_middle():
    x = torch.tensor([0.0, 1e-12, 1e-9, 1e-6], dtype=torch.float64)
    slope = 2 * math.tan(0.45) / 0.9
    u, _ = distort("fov", (0.9,), x, torch.zeros_like(x))
    torch.testing.assert_close(u, slope * x, rtol=1e-10, atol=0)
    back, _ = undistort("fov", (0.9,), u, torch.zeros_like(x))
    torch.testing.assert_close(back, x, rtol=1e-10, atol=0)


@pytest.mark.parametrize("model", ["fov", "thin_prism_fisheye"])
def test_the_tracer_follows_every_lens(model):
    view = camera(41, 29, fov=70, model=model, distortion=LENSES[model])
    assert_images_agree(random_gaussians(40), view)
