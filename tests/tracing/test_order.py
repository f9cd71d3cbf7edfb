"""Exactness of the order: the ring overflows, late hits are noticed, those pixels are redone."""

import pytest
import torch
from oracle import Limits, assert_images_agree, assert_orders_agree
from scenes import (
    FISHEYE,
    HARD_LIMITS,
    camera,
    gaussian,
    join,
    layers,
    random_gaussians,
    shell,
)

from gart.cameras import has_ray
from gart.stages import Stages
from gart.tracing import TraceSettings, hit_order, trace

LAYERS = Limits(**HARD_LIMITS["layers"])


@pytest.mark.parametrize("ring_size", [0, 1, 3, 16, 64])
def test_interleaved_layers_are_exact_whatever_the_ring(ring_size):
    scene, view = layers(), camera(fov=40)
    settings = TraceSettings(ring_size=ring_size)
    orders = assert_orders_agree(scene, view, settings, LAYERS)
    assert max(map(len, orders)) >= 300
    # The scene does what it is for: neighbours disagree about the order.
    assert orders[400] != orders[401]
    if ring_size < 64:
        assert hit_order(scene, view, settings)[2] > 100


def test_order_is_exact_when_rays_stop_early():
    scene = layers(seed=5)
    scene.opacity_logits += 2.5
    for ring_size in (1, 4, 16):
        settings = TraceSettings(ring_size=ring_size)
        orders = assert_orders_agree(scene, camera(fov=40), settings, LAYERS)
        assert 10 < max(map(len, orders)) < 250
        assert_images_agree(scene, camera(fov=40), settings, LAYERS)


def test_ring_size_changes_no_bit():
    scene, view = layers(200), camera(fov=40)
    images = [trace(scene, view, TraceSettings(ring_size=size)) for size in (0, 1, 2, 8, 16, 64)]
    for image in images[1:]:
        assert torch.equal(image.color, images[0].color)
        assert torch.equal(image.opacity, images[0].opacity)
        assert torch.equal(image.depth, images[0].depth)


def test_more_equal_depths_than_the_ring_holds():
    sheet = gaussian((0.1, 0.2, 3), scales=(1, 2, 0.5), quat=(4, 1, 2, 3), logit=-3)
    scene = join(random_gaussians(5, degree=0), *[sheet] * 100)
    for ring_size in (1, 16):
        orders = assert_orders_agree(scene, camera(), TraceSettings(ring_size=ring_size))
        assert max(map(len, orders)) >= 100


def test_repaired_pixels_are_counted():
    with Stages() as recorded:
        trace(layers(), camera(fov=40), TraceSettings(ring_size=1))
        trace(random_gaussians(1), camera(), TraceSettings(ring_size=1))
    assert recorded.counts["repaired pixels"][0] > 100
    assert recorded.counts["repaired pixels"][1] == 0


def test_without_a_ring_every_pixel_takes_the_exact_pass():
    scene, view = random_gaussians(50), camera()
    expected, actual = (hit_order(scene, view, TraceSettings(ring_size=n)) for n in (16, 0))
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])
    assert actual[2] == view.width * view.height > expected[2]


def test_pixels_without_a_ray_take_no_pass():
    view = camera(53, 45, fov=260, model="opencv_fisheye", distortion=FISHEYE)
    assert hit_order(shell(50), view, TraceSettings(ring_size=0))[2] == has_ray(view.lens).sum()


def test_hits_are_counted():
    scene, view = random_gaussians(50), camera()
    with Stages() as recorded:
        trace(scene, view)
    assert recorded.counts["hits"] == [len(hit_order(scene, view)[1])]
