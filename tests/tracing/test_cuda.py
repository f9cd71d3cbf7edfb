"""The CUDA tracer against the oracle and against the CPU tracer."""

from dataclasses import replace

import pytest
import torch
from oracle import (
    STRICT,
    Limits,
    assert_gradients_agree,
    assert_gradients_close,
    assert_images_agree,
    assert_orders_agree,
    gradients,
    loss_weights,
    native_gradients,
)
from scenes import HARD_LIMITS, HARD_SCENES, camera, layers, random_gaussians

from gart.cameras import Camera
from gart.stages import Stages
from gart.tracing import BACKWARD_MODES, SH_MODES, TraceSettings, trace

pytestmark = pytest.mark.cuda

# Alpha travels in 16 bits between the passes (error 7.6e-6): the last digits differ from the CPU's.
# Expected depth divides by the opacity, and a faint pixel's is 0.2 % uncertain.
CUDA = {"image": 1e-4, "depth": 2e-3, "gradient": 1e-3}


# Hundreds of hits a pixel, each of alpha 0.015 at most: rounding to 16 bits shows.
CUDA_LIMITS = {"layers": {"gradient": 2e-3}}


def limits(name: str = "") -> Limits:
    return replace(STRICT, **{**HARD_LIMITS.get(name, {}), **CUDA, **CUDA_LIMITS.get(name, {})})


@pytest.mark.parametrize("sh", SH_MODES)
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_random_scenes(degree, sh):
    scene, view = random_gaussians(300, degree=degree), camera()
    settings = TraceSettings(sh=sh)
    assert_images_agree(scene, view, settings, limits(), "cuda")
    assert_orders_agree(scene, view, settings, limits(), "cuda")
    assert_gradients_agree(scene, view, settings, limits=limits(), device="cuda")


@pytest.mark.parametrize("name", HARD_SCENES)
def test_hard_scenes(name):
    scene, view = HARD_SCENES[name]()
    assert_images_agree(scene, view, TraceSettings(), limits(name), "cuda")
    assert_gradients_agree(scene, view, limits=limits(name), device="cuda")


@pytest.mark.parametrize("backward", BACKWARD_MODES)
@pytest.mark.parametrize("sh", SH_MODES)
@pytest.mark.parametrize("loss", ["color", "opacity", "depth"])
def test_backward_modes(backward, sh, loss):
    settings = TraceSettings(sh=sh, backward=backward)
    scene = random_gaussians(200, seed=3)
    assert_gradients_agree(scene, camera(), settings, (loss,), limits(), "cuda")


def test_empty_scene():
    scene = random_gaussians(0).map(lambda t: t.cuda().requires_grad_())
    image = trace(scene, camera())
    assert not image.color.any()
    assert not image.opacity.any()
    image.color.sum().backward()
    assert scene.means.grad is not None


DISTORTIONS = {
    "opencv": (-0.1, 0.03, 1e-3, -2e-3),
    "full_opencv": (0.1, -0.03, 1e-3, 2e-3, 0.01, 0.05, 0.01, 0.001),
    "opencv_fisheye": (0.03, -0.01, 0.004, -0.001),
    "fov": (0.9,),
    "thin_prism_fisheye": (0.04, -0.01, 0.003, -0.002, 0.004, -0.001, 0.005, -0.004),
}


@pytest.mark.parametrize("model", DISTORTIONS)
def test_lenses(model):
    distortion = DISTORTIONS[model]
    view = Camera(torch.eye(3, 4), 40, 41, 49.3, 38.8, 101, 75, model, distortion)
    scene = random_gaussians(2000, low=(-3, -3, -3), high=(3, 3, 3))
    images = [trace(scene.to(device), view) for device in ("cpu", "cuda")]
    # Two hits closer than rounding may change places: rare pixels.
    difference = (images[0].color - images[1].color.cpu()).abs().amax(-1)
    assert float((difference > 1e-4).double().mean()) < 1e-3
    assert float((images[0].opacity - images[1].opacity.cpu()).abs().max()) < 1e-4


def test_hit_storage_that_runs_out_is_grown():
    # 600 faint layers need far more hits a pixel than the first guess has room for, with the
    # gradients as exact as ever, also for pixels that took the exact pass.
    scene, view = layers(600), camera(160, 120, fov=40)
    weights = loss_weights(view, ("color", "opacity"))
    with Stages() as stages:
        actual = native_gradients(scene, view, TraceSettings(), weights, "cuda")
    assert stages.counts["hits"][0] / (160 * 120) > 200
    expected = native_gradients(scene, view, TraceSettings(), weights)
    expected = {name: gradient.double() for name, gradient in expected.items()}
    assert_gradients_close(actual, expected, 2e-3)


def test_images_do_not_depend_on_the_run():
    scene, view = random_gaussians(3000).to("cuda"), camera(96, 64)
    images = [trace(scene, view).color for _ in range(5)]
    assert all(torch.equal(image, images[0]) for image in images)


def test_works_on_the_callers_stream():
    scene, view = random_gaussians(3000).to("cuda"), camera(96, 64)
    expected = trace(scene, view).color
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        leaves = scene.map(lambda t: t.clone().requires_grad_())
        image = trace(leaves, view)
        gradients(image, {"color": torch.ones_like(image.color)}, leaves)
    stream.synchronize()
    assert torch.equal(image.color, expected)


def test_mixed_devices_are_named():
    scene = random_gaussians(10).to("cuda")
    scene.quats = scene.quats.cpu()
    with pytest.raises(ValueError, match="quats is on"):
        trace(scene, camera())


def test_ring_size_is_fixed():
    with pytest.raises(ValueError, match="ring_size is 8; the CUDA tracer's ring holds 16"):
        trace(random_gaussians(10).to("cuda"), camera(), TraceSettings(ring_size=8))


@pytest.mark.parametrize("sh", ["ray", "center"])
def test_the_exact_pass_gives_the_rings_bits(sh):
    scene, view = layers().to("cuda"), camera(61, 45)
    image = trace(scene, view, TraceSettings(sh=sh))
    exact = trace(scene, view, TraceSettings(sh=sh, ring_size=0))
    for name in ("color", "opacity", "depth"):
        assert torch.equal(getattr(image, name), getattr(exact, name)), name
    assert image.opacity.min() > 0.1


# A class of list lengths each: sorted by 64 to 1,024 threads, and the longest in global memory.
@pytest.mark.parametrize("count", [200, 900, 2_900, 7_000, 12_000])
def test_long_lists_are_in_order(count):
    scene, view = random_gaussians(count, degree=0, logit=-5.0, scales=(0.5, 2.0)), camera(8, 8)
    settings = TraceSettings()
    with Stages() as stages:
        found = trace(scene.to("cuda"), view, settings)
    assert stages.counts["pairs"][0] > 0.6 * count
    expected = trace(scene, view, settings)
    for name in ("color", "opacity"):
        on_gpu = getattr(found, name).cpu()
        torch.testing.assert_close(on_gpu, getattr(expected, name), rtol=0, atol=3e-4)
