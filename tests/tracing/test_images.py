"""The native tracer's images and hit orders against the oracle."""

import math

import pytest
import torch
from oracle import Limits, assert_images_agree, assert_orders_agree
from scenes import HARD_LIMITS, HARD_SCENES, camera, gaussian, join, random_gaussians, shell

from gart.tracing import SH_MODES, TraceSettings, trace


@pytest.mark.parametrize("name", HARD_SCENES)
def test_image_and_order(name):
    gaussians, view = HARD_SCENES[name]()
    limits = Limits(**HARD_LIMITS.get(name, {}))
    image = assert_images_agree(gaussians, view, limits=limits)
    assert (image.opacity > 0.1).any()
    assert_orders_agree(gaussians, view, limits=limits)


@pytest.mark.parametrize("degree", range(4))
@pytest.mark.parametrize("sh", SH_MODES)
def test_sh_degrees(degree, sh):
    assert_images_agree(random_gaussians(60, degree=degree), camera(), TraceSettings(sh=sh))


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha_min": 0.05},
        {"alpha_max": 0.4},
        {"transmittance_min": 0.3},
        {"transmittance_min": 0.0},
        {"near": 3.5},
    ],
    ids=str,
)
def test_settings(settings):
    scene, settings = random_gaussians(80, seed=2, logit=1), TraceSettings(**settings)
    assert_images_agree(scene, camera(), settings)
    assert_orders_agree(scene, camera(), settings)


@pytest.mark.parametrize(
    "scene",
    [
        random_gaussians(0),
        random_gaussians(50, low=(-2, -2, -6), high=(2, 2, -2)),
        gaussian((0, 0, 3), logit=math.log(0.9 / 254.1)),
        gaussian((0, 0, 3), logit=-math.inf),
        gaussian((0, 0, 0)),
        gaussian((0, 0, 0.005), scales=(0.001, 0.001, 0.001)),
    ],
    ids=["none", "behind", "below 1/255", "transparent", "at the camera", "nearer than near"],
)
def test_empty_images(scene):
    image = trace(scene, camera())
    assert image.color.shape == (23, 37, 3)
    assert image.color.abs().max() == image.opacity.max() == image.depth.max() == 0
    assert_images_agree(scene, camera())


def test_background_shows_through():
    image = trace(gaussian((0, 0, 3), logit=0), camera(1, 1))
    over = image.over(torch.tensor([0.0, 1.0, 0.5]))
    torch.testing.assert_close(over[0, 0], torch.tensor([0.4, 0.7, 0.3]))


def test_twins_go_by_index():
    red, green = (gaussian((0, 0, 3), logit=0, color=c) for c in ((1, 0, 0), (0, 1, 0)))
    for first, second in ((red, green), (green, red)):
        order = assert_orders_agree(join(first, second), camera(9, 9))
        assert order[40] == [0, 1]
        assert_images_agree(join(first, second), camera(9, 9))


def test_pixels_without_rays_are_zero():
    view = camera(64, 64, fov=330, model="opencv_fisheye")
    blind = view.directions().isnan().any(-1)
    assert 0.1 < blind.float().mean() < 0.5
    image = trace(shell(200), view)
    assert image.opacity[~blind].max() > 0.5
    for output in (image.color, image.opacity, image.depth):
        assert output[blind].abs().max() == 0


def test_depth_of_a_faint_pixel_keeps_its_digits():
    # One hit of alpha 0.005: its depth is its tau, however little of the ray it takes.
    view = camera(5, 5)
    scene = gaussian((0, 0, 4), scales=(1, 1, 1), logit=math.log(0.005 / 0.995))
    image = trace(scene, view)
    middle = image.opacity[2, 2]
    torch.testing.assert_close(middle, torch.tensor(0.005), rtol=1e-5, atol=0)
    torch.testing.assert_close(image.depth[2, 2], torch.tensor(4.0), rtol=3e-7, atol=0)
