"""What the tracer does with input it cannot use."""

import math

import pytest
import torch
from oracle import OUTPUTS, assert_images_agree, gradients, loss_weights
from scenes import IDENTITY, camera, random_gaussians

from gart.tracing import SH_MODES, TraceSettings, trace

TENSORS = ["means", "quats", "log_scales", "opacity_logits", "sh"]


def changed(name, fn):
    scene = random_gaussians(20).map(torch.clone)
    setattr(scene, name, fn(getattr(scene, name)))
    return scene


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32])
def test_wrong_dtype_is_named(name, dtype):
    with pytest.raises(ValueError, match=f"{name} .*expected float32"):
        trace(changed(name, lambda t: t.to(dtype)), camera())


@pytest.mark.parametrize("name", TENSORS[1:])
def test_wrong_length_is_named(name):
    with pytest.raises(ValueError, match=rf"{name} has shape \[19.*expected \[20"):
        trace(changed(name, lambda t: t[1:]), camera())


def test_wrong_number_of_coefficients_is_refused():
    with pytest.raises(ValueError, match="sh has 5 coefficients; expected 1, 4, 9 or 16"):
        trace(changed("sh", lambda t: t[:, :5]), camera())


@pytest.mark.parametrize("name", TENSORS)
def test_strides_do_not_matter(name):
    strided = changed(name, lambda t: torch.stack([t, t], -1)[..., 0])
    assert not getattr(strided, name).is_contiguous()
    image = trace(strided, camera())
    assert torch.equal(image.color, trace(random_gaussians(20), camera()).color)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", TENSORS[:3])
@pytest.mark.parametrize("whole", [False, True], ids=["one number", "whole row"])
def test_non_finite_gaussians_are_never_hit(name, value, whole):
    def spoil(t):
        t[7, ... if whole else 1] = value
        return t

    scene = changed(name, spoil).map(lambda t: t.requires_grad_())
    image = trace(scene, camera())
    rest = random_gaussians(20).map(lambda t: torch.cat([t[:7], t[8:]]))
    without = trace(rest, camera())
    for output in OUTPUTS:
        assert torch.equal(getattr(image, output), getattr(without, output)), output
    found = gradients(image, loss_weights(camera(), OUTPUTS), scene)
    assert all(t.isfinite().all() for t in found.values())
    assert all(t[7].abs().max() == 0 for t in found.values())


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_no_opacity_no_hit(value):
    def spoil(t):
        t[7] = value
        return t

    rest = random_gaussians(20).map(lambda t: torch.cat([t[:7], t[8:]]))
    image = trace(changed("opacity_logits", spoil), camera())
    assert torch.equal(image.color, trace(rest, camera()).color)


@pytest.mark.parametrize("sh", SH_MODES)
def test_nan_coefficients_do_not_reach_the_image(sh):
    def spoil(t):
        t[7, 3, 1] = math.nan
        return t

    image = trace(changed("sh", spoil), camera(), TraceSettings(sh=sh))
    assert image.color.isfinite().all()


@pytest.mark.parametrize("length", [1e-15, 1e15])
def test_length_of_quaternions_plays_no_part(length):
    scene = changed("quats", lambda t: t / t.norm(dim=1, keepdim=True) * length)
    assert_images_agree(scene, camera())


@pytest.mark.parametrize("log_scale", [-40.0, -60.0, -88.0, -100.0])
def test_vanishing_thickness(log_scale):
    scene = random_gaussians(20)
    scene.log_scales[:, 1] = -20
    thin = trace(scene, camera())
    scene.log_scales[:, 1] = log_scale
    scene = scene.map(lambda t: t.requires_grad_())
    image = trace(scene, camera())
    if log_scale > -80:  # beyond, float32 holds no such scale: such a Gaussian may vanish
        torch.testing.assert_close(image.color, thin.color, rtol=0, atol=1e-4)
    found = gradients(image, loss_weights(camera(), OUTPUTS), scene)
    assert all(t.isfinite().all() for t in found.values())


def test_a_camera_that_is_not_finite_sees_nothing():
    image = trace(random_gaussians(20), camera(pose=IDENTITY * math.nan))
    assert image.color.abs().max() == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha_min": 0.0}, "alpha_min is 0.0"),
        ({"alpha_max": 1.0}, "alpha_max 1.0"),
        ({"alpha_min": 0.5, "alpha_max": 0.4}, "alpha_min < alpha_max"),
        ({"transmittance_min": 1.0}, "transmittance_min is 1.0"),
        ({"transmittance_min": math.nan}, "transmittance_min is nan"),
        ({"near": 0.0}, "near is 0.0"),
        ({"near": math.nan}, "near is nan"),
        ({"ring_size": -1}, "ring_size is -1; expected 0 to 64"),
        ({"ring_size": 65}, "ring_size is 65"),
        ({"sh": "mean"}, "sh is 'mean'; expected one of ray, center, linear"),
        ({"backward": "tile"}, "backward is 'tile'; expected one of primitive, hybrid, pixel"),
    ],
    ids=str,
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        TraceSettings(**wrong)
