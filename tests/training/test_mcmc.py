import math

import pytest
import torch

from gart.rendering import Rendering
from gart.training.config import TrainConfig
from gart.training.optimizer import Adam, learning_rates
from gart.training.photographs import Photograph
from gart.training.schedule import Schedule
from gart.training.strategies import Observation
from gart.training.strategies.mcmc import (
    MAX_COPIES,
    OPACITY_RANGE,
    Mcmc,
    grow,
    relocate,
    split_opacity_scale,
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


UNCLAMPED = [
    (opacity, copies)
    for opacity in (0.01, 0.2, 0.7, 0.99)
    for copies in (1, 2, 3, 7, 20, 51)
    if 1 - (1 - opacity) ** (1 / copies) > OPACITY_RANGE[0]
]


@pytest.mark.parametrize(("opacity", "copies"), UNCLAMPED)
def test_copies_together_reproduce_the_original(opacity, copies):
    logit = torch.logit(torch.tensor([opacity], dtype=torch.float64))
    scales = torch.tensor([[0.3, 1.0, 2.0]], dtype=torch.float64)
    new_logit, new_scales = split_opacity_scale(logit, scales.log(), torch.tensor([copies]))
    ratios = new_scales.exp() / scales
    torch.testing.assert_close(ratios, ratios[:, :1].expand(1, 3))  # one factor for all axes

    each = float(new_logit.sigmoid())
    assert 1 - (1 - each) ** copies == pytest.approx(opacity, rel=1e-6)
    # brute force along a line through the centre: the integrals of opacity are equal
    x = torch.linspace(-60, 60, 200_001, dtype=torch.float64)
    before = (opacity * torch.exp(-(x**2) / 2)).sum()
    peaks = each * torch.exp(-((x / ratios[0, 0]) ** 2) / 2)
    after = (1 - (1 - peaks) ** copies).sum()
    assert float(after) == pytest.approx(float(before), rel=1e-6)


def test_equation_9_as_the_paper_writes_it():
    opacity, n = 0.6, 5
    new = 1 - (1 - opacity) ** (1 / n)
    total = sum(
        math.comb(i - 1, k) * (-1) ** k * new ** (k + 1) / math.sqrt(k + 1)
        for i in range(1, n + 1)
        for k in range(i)
    )
    logit = torch.logit(torch.tensor([opacity]))
    _, scales = split_opacity_scale(logit, torch.zeros(1, 3), torch.tensor([n]))
    assert float(scales[0, 0].exp()) == pytest.approx(opacity / total, rel=1e-5)


def test_hard_opacities_and_counts_stay_finite():
    logits = torch.tensor([-20.0, -6, 0, 8, 16, 40, math.inf])
    for copies in (1, 2, 51, 1000):
        result, scales = split_opacity_scale(logits, torch.zeros(7, 3), torch.full((7,), copies))
        assert result.isfinite().all()
        assert scales.isfinite().all()
        assert (result.sigmoid() >= 0.005 - 1e-6).all()
    capped = split_opacity_scale(logits, torch.zeros(7, 3), torch.full((7,), MAX_COPIES))
    assert torch.equal(result, capped[0])


def prepared(make_gaussians, n=50):
    scene = make_gaussians(n)
    scene.opacity_logits[:20] = -7.0  # dead
    scene.opacity_logits[20:] = 1.0
    adam = Adam(scene, learning_rates(TrainConfig()))
    for moments in (*adam.m.values(), *adam.v.values()):
        moments.fill_(1.0)
    return scene, adam


def dead(scene):
    return scene.opacity_logits.sigmoid() <= 0.005


def test_relocation_moves_exactly_the_dead(make_gaussians):
    scene, adam = prepared(make_gaussians)
    before = scene.map(torch.clone)
    assert relocate(scene, adam, dead(scene), rng()) == 20
    assert (scene.opacity_logits.sigmoid() > 0.005).all()
    assert torch.equal(scene.means[20:], before.means[20:])
    distance = torch.cdist(scene.means[:20], before.means[20:])
    assert (distance.min(1).values == 0).all()
    # A source and its copies share opacity and scale, and start with empty moments.
    sources = 20 + distance.argmin(1)
    for name in ("opacity_logits", "log_scales", "sh", "quats"):
        tensor = getattr(scene, name)
        assert torch.equal(tensor[:20], tensor[sources])
    untouched = torch.tensor(sorted(set(range(20, 50)) - set(sources.tolist())))
    assert torch.equal(scene.opacity_logits[untouched], before.opacity_logits[untouched])
    assert (adam.m["sh"][untouched] == 1).all()
    assert (adam.m["sh"][:20] == 0).all()
    assert (adam.v["means"][sources] == 0).all()


def test_relocation_needs_both_dead_and_live(make_gaussians):
    scene, adam = prepared(make_gaussians)
    scene.opacity_logits[:] = -9.0
    before = scene.map(torch.clone)
    assert relocate(scene, adam, dead(scene), rng()) == 0
    scene.opacity_logits[:] = 1.0
    assert relocate(scene, adam, dead(scene), rng()) == 0
    assert torch.equal(scene.means, before.means)


def test_sources_are_drawn_by_opacity(make_gaussians):
    scene = make_gaussians(3)
    scene.means[:] = torch.arange(3.0)[:, None]
    scene.opacity_logits[:] = torch.logit(torch.tensor([0.1, 0.3, 0.6]))
    adam = Adam(scene, learning_rates(TrainConfig()))
    grown = grow(scene, adam, 20_000, rng())
    share = torch.bincount(grown.means[3:, 0].long(), minlength=3) / 20_000
    torch.testing.assert_close(share, torch.tensor([0.1, 0.3, 0.6]), atol=0.015, rtol=0)


def test_growth_appends_and_keeps_order(make_gaussians):
    scene, adam = prepared(make_gaussians)
    before = scene.means.clone()
    grown = grow(scene, adam, 7, rng())
    assert len(grown) == len(adam.m["sh"]) == 57
    assert torch.equal(grown.means[:50], before)
    assert (adam.v["sh"][50:] == 0).all()
    assert grow(grown, adam, 0, rng()) is grown


def test_what_the_filter_has_made_invisible_is_dead(make_gaussians, camera_at):
    """Its own opacity is high, but no ray meets it: it would never move again."""
    scene, adam = prepared(make_gaussians)
    scene.opacity_logits[:] = 1.0
    traced = scene.map(torch.clone)
    traced.opacity_logits[7] = -7.0
    config = TrainConfig(budget=50)
    mcmc = Mcmc(config, Schedule.of(config))
    nothing = torch.zeros(0)
    rendering = Rendering(nothing, nothing, nothing)
    photograph = Photograph("", camera_at(0.3), nothing, nothing, 0)
    mcmc.observe(Observation(1, photograph, rendering, nothing, traced, traced))
    before = scene.means.clone()
    found = mcmc.densify(scene, adam, 600, rng())
    moved = (found.means != before).any(1).nonzero()[:, 0]
    assert moved.tolist() == [7]
