import torch

from gart.training import TrainConfig, Trainer, trainer
from gart.training.averaging import Average
from gart.training.checkpoint import load_checkpoint, save_checkpoint
from gart.training.filter3d import smooth
from gart.training.plan import training_size

# 60 iterations: 40 to 60 are in the mean, 40, 50 and 60 of them; sorts after 48.
SHORT = {
    "iterations": 60,
    "budget": 60,
    "sh_degree": 1,
    "densify_until": 15_000,
    "morton_every": 16,
    "average_from": 20_000,
}


def test_the_run_gives_the_mean_of_its_last_scenes(small_capture, monkeypatch):
    monkeypatch.setattr(trainer, "morton_order", lambda means: torch.arange(len(means)).flip(0))
    t = Trainer(small_capture, TrainConfig(**SHORT))
    scenes = {}
    for iteration in range(1, 61):
        t.step()
        if iteration in (40, 50, 60):
            scenes[iteration] = t.gaussians.map(torch.clone)
        if iteration == 39:
            assert torch.equal(t.export().means, t.gaussians.means)
    scenes[40] = scenes[40].map(lambda s: s.flip(0))  # turned round after iteration 48
    tensors = {
        name: sum(scene.tensors()[name].double() for scene in scenes.values()) / 3
        for name in scenes[60].tensors()
    }
    mean = t._average.scene()
    for name, expected in tensors.items():
        torch.testing.assert_close(mean.tensors()[name].double(), expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(mean.means, t.gaussians.means)
    exported = t.export()
    assert torch.equal(exported.means, mean.means)
    expected = smooth(mean, t._filter_sizes(mean))
    assert torch.equal(exported.log_scales, expected.log_scales)
    assert torch.equal(exported.opacity_logits, expected.opacity_logits)


def test_a_densification_begins_it_anew(small_capture):
    t = Trainer(small_capture, TrainConfig(**{**SHORT, "average_from": 5000, "growth": 0.5}))
    counts = []
    for iteration in range(1, 26):
        t.step(densify=iteration == 22)
        counts.append(t._average.count)
    assert counts[9] == 1
    assert counts[21] == 0
    assert torch.equal(t.export().means, t.gaussians.means)


def test_a_resumed_run_has_the_same_mean(small_capture, tmp_path):
    config = TrainConfig(**SHORT)
    whole, first = (Trainer(small_capture, config) for _ in range(2))
    for _ in range(60):
        whole.step()
    for _ in range(47):
        first.step()
    path = save_checkpoint(tmp_path, first.state(), keep=1)
    resumed = Trainer(small_capture, config)
    resumed.load_state(load_checkpoint(path))
    for _ in range(13):
        resumed.step()
    assert resumed._average.count == 3
    for name, tensor in whole.export().tensors().items():
        assert torch.equal(getattr(resumed.export(), name), tensor)


def test_what_was_averaged_before_a_state_is_loaded_does_not_matter(small_capture):
    config = TrainConfig(**SHORT)
    t = Trainer(small_capture, config)
    state = t.state()
    for _ in range(45):
        t.step()
    assert t._average.count
    t.load_state(state)
    assert torch.equal(t.export().means, t.gaussians.means)


def test_a_mean_keeps_rows(make_gaussians):
    average = Average()
    a, b = make_gaussians(5, seed=1), make_gaussians(5, seed=2)
    average.add(a)
    rows = torch.tensor([4, 0, 2])
    average.keep(rows)
    average.add(b.map(lambda t: t[:3]))
    expected = (a.sh[rows] + b.sh[:3]) / 2
    torch.testing.assert_close(average.scene().sh, expected)
    assert torch.equal(a.sh, make_gaussians(5, seed=1).sh)  # the scene itself stays


def test_the_forecast_counts_it(small_capture):
    def held(average_from):
        config = TrainConfig(**{**SHORT, "average_from": average_from})
        return training_size(small_capture, config, "cpu").photographs

    assert held(20_000) - held(0) == 60 * 4 * (3 + 4 + 3 + 1 + 3 * 4)
