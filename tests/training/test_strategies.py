import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from gart.tracing import TraceSettings, trace
from gart.tracing.tracer import differentiate
from gart.training import TrainConfig, Trainer
from gart.training.checkpoint import load_checkpoint, save_checkpoint
from gart.training.optimizer import Adam, learning_rates
from gart.training.photographs import Photograph
from gart.training.schedule import Schedule
from gart.training.strategies import Observation, make_strategy
from gart.training.strategies.adc import camera_distance, clone, split
from gart.training.strategies.error import scores, split_longest, view_moments
from gart.training.strategies.mcmc import Mcmc, grow, relocate
from gart.training.strategies.strategy import prune, rotated

SHORT = {"iterations": 60, "budget": 70, "sh_degree": 1, "densify_from": 5}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prepared(scene):
    adam = Adam(scene, learning_rates(TrainConfig()))
    for moments in (*adam.m.values(), *adam.v.values()):
        moments.fill_(1.0)
    return adam


def strategy_for(config, scene, **more):
    arguments = {"extent": 1.0, "views": 2, "settings": TraceSettings(), **more}
    return make_strategy(config, Schedule.of(config), scene, **arguments)


def observation(scene, camera, mask=None):
    rendering = trace(scene, camera)
    image = torch.full((camera.height, camera.width, 3), 90, dtype=torch.uint8)
    mask = torch.empty(0, dtype=torch.uint8) if mask is None else mask
    photograph = Photograph("0", camera, image, mask, image.shape[0] * image.shape[1])
    zeros = scene.map(torch.zeros_like)
    return Observation(1, photograph, rendering, torch.tensor([0.2, 0.4, 0.6]), scene, zeros)


def test_mcmc_is_relocation_and_growth(make_gaussians):
    config = TrainConfig(budget=55, growth=0.2)
    scene = make_gaussians(50)
    scene.opacity_logits[:9] = -8.0
    other = scene.map(torch.clone)
    found = Mcmc(config, Schedule.of(config)).densify(scene, prepared(scene), 600, rng(3))
    generator, adam = rng(3), prepared(other)
    relocate(other, adam, other.opacity_logits.sigmoid() <= config.dead_opacity, generator)
    expected = grow(other, adam, 5, generator)
    for name, tensor in expected.tensors().items():
        assert torch.equal(getattr(found, name), tensor)


@pytest.mark.parametrize("strategy", ["mcmc", "adc", "error"])
def test_a_run_lowers_the_loss_within_its_budget_and_resumes(small_capture, tmp_path, strategy):
    config = TrainConfig(**SHORT, strategy=strategy, grad_threshold=1e-5, noise=0, growth=0.5)

    def run(t, first, last):
        # densifications beside those of the schedule, which leave time to see several
        return [t.step(densify=i % 12 == 11) for i in range(first, last)]

    whole = Trainer(small_capture, config)
    expected = run(whole, 0, 60)
    counts = [v["gaussians"] for v in expected]
    assert counts[0] == 40
    assert max(counts) > 40
    assert max(counts) <= 70
    assert len(whole.gaussians) == counts[-1] == len(whole.state().tensors["adam_m.sh"])
    first, last = (sum(v["loss"] for v in part) for part in (expected[:5], expected[-5:]))
    assert last < 0.95 * first
    partial = Trainer(small_capture, config)
    run(partial, 0, 27)
    path = save_checkpoint(tmp_path, partial.state(), keep=1)
    resumed = Trainer(small_capture, config)
    resumed.load_state(load_checkpoint(path))
    assert run(resumed, 27, 60) == expected[27:]


def test_pruning_keeps_rows_and_moments_together(make_gaussians):
    scene = make_gaussians(6)
    adam = prepared(scene)
    adam.m["means"][:] = torch.arange(6.0)[:, None]
    dead = torch.tensor([True, False, False, True, False, False])
    left, kept = prune(scene, adam, dead)
    assert kept.tolist() == [1, 2, 4, 5]
    assert torch.equal(left.means, scene.means[kept])
    assert adam.m["means"][:, 0].tolist() == [1, 2, 4, 5]
    same, all_rows = prune(left, adam, torch.ones(4, dtype=torch.bool))
    assert same is left
    assert len(all_rows) == 4


def test_rotation_is_that_of_the_tracer():
    half = math.sqrt(0.5)  # a quarter turn about z
    turned = rotated(torch.tensor([[3 * half, 0, 0, 3 * half]]), torch.tensor([[1.0, 0, 2]]))
    torch.testing.assert_close(turned, torch.tensor([[0.0, 1, 2]]))


@pytest.mark.parametrize("model", ["pinhole", "opencv_fisheye"])
def test_distance_to_the_camera(camera_at, make_gaussians, model):
    camera, means = camera_at(0.7, model=model), make_gaussians(30).means
    inside = means @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    expected = inside[:, 2] if model == "pinhole" else inside.norm(dim=1)
    torch.testing.assert_close(camera_distance(means, camera), expected)


def test_adc_averages_the_gradient_in_the_image_over_the_views_that_have_one(
    make_gaussians, camera_at
):
    scene, config = make_gaussians(8), TrainConfig(strategy="adc")
    adc = strategy_for(config, scene)
    expected = torch.zeros(8)
    for angle in (0.0, 0.5):
        seen = observation(scene, camera_at(angle))
        seen.grads.means[:] = torch.randn(8, 3, generator=rng(1))
        seen.grads.means[3] = 0
        adc.observe(seen)
        camera = seen.photograph.camera
        depth = (scene.means @ camera.viewmat[2, :3]) + camera.viewmat[2, 3]
        # what the mean's pixel moves by, in half image widths
        expected += seen.grads.means.norm(dim=1) * depth / camera.fx * camera.width / 2
    torch.testing.assert_close(adc.tensors["gradient"], expected)
    assert adc.tensors["views"].tolist() == [2, 2, 2, 0, 2, 2, 2, 2]


def adc_scene(make_gaussians):
    scene = make_gaussians(6)
    scene.opacity_logits[:] = 2.0
    scene.opacity_logits[5] = -7.0  # transparent
    scene.log_scales[:] = math.log(0.005)
    scene.log_scales[1] = math.log(0.05)  # large
    return scene


def test_adc_clones_the_small_splits_the_large_and_removes_the_transparent(make_gaussians):
    scene = adc_scene(make_gaussians)
    before, adam = scene.map(torch.clone), prepared(scene)
    adc = strategy_for(TrainConfig(strategy="adc"), scene)
    adc.tensors["gradient"][:3] = torch.tensor([4e-3, 2e-3, 1.9e-4])
    adc.tensors["views"][:3] = torch.tensor([10.0, 10, 1])
    found = adc.densify(scene, adam, 600, rng())
    assert len(found) == 7  # 6 - 1 removed + 1 clone + 1 half
    for name, tensor in before.tensors().items():
        assert torch.equal(getattr(found, name)[[0, 2, 3, 4, 5]], tensor[[0, 2, 3, 4, 0]])
    halves = found.log_scales[[1, 6]].exp()
    torch.testing.assert_close(halves, torch.full((2, 3), 0.05 / 1.6))
    assert (found.means[[1, 6]] - before.means[1]).norm(dim=1).min() > 0
    assert adam.m["means"][:, 0].tolist() == [1, 0, 1, 1, 1, 0, 0]  # clones start anew
    assert adc.tensors["gradient"].tolist() == [0] * 7


def test_adc_stops_at_the_budget_with_the_largest_gradients(make_gaussians):
    scene = adc_scene(make_gaussians)
    adc = strategy_for(TrainConfig(strategy="adc", budget=6), scene)
    adc.tensors["gradient"][:] = torch.tensor([1.0, 2, 3, 9, 4, 5])
    adc.tensors["views"][:] = 1
    kept = scene.means[3].clone()
    found = adc.densify(scene, prepared(scene), 600, rng())
    assert len(found) == 6
    assert torch.equal(found.means[5], kept)
    adc.tensors["gradient"][:], adc.tensors["views"][:] = 1.0, 1.0
    assert adc.densify(found, prepared(found), 700, rng()) is not None
    assert len(found) == 6


def test_adc_resets_opacities_and_then_removes_the_huge(make_gaussians):
    scene = adc_scene(make_gaussians)
    scene.log_scales[2] = math.log(0.2)
    adam = prepared(scene)
    adc = strategy_for(TrainConfig(strategy="adc"), scene)
    scene = adc.densify(scene, adam, 2900, rng())
    assert len(scene) == 5  # the huge one is there
    assert float(scene.opacity_logits.max()) == 2.0
    scene = adc.densify(scene, adam, 3000, rng())
    torch.testing.assert_close(scene.opacity_logits.sigmoid(), torch.full((5,), 0.01))
    assert not adam.v["opacity_logits"].any()
    assert adam.v["means"].all()
    assert len(adc.densify(scene, adam, 3100, rng())) == 4


def test_clones_and_halves_come_from_their_gaussian(make_gaussians):
    scene = make_gaussians(1)
    scene.log_scales[:] = torch.tensor([[0.0, -1, -2]])
    many = scene.map(lambda t: t.repeat(4000, *[1] * (t.ndim - 1)))
    found = split(many, prepared(many), torch.arange(4000), rng())
    assert len(found) == 8000
    axes = rotated(scene.quats.expand(3, 4), torch.eye(3))  # rows are the axes in the world
    spread = ((found.means - scene.means) @ axes.T).std(0)
    torch.testing.assert_close(spread, scene.log_scales[0].exp(), rtol=0.05, atol=0)
    twice = clone(scene, prepared(scene), torch.tensor([0]))
    assert torch.equal(twice.means[0], twice.means[1])


def test_moments_are_sums_over_blended_pixels(make_gaussians, camera_at):
    scene, camera = make_gaussians(12), camera_at(0.3)
    scene.sh[:, 0] = -3.0  # colours that are clamped have no gradient of their own
    mask = (torch.rand(camera.height, camera.width, generator=rng(2)) < 0.7).to(torch.uint8)
    seen = observation(scene, camera, mask=mask)
    found = view_moments(seen, TraceSettings())
    error = (seen.rendering.over(seen.background) - seen.photograph.over(seen.background)).abs()
    error = error.mean(2)
    for row in range(12):
        # a Gaussian's weight in every pixel: the rendering with it white and all else black
        sh = torch.zeros(12, 1, 3)
        sh[:, 0] = -0.5 * math.sqrt(4 * math.pi)
        sh[row] = 0.5 * math.sqrt(4 * math.pi)
        weight = trace(replace(scene, sh=sh), camera).color[..., 0] * mask
        sums = torch.stack([(weight * error**p).sum() for p in (2, 1, 0)])
        torch.testing.assert_close(found[row], sums, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layout", ["hits", "aabb"])
@pytest.mark.parametrize("sh", ["ray", "center"])
def test_hits_that_were_kept_give_the_same_moments(make_gaussians, camera_at, sh, layout):
    scene, camera = make_gaussians(30), camera_at(0.3)
    settings = TraceSettings(sh=sh, lt_layout=layout)
    seen, image = observation(scene, camera), differentiate(scene, camera, settings)
    found = view_moments(replace(seen, hits=image.hits), settings)
    torch.testing.assert_close(found, view_moments(seen, settings), rtol=1e-5, atol=0)
    assert found[:, 2].count_nonzero() > 10


def test_scores_are_weighted_squared_deviations():
    w, e = torch.rand(50, generator=rng(1)), torch.rand(50, generator=rng(2))
    moments = torch.stack([(w * e**2).sum(), (w * e).sum(), w.sum()])
    uniform = torch.stack([w.sum() * 0.09, w.sum() * 0.3, w.sum()])
    found = scores(torch.stack([moments, uniform, torch.zeros(3)]))
    mean = (w * e).sum() / w.sum()
    torch.testing.assert_close(found[0], (w * (e - mean) ** 2).sum())
    assert found[1] == pytest.approx(0, abs=1e-5)
    assert found[2] == 0


def test_two_side_by_side_have_the_mean_covariance_and_integral_of_one(make_gaussians):
    scene = make_gaussians(5)
    before = scene.map(torch.clone)
    found = split_longest(scene, prepared(scene), torch.arange(5))

    def covariance(s):
        axes = torch.stack([rotated(s.quats, torch.eye(3)[i].expand(len(s), 3)) for i in range(3)])
        columns = axes.permute(1, 2, 0) * s.log_scales.exp()[:, None]
        return columns @ columns.transpose(1, 2)

    a, b = found.map(lambda t: t[:5]), found.map(lambda t: t[5:])
    torch.testing.assert_close((a.means + b.means) / 2, before.means)
    apart = a.means - b.means
    longest = before.log_scales.exp().amax(1)
    torch.testing.assert_close(apart.norm(dim=1), longest)
    between = apart[:, :, None] * apart[:, None, :] / 4
    torch.testing.assert_close(covariance(a) + between, covariance(before), rtol=1e-4, atol=1e-5)

    def mass(s):
        return s.opacity_logits.sigmoid() * s.log_scales.sum(1).exp()

    torch.testing.assert_close(mass(a) + mass(b), mass(before))
    torch.testing.assert_close(normalize(a.quats), normalize(before.quats))


def test_error_splits_by_score_and_removes_what_is_never_blended(make_gaussians):
    scene = make_gaussians(10)
    scene.opacity_logits[:] = 1.0
    config = TrainConfig(strategy="error", budget=100, densify_every=1000, densify_until=2500)
    strategy = strategy_for(config, scene)
    strategy.tensors["moments"][2] = torch.tensor([5.0, 1, 1])
    strategy.tensors["moments"][7] = torch.tensor([5.0, 1, 1])
    strategy.tensors["idle"][4] = 4  # twice all of the two views
    strategy.tensors["idle"][5] = 3
    before = scene.means.clone()
    found = strategy.densify(scene, prepared(scene), 500, rng())
    assert len(found) == 11  # one removed; the two that have a score are split
    moved = (found.means[:9] != before[[0, 1, 2, 3, 5, 6, 7, 8, 9]]).any(1)
    assert moved.nonzero()[:, 0].tolist() == [2, 6]
    assert strategy.tensors["idle"].tolist() == [0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0]
    assert not strategy.tensors["moments"].any()


def test_error_reaches_the_budget_half_way(make_gaussians):
    config = TrainConfig(strategy="error", budget=1000, densify_from=100, densify_until=1100)
    schedule = Schedule.of(config)
    scene, counts = make_gaussians(100), []
    scene.opacity_logits[:] = 1.0
    strategy, generator = strategy_for(config, scene), rng()
    for iteration in range(100, 1100, 100):
        assert schedule.densifies(iteration)
        strategy.tensors["moments"][:] = torch.tensor([5.0, 1, 1])
        scene.opacity_logits[:] = 1.0
        scene = strategy.densify(scene, prepared(scene), iteration, generator)
        counts.append(len(scene))
    # 900 in six steps, but none may more than double the scene
    assert counts == [200, 360, 520, 680, 840, 1000, 1000, 1000, 1000, 1000]


def test_error_scores_only_before_densifications(make_gaussians, camera_at):
    config = TrainConfig(strategy="error")
    scene = make_gaussians(10)
    strategy = strategy_for(config, scene)
    seen = observation(scene, camera_at(0))
    for iteration in (100, 490, 501, 590):
        strategy.observe(replace(seen, iteration=iteration))
        assert not strategy.tensors["moments"].any()
    strategy.observe(replace(seen, iteration=491))
    once = strategy.tensors["moments"].clone()
    assert once.any()
    strategy.observe(replace(seen, iteration=500))
    torch.testing.assert_close(strategy.tensors["moments"], 2 * once)
    hidden = once[:, 2] == 0
    assert torch.equal(strategy.tensors["idle"], 2.0 * hidden)
