"""The papers' layout: the same gradients as the oracle's, its addresses, sizes and errors."""

import pytest
import torch
from gradient_cases import LOSSES, cloud, expected
from oracle import (
    OUTPUTS,
    Limits,
    assert_gradients_agree,
    assert_gradients_close,
    gradients,
    loss_weights,
    native_gradients,
    oracle_gradients,
)
from scenes import HARD_LIMITS, HARD_SCENES, camera, gaussian, random_gaussians

from gart.stages import Stages
from gart.tracing import BACKWARD_MODES, SH_MODES, LTBufferError, TraceSettings, trace
from gart.tracing.additions import additions
from gart.tracing.boxes import fill
from gart.tracing.ray_grid import ray_grid
from gart.tracing.traced import Traced
from gart.tracing.tracer import _forward


def aabb(**settings):
    return TraceSettings(lt_layout="aabb", **settings)


@pytest.mark.parametrize("backward", BACKWARD_MODES)
@pytest.mark.parametrize("sh", SH_MODES)
@pytest.mark.parametrize("loss", LOSSES)
def test_each_output_and_mode(loss, sh, backward):
    weights, reference = expected(sh, loss)
    actual = native_gradients(*cloud(), aabb(sh=sh, backward=backward), weights)
    assert_gradients_close(actual, reference, 1e-4)


@pytest.mark.parametrize("sh", SH_MODES)
@pytest.mark.parametrize("degree", [0, 1, 2])
def test_lower_sh_degrees(degree, sh):
    assert_gradients_agree(random_gaussians(60, seed=5, degree=degree), camera(), aabb(sh=sh))


@pytest.mark.parametrize("name", HARD_SCENES)
def test_hard_scenes(name):
    scene, view = HARD_SCENES[name]()
    limits = Limits(**HARD_LIMITS.get(name, {}))
    weights, reference = oracle_gradients(scene, view, TraceSettings(), limits=limits)
    for backward in BACKWARD_MODES:
        actual = native_gradients(scene, view, aabb(backward=backward), weights)
        assert_gradients_close(actual, reference, limits.gradient)


@pytest.mark.parametrize(
    "settings",
    [{"alpha_max": 0.4}, {"alpha_min": 0.05}, {"transmittance_min": 0.3}, {"near": 3.5}],
    ids=str,
)
def test_settings(settings):
    scene = random_gaussians(80, seed=2, logit=1)
    assert_gradients_agree(scene, camera(), aabb(**settings))


@pytest.mark.parametrize("backward", BACKWARD_MODES)
def test_threads(backward):
    scene, view = random_gaussians(200), camera(61, 43)
    weights = loss_weights(view, OUTPUTS)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(native_gradients(scene, view, aabb(backward=backward), weights))
    finally:
        torch.set_num_threads(before)
    assert_gradients_close(found[1], {n: g.double() for n, g in found[0].items()}, 1e-5)


def filled(scene, view, backward="primitive"):
    settings = aabb(backward=backward)
    grid = ray_grid(view, "cpu")
    tensors = list(scene.tensors().values())
    state = list(_forward(grid, view.c2w, settings, tensors, True).state)
    return fill(Traced(grid, view.c2w, settings, tensors, state))


def test_addresses_run_by_primitive_tile_and_pixel():
    # An opaque ball in front of a larger one: its box covers parts of four tiles.
    scene = gaussian((0, 0, 3), scales=(0.1, 0.1, 0.1), logit=4)
    view = camera(16, 16, fov=30)
    boxes = filled(scene, view)
    x0, y0, x1, y1 = boxes.box[0].tolist()
    assert 0 < x0 < 8 < x1 < 16
    assert (x0, y0, x1, y1) == (16 - x1, 16 - y1, x1, y1)
    assert boxes.offset.tolist() == [0, (x1 - x0) * (y1 - y0)]
    assert boxes.buffer.shape == (boxes.offset[1], 4)
    entry, image = 0, trace(scene, view)
    for tile_y in (0, 8):
        for tile_x in (0, 8):
            for y in range(max(y0, tile_y), min(y1, tile_y + 8)):
                for x in range(max(x0, tile_x), min(x1, tile_x + 8)):
                    hit = bool(image.opacity[y, x] > 0)
                    gathered = [*image.color[y, x].tolist(), 1.0 if hit else 0.0]
                    assert boxes.buffer[entry].tolist() == pytest.approx(gathered, abs=1e-6)
                    entry += 1
    # Tight: a border without a hit would be a row or column too many.
    hits = image.opacity > 0
    assert hits[:, x0].any()
    assert hits[y1 - 1].any()
    assert int(hits.sum()) == int((boxes.buffer[:, 3] > 0).sum())


def test_supports_at_the_camera_plane_take_the_whole_image():
    view = camera()
    near = gaussian((0.2, -0.1, 0.3), scales=(2, 1, 1.5))
    assert filled(near, view).box.tolist() == [[0, 0, view.width, view.height]]
    assert filled(gaussian((0, 0, -3)), view).offset[-1] == 0  # behind: no record, or no box


@pytest.mark.parametrize(("backward", "floats"), [("primitive", 4), ("hybrid", 1), ("pixel", 0)])
def test_buffer_is_allocated_exactly(backward, floats):
    boxes = filled(random_gaussians(50), camera(), backward)
    area = (boxes.box[:, 2] - boxes.box[:, 0]) * (boxes.box[:, 3] - boxes.box[:, 1])
    assert boxes.buffer.numel() == floats * int(area.sum())


def test_a_buffer_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("gart.tracing.boxes.free_memory", lambda device: 1000)
    scene = random_gaussians(20).map(lambda t: t.requires_grad_())
    message = r"needs an LT buffer of \d+ kB, 1 kB are free on cpu; use lt_layout=hits"
    with pytest.raises(LTBufferError, match=message) as caught:
        trace(scene, camera(), aabb())
    assert caught.value.free == 1000
    assert caught.value.needed % 16 == 0
    trace(scene, camera(), aabb(backward="pixel")).color.sum().backward()  # has no buffer
    with torch.no_grad():
        trace(scene, camera(), aabb())


def test_unknown_layout():
    with pytest.raises(ValueError, match="lt_layout is 'box'; expected one of hits, aabb"):
        TraceSettings(lt_layout="box")


def test_additions_are_those_of_pairs_and_hits():
    # One Gaussian over four tiles: four pairs, and as many hits as pixels that see it.
    scene = gaussian((0, 0, 3), scales=(0.1, 0.1, 0.1), logit=4).map(lambda t: t.requires_grad_())
    view = camera(16, 16, fov=30)
    hits = int((trace(scene, view).opacity > 0).sum())
    counts = {}
    for backward in BACKWARD_MODES:
        with Stages() as recorded:
            image = trace(scene, view, aabb(backward=backward))
            gradients(image, loss_weights(view, OUTPUTS), scene)
        assert recorded.counts["pairs with hits"] == [4]
        assert recorded.ms["LT buffer"][0] > 0
        counts[backward] = recorded.counts["additions to memory"][0]
    assert counts == {"primitive": 4 * 14, "hybrid": 4 * 3 + hits * 11, "pixel": hits * 14}


def test_additions_take_four_floats_in_the_default_layout_on_a_gpu():
    ours, papers = TraceSettings(), aabb()
    assert additions(papers, 16, hits=100, pairs=10, on_gpu=True) == 10 * 59
    assert additions(ours, 16, hits=100, pairs=10, on_gpu=True) == 10 * 15
    assert additions(ours, 16, hits=100, pairs=10, on_gpu=False) == 10 * 58
    center = TraceSettings(sh="center", backward="pixel", lt_layout="aabb")
    assert additions(center, 16, hits=100, pairs=10, on_gpu=True) == 100 * 14
