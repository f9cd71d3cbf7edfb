"""Gradients of all five tensors against the oracle's, for every output, backward and SH mode."""

import pytest
import torch
from gradient_cases import LOSSES, cloud, expected
from oracle import (
    Limits,
    assert_gradients_agree,
    assert_gradients_close,
    native_gradients,
    oracle_gradients,
)
from scenes import HARD_LIMITS, HARD_SCENES, camera, gaussian, random_gaussians

from gart.tracing import BACKWARD_MODES, SH_MODES, TraceSettings, trace


@pytest.mark.parametrize("backward", BACKWARD_MODES)
@pytest.mark.parametrize("sh", SH_MODES)
@pytest.mark.parametrize("loss", LOSSES)
def test_each_output_and_mode(loss, sh, backward):
    weights, gradients = expected(sh, loss)
    actual = native_gradients(*cloud(), TraceSettings(sh=sh, backward=backward), weights)
    assert_gradients_close(actual, gradients, 1e-4)


@pytest.mark.parametrize("sh", SH_MODES)
@pytest.mark.parametrize("degree", [0, 1, 2])
def test_lower_sh_degrees(degree, sh):
    assert_gradients_agree(
        random_gaussians(60, seed=5, degree=degree), camera(), TraceSettings(sh=sh)
    )


@pytest.mark.parametrize("name", HARD_SCENES)
def test_hard_scenes(name):
    gaussians, view = HARD_SCENES[name]()
    limits = Limits(**HARD_LIMITS.get(name, {}))
    weights, gradients = oracle_gradients(gaussians, view, TraceSettings(), limits=limits)
    for backward in BACKWARD_MODES:
        actual = native_gradients(gaussians, view, TraceSettings(backward=backward), weights)
        assert_gradients_close(actual, gradients, limits.gradient)


@pytest.mark.parametrize(
    "settings",
    [{"alpha_max": 0.4}, {"alpha_min": 0.05}, {"transmittance_min": 0.3}, {"near": 3.5}],
    ids=str,
)
def test_settings(settings):
    assert_gradients_agree(
        random_gaussians(80, seed=2, logit=1), camera(), TraceSettings(**settings)
    )


def test_negative_colors_have_no_sh_gradient():
    scene = gaussian((0, 0, 3), color=(0.5, -1, 0.5)).map(lambda t: t.requires_grad_())
    trace(scene, camera()).color.sum().backward()
    assert scene.sh.grad[0, 0, 0] > 0
    assert scene.sh.grad[0, 0, 1] == 0


def test_clamped_responses_have_no_geometry_gradient():
    scene = gaussian((0.02, 0.01, 3), logit=8).map(lambda t: t.requires_grad_())
    image = trace(scene, camera(1, 1))
    (image.color.sum() + image.opacity.sum()).backward()
    assert scene.opacity_logits.grad.item() == 0
    assert scene.means.grad.abs().max() == scene.log_scales.grad.abs().max() == 0
    assert scene.sh.grad.abs().min() > 0


@pytest.mark.parametrize("backward", BACKWARD_MODES)
def test_gaussians_nobody_sees_get_zeros(backward):
    unseen = random_gaussians(30, low=(-2, -2, -6), high=(2, 2, -2))
    scene = unseen.map(lambda t: t.requires_grad_())
    image = trace(scene, camera(), TraceSettings(backward=backward))
    (image.color.sum() + image.opacity.sum() + image.depth.sum()).backward()
    assert all(torch.equal(t.grad, torch.zeros_like(t)) for t in scene.tensors().values())


def test_no_gaussians():
    scene = random_gaussians(0).map(lambda t: t.requires_grad_())
    trace(scene, camera()).color.sum().backward()
    assert scene.sh.grad.shape == (0, 16, 3)


def test_only_what_is_asked_for():
    scene = random_gaussians(20)
    scene.opacity_logits.requires_grad_()
    trace(scene, camera()).color.sum().backward()
    assert scene.opacity_logits.grad.abs().max() > 0
    assert scene.means.grad is None
    with torch.no_grad():
        assert not trace(scene, camera()).color.requires_grad
