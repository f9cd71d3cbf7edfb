"""The training step on CUDA against the CPU, which the other tests hold against PyTorch."""

from collections import deque
from dataclasses import replace

import pytest
import torch

from gart.rendering import Rendering
from gart.tracing import TraceSettings
from gart.tracing.blending import blending_sums
from gart.tracing.tracer import differentiate
from gart.training import TrainConfig, Trainer, trainer
from gart.training.exposure import Exposures
from gart.training.filter3d import SamplingFilter, smooth, smooth_backward
from gart.training.journal import FaultError, Journal
from gart.training.loss import photometric_loss
from gart.training.optimizer import Adam, Noise, learning_rates
from gart.training.photographs import Photograph
from gart.training.schedule import Schedule
from gart.training.strategies import Observation, make_strategy

pytestmark = pytest.mark.cuda

DEVICES = ("cpu", "cuda")
BITS = {"means": 2, "quats": 4, "log_scales": 8, "opacity_logits": 16, "sh": 32}


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same(found: torch.Tensor, expected: torch.Tensor, rtol: float = 1e-4) -> None:
    atol = rtol * float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found.cpu(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (75, 150), (68, 128), (34, 64), (413, 331)])
def test_photometric_loss(camera_at, channels, masked, size):
    g, (h, w) = rng(0), size
    color, opacity = torch.rand(h, w, 3, generator=g), torch.rand(h, w, generator=g)
    image = torch.randint(0, 256, (h, w, channels), generator=g, dtype=torch.uint8)
    none = torch.empty(0, dtype=torch.uint8)
    mask = (torch.rand(h, w, generator=g) < 0.8).to(torch.uint8) if masked else none
    counted = int(mask.sum()) if masked else h * w
    results = []
    for device in DEVICES:
        journal = Journal(device)
        line = journal.line()
        rendering = Rendering(*(t.to(device) for t in (color, opacity, opacity)))
        photograph = Photograph("", camera_at(0), image.to(device), mask.to(device), counted)
        background = torch.tensor([0.1, 0.5, 0.9], device=device)
        grads = photometric_loss(rendering, photograph, background, 0.2, journal, 3)
        results.append((line, *grads))
        assert journal.fault.tolist() == [0, 0]
    for found, expected in zip(results[1], results[0], strict=True):
        same(found, expected)


def test_a_loss_that_is_not_finite(camera_at):
    color = torch.rand(40, 70, 3, device="cuda")
    color[39, 69, 2] = torch.nan
    opacity = torch.ones(40, 70, device="cuda")
    photograph = Photograph(
        "",
        camera_at(0),
        torch.zeros(40, 70, 3, dtype=torch.uint8, device="cuda"),
        torch.empty(0, dtype=torch.uint8, device="cuda"),
        2800,
    )
    journal = Journal("cuda")
    rendering = Rendering(color, opacity, opacity)
    background = torch.zeros(3, device="cuda")
    _, none = photometric_loss(
        rendering, photograph, background, 0.2, journal, 7, through_opacity=False
    )
    assert none is None
    assert journal.fault.tolist() == [7, 1]


@pytest.mark.parametrize("count", [1, 127, 128, 5003])
def test_smoothing(make_gaussians, count):
    scene, grads = make_gaussians(count, degree=3), make_gaussians(count, degree=2, seed=4)
    sizes = torch.rand(count, generator=rng(1)) ** 4
    results = []
    for device in DEVICES:
        s, g = scene.to(device), grads.map(lambda t: t.clone().to(device))  # noqa: B023
        fault = torch.zeros(2, dtype=torch.int32, device=device)
        smoothed = smooth(s, sizes.to(device))
        smooth_backward(s, sizes.to(device), g, fault, 9, opacity_reg=0.3, scale_reg=0.7)
        assert fault.tolist() == [0, 0]
        results.append([*smoothed.tensors().values(), *g.tensors().values()])
    for found, expected in zip(results[1], results[0], strict=True):
        same(found, expected)


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("row", [0, 131, 1000])
def test_gradients_that_are_not_finite(make_gaussians, name, row):
    scene, grads = (make_gaussians(1001, degree=3, seed=s).to("cuda") for s in (0, 4))
    getattr(grads, name)[row].view(-1)[-1] = torch.inf
    fault = torch.zeros(2, dtype=torch.int32, device="cuda")
    smooth_backward(scene, torch.full((1001,), 0.1, device="cuda"), grads, fault, 9)
    both = BITS["log_scales"] if name == "opacity_logits" else 0
    assert fault.tolist() == [9, BITS[name] + both]


@pytest.mark.parametrize(("degree", "active"), [(0, 1), (2, 4), (3, 1), (3, 9), (3, 16)])
@pytest.mark.parametrize("count", [3, 128, 1001])
def test_adam_with_noise(make_gaussians, degree, active, count):
    start = make_gaussians(count, degree=degree)
    start.opacity_logits[::2] = -7.0
    rates = {**learning_rates(TrainConfig()), "means": 1e-3}
    results = []
    for device in DEVICES:
        scene = start.map(lambda t: t.clone().to(device))  # noqa: B023
        adam = Adam(scene, rates)
        fault = torch.zeros(2, dtype=torch.int32, device=device)
        for step in range(4):
            g = start.map(lambda t: torch.randn(t.shape, generator=rng(step)))  # noqa: B023
            g = replace(g, sh=g.sh[:, :active].contiguous()).to(device)
            adam.step(scene, g, fault, Noise(2.0, 2**62 + 5, step + 1))
        results.append([*scene.tensors().values(), *adam.m.values(), *adam.v.values()])
        frozen = scene.map(torch.clone)
        adam.step(scene, g, torch.ones_like(fault), Noise(2.0, 0, 9))
        assert torch.equal(scene.means, frozen.means)
        assert torch.equal(scene.sh, frozen.sh)
    for found, expected in zip(results[1], results[0], strict=True):
        same(found, expected)


def test_sampling_intervals(camera_at):
    cameras = [camera_at(0.05 * i) for i in range(150)]
    cameras += [camera_at(0.3 * i, model="opencv_fisheye") for i in range(5)]
    means = 3 * torch.randn(3001, 3, generator=rng(2))
    expected, found = (
        SamplingFilter(cameras, 0.1, device).intervals(means.to(device)) for device in DEVICES
    )
    same(found, expected)


LONG = {"iterations": 1000}
"""In which the first densification is at `densify_from`; a run of 60 has it after 6."""
CONFIG = {"iterations": 60, "budget": 60, "sh_degree": 2, "growth": 0.5}


def test_runs_go_the_same_way(small_capture):
    losses = []
    for device in DEVICES:
        t = Trainer(small_capture, TrainConfig(**CONFIG, densify_from=60), device)
        losses.append([t.step()["loss"] for _ in range(20)])
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)


def test_numbers_come_late_and_all_of_them(small_capture):
    t = Trainer(small_capture, TrainConfig(**CONFIG, init_scale=1.0, log_every=7), "cuda")
    found = []
    for _ in range(60):
        t.advance()
        found += t.measured()
    found += t.measured(wait=True)
    assert [m.iteration for m in found] == list(range(1, 61))
    first, last = (sum(m.loss for m in part) for part in (found[:5], found[-5:]))
    assert last < 0.75 * first
    assert found[0].gaussians == 40
    assert found[-1].gaussians == len(t.gaussians) == 60


def test_a_fault_that_is_noticed_late_has_left_the_scene_alone(small_capture, monkeypatch):
    t = Trainer(small_capture, TrainConfig(**{**CONFIG, **LONG}, densify_from=60), "cuda")
    for _ in range(2):
        t.advance()
    before, real, calls = t.gaussians.map(torch.clone), trainer.differentiate, []

    def bad_once(gaussians, camera, settings):
        image = real(gaussians, camera, settings)
        calls.append(camera)
        if len(calls) == 1:
            image.rendering.color.fill_(torch.nan)
        return image

    monkeypatch.setattr(trainer, "differentiate", bad_once)
    with pytest.raises(FaultError, match=r"^the loss.* in iteration 3 \(view "):
        deque(t.advance() for _ in range(25))
    assert len(calls) >= 8  # the page of ten iterations ends at the tenth
    assert t.iteration == 2
    for name, tensor in before.tensors().items():
        assert torch.equal(getattr(t.gaussians, name), tensor)


@pytest.mark.parametrize("strategy", ["adc", "error"])
def test_strategies_accumulate_the_same(small_capture, strategy):
    found = []
    for device in DEVICES:
        settings = {**CONFIG, **LONG, "strategy": strategy, "densify_from": 9}
        config = TrainConfig(**settings, exposure=True)
        t = Trainer(small_capture, config, device)
        for _ in range(8):  # the next one densifies
            t.step()
        tensors = t.state().tensors
        found.append({n: v for n, v in tensors.items() if n.startswith(("strategy.", "exposure."))})
        for _ in range(20):
            t.step()
        assert 40 < len(t.gaussians) <= 60
    for name, expected in found[0].items():
        if name not in ("exposure.m", "exposure.v"):
            same(found[1][name], expected, rtol=2e-2)


def test_adc_and_exposures_do_not_wait(make_gaussians, camera_at):
    scene, grads = (make_gaussians(100, seed=s).to("cuda") for s in (0, 1))
    camera, config = camera_at(0.3), TrainConfig(strategy="adc")
    arguments = {"extent": 1.0, "views": 2, "settings": TraceSettings()}
    adc = make_strategy(config, Schedule.of(config), scene, **arguments)
    exposures, fault = Exposures(2, "cuda"), torch.zeros(2, dtype=torch.int32, device="cuda")
    plane = torch.rand(camera.height, camera.width, device="cuda")
    rendering = Rendering(plane[..., None].repeat(1, 1, 3), plane, plane)
    nothing = torch.empty(0, dtype=torch.uint8, device="cuda")
    photograph = Photograph("", camera, nothing, nothing, plane.numel())
    seen = Observation(1, photograph, rendering, plane[0, :3], scene, grads)

    def all_of_it():
        adc.observe(seen)
        color = exposures.apply(1, rendering).color
        exposures.step(1, exposures.backward(1, rendering, color, plane)[2], 0.01, fault)

    all_of_it()  # whatever is set up once may wait
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        all_of_it()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert exposures.tensors["steps"].tolist() == [0, 2]


@pytest.mark.parametrize("sh", ["ray", "center"])
def test_hits_that_were_kept_give_the_moments_of_a_second_trace(make_gaussians, camera_at, sh):
    scene, camera = make_gaussians(400).to("cuda"), camera_at(0.3)
    settings = TraceSettings(sh=sh)
    hits = differentiate(scene, camera, settings).hits
    weights = torch.rand(camera.height, camera.width, 3, device="cuda")
    found = blending_sums(scene, camera, weights, settings, hits)
    again = blending_sums(scene, camera, weights, settings)
    torch.testing.assert_close(found, again, rtol=1e-4, atol=1e-5)
    assert found.count_nonzero() > 300
