import pytest
import torch

from gart.training import TrainConfig, Trainer
from gart.training.checkpoint import load_checkpoint, save_checkpoint
from gart.training.morton import morton_order

SHORT = {"iterations": 60, "budget": 60, "sh_degree": 1, "growth": 0.5, "noise": 0.0}


def interleaved(x: int, y: int, z: int) -> int:
    return sum(
        (v >> bit & 1) << 3 * bit + axis for axis, v in enumerate((x, y, z)) for bit in range(21)
    )


def test_the_order_is_that_of_interleaved_cells():
    axis = torch.arange(8.0)
    corners = torch.cartesian_prod(axis, axis, axis)
    shuffled = corners[torch.randperm(512, generator=torch.Generator().manual_seed(0))]
    placed = shuffled[morton_order(shuffled)]
    # The outermost planes are clamped to the middle 98 %, the others keep their cells of 1/8.
    keys = [interleaved(*(int(v) for v in row)) for row in placed.tolist()]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    "means", [torch.zeros(0, 3), torch.ones(5, 3), torch.tensor([[1e30, -1e30, 0.0]] * 3)]
)
def test_equal_places_keep_their_order(means):
    assert morton_order(means).tolist() == list(range(len(means)))


def test_strays_do_not_coarsen_the_grid():
    generator = torch.Generator().manual_seed(1)
    means = torch.rand(1000, 3, generator=generator)
    means[0] = 1e9
    placed = means[morton_order(means)]
    steps = (placed[1:] - placed[:-1]).norm(dim=1)
    assert steps.median() < 0.15  # 0.66 between random pairs, 0.1 between cells of a 10^3 grid


@pytest.mark.parametrize("strategy", ["mcmc", "adc", "error"])
def test_sorting_changes_the_order_alone(small_capture, strategy):
    config = {**SHORT, "strategy": strategy, "densify_from": 10_000, "densify_until": 20_000}
    runs = [Trainer(small_capture, TrainConfig(**config, morton_every=every)) for every in (0, 7)]
    losses = [[t.step()["loss"] for _ in range(15)] for t in runs]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-6)
    plain, sorted_ = (t.gaussians.means for t in runs)
    assert not torch.equal(plain, sorted_)
    # 15 iterations: before the first densification, whose draws depend on the order.
    nearest = torch.cdist(plain, sorted_).min(1)
    assert nearest.values.max() < 1e-3
    assert len(nearest.indices.unique()) == len(plain)


def test_a_sorted_run_resumes_exactly(small_capture, tmp_path):
    config = TrainConfig(**SHORT, morton_every=4)
    whole = Trainer(small_capture, config)
    expected = [whole.step()["loss"] for _ in range(24)]
    first = Trainer(small_capture, config)
    for _ in range(10):
        first.step()
    path = save_checkpoint(tmp_path, first.state(), keep=1)
    resumed = Trainer(small_capture, config)
    resumed.load_state(load_checkpoint(path))
    assert [resumed.step()["loss"] for _ in range(14)] == expected[10:]


def test_sorting_right_after_growth(small_capture):
    t = Trainer(small_capture, TrainConfig(**SHORT, morton_every=6))
    assert t.schedule.densifies(6)
    for _ in range(6):
        t.step()
    grown = t.gaussians
    assert len(grown) == 60
    assert morton_order(grown.means).tolist() == list(range(60))
    assert len(t.export()) == 60
    t.step()
