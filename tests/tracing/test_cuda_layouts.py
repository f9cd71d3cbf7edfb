"""The papers' layout on the GPU: the same gradients as the oracle's and the CPU's buffers."""

from dataclasses import replace

import pytest
import torch
from oracle import (
    OUTPUTS,
    STRICT,
    assert_gradients_close,
    gradients,
    loss_weights,
    native_gradients,
    oracle_gradients,
)
from scenes import HARD_LIMITS, HARD_SCENES, camera, layers, random_gaussians

from gart.stages import Stages
from gart.tracing import BACKWARD_MODES, SH_MODES, LTBufferError, TraceSettings, trace

pytestmark = pytest.mark.cuda

GRADIENT = {"layers": 2e-3}
"""1e-3 elsewhere. Alpha travels in 16 bits (error 7.6e-6): it shows in hundreds of faint hits."""


def aabb(**settings):
    return TraceSettings(lt_layout="aabb", **settings)


@pytest.mark.parametrize("backward", BACKWARD_MODES)
@pytest.mark.parametrize("sh", SH_MODES)
@pytest.mark.parametrize("loss", [*OUTPUTS, "mixed"])
def test_each_output_and_mode(loss, sh, backward):
    scene, view = random_gaussians(200, seed=3), camera()
    losses = OUTPUTS if loss == "mixed" else (loss,)
    weights, expected = oracle_gradients(scene, view, TraceSettings(sh=sh), losses)
    actual = native_gradients(scene, view, aabb(sh=sh, backward=backward), weights, "cuda")
    assert_gradients_close(actual, expected, 1e-3)


@pytest.mark.parametrize("sh", SH_MODES)
@pytest.mark.parametrize("degree", [0, 1, 2])
def test_lower_sh_degrees(degree, sh):
    scene, view = random_gaussians(100, seed=5, degree=degree), camera()
    weights, expected = oracle_gradients(scene, view, TraceSettings(sh=sh))
    for backward in BACKWARD_MODES:
        actual = native_gradients(scene, view, aabb(sh=sh, backward=backward), weights, "cuda")
        assert_gradients_close(actual, expected, 1e-3)


@pytest.mark.parametrize("name", HARD_SCENES)
def test_hard_scenes(name):
    scene, view = HARD_SCENES[name]()
    limits = replace(STRICT, **HARD_LIMITS.get(name, {}))
    weights, expected = oracle_gradients(scene, view, TraceSettings(), limits=limits)
    for backward in BACKWARD_MODES:
        actual = native_gradients(scene, view, aabb(backward=backward), weights, "cuda")
        assert_gradients_close(actual, expected, GRADIENT.get(name, 1e-3))


@pytest.mark.parametrize(
    "settings",
    [{"alpha_max": 0.4}, {"alpha_min": 0.05}, {"transmittance_min": 0.3}, {"near": 3.5}],
    ids=str,
)
def test_settings(settings):
    scene, view = random_gaussians(80, seed=2, logit=1), camera()
    weights, expected = oracle_gradients(scene, view, TraceSettings(**settings))
    for backward in BACKWARD_MODES:
        actual = native_gradients(scene, view, aabb(backward=backward, **settings), weights, "cuda")
        assert_gradients_close(actual, expected, 1e-3)


@pytest.mark.parametrize("backward", BACKWARD_MODES)
def test_counts_and_sizes_are_the_cpus(backward):
    scene, view = random_gaussians(2000, scales=(0.01, 0.1)), camera(203, 131)
    counts = {}
    for device in ("cpu", "cuda"):
        leaves = scene.map(lambda t, device=device: t.to(device).requires_grad_())
        with Stages() as stages:
            trace(leaves, view, aabb(backward=backward)).color.sum().backward()
        counts[device] = {name: values[0] for name, values in stages.counts.items()}
    assert counts["cuda"]["hits"] == pytest.approx(counts["cpu"]["hits"], rel=1e-4)
    for name in ("pairs with hits", "additions to memory"):
        assert counts["cuda"][name] == pytest.approx(counts["cpu"][name], rel=1e-3)
    if backward != "pixel":  # whose LT buffer are the hit lists
        sizes = [counts[device]["LT buffer bytes"] for device in ("cpu", "cuda")]
        assert sizes[1] == pytest.approx(sizes[0], rel=1e-3)


@pytest.mark.parametrize("backward", BACKWARD_MODES)
def test_hit_storage_that_runs_out(backward):
    # Far more hits a pixel than the first guess has room for: composited again before each use.
    scene, view = layers(600), camera(160, 120, fov=40)
    weights = loss_weights(view, ("color", "opacity"))
    settings = aabb(backward=backward)
    actual = native_gradients(scene, view, settings, weights, "cuda")
    expected = native_gradients(scene, view, settings, weights)
    assert_gradients_close(actual, {n: g.double() for n, g in expected.items()}, 2e-3)


@pytest.mark.parametrize("backward", BACKWARD_MODES)
def test_empty_scene(backward):
    scene = random_gaussians(0).map(lambda t: t.cuda().requires_grad_())
    trace(scene, camera(), aabb(backward=backward)).color.sum().backward()
    assert scene.sh.grad.shape == (0, 16, 3)


@pytest.mark.parametrize("backward", BACKWARD_MODES)
def test_works_on_the_callers_stream(backward):
    scene, view = random_gaussians(2000).to("cuda"), camera(96, 64)
    weights = {name: weight.cuda() for name, weight in loss_weights(view, OUTPUTS).items()}
    settings = aabb(backward=backward)

    def traced():
        leaves = scene.map(lambda t: t.clone().requires_grad_())
        return gradients(trace(leaves, view, settings), weights, leaves)

    expected = traced()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        actual = traced()
    stream.synchronize()
    assert_gradients_close(actual, {n: g.double() for n, g in expected.items()}, 1e-5)


def test_a_buffer_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("gart.tracing.boxes.free_memory", lambda device: 1000)
    scene = random_gaussians(20).map(lambda t: t.cuda().requires_grad_())
    with pytest.raises(LTBufferError, match="are free on cuda"):
        trace(scene, camera(), aabb())
