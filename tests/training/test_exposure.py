import math
from dataclasses import replace

import pytest
import torch
from training_oracle import as_photograph, photometric

from gart.errors import UsageError
from gart.evaluation import evaluate
from gart.rendering import Rendering
from gart.training import TrainConfig, Trainer
from gart.training.checkpoint import load_checkpoint, save_checkpoint
from gart.training.exposure import Exposures
from gart.training.journal import Journal
from gart.training.loss import photometric_loss
from gart.training.schedule import Schedule

NO_FAULT = torch.zeros(2, dtype=torch.int32)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_exposures() -> Exposures:
    exposures = Exposures(3, "cpu")
    exposures.tensors["matrices"] += 0.1 * torch.randn(3, 3, 4, generator=rng(1))
    return exposures


def test_a_new_exposure_changes_nothing():
    rendering = Rendering(torch.rand(4, 5, 3), torch.rand(4, 5), torch.rand(4, 5))
    assert torch.equal(Exposures(2, "cpu").apply(1, rendering).color, rendering.color)


@pytest.mark.parametrize("background", [(0.0, 0.0, 0.0), (0.2, 0.5, 0.9)])
def test_gradients_are_those_of_autograd(background):
    g, exposures = rng(0), some_exposures()
    color, opacity = torch.rand(14, 15, 3, generator=g), torch.rand(14, 15, generator=g)
    image = torch.randint(0, 256, (14, 15, 3), generator=g, dtype=torch.uint8)
    behind = torch.tensor(background)
    leaves = [t.double().requires_grad_() for t in (color, opacity, exposures.tensors["matrices"])]
    seen = leaves[0] @ leaves[2][1, :, :3].T + leaves[1][..., None] * leaves[2][1, :, 3]
    loss, _ = photometric(seen, leaves[1], image, behind.double(), 0.2)
    expected = list(torch.autograd.grad(loss, leaves))
    expected[2] = expected[2][1]
    journal, rendering = Journal("cpu"), Rendering(color, opacity, opacity)
    grads = photometric_loss(
        exposures.apply(1, rendering),
        as_photograph(image),
        behind,
        0.2,
        journal,
        1,
        through_opacity=any(background),
    )
    found = exposures.backward(1, rendering, *grads)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-7)


def test_steps_are_those_of_adam_with_the_mean_restored():
    exposures = some_exposures()
    matrices = exposures.tensors["matrices"]
    matrices += torch.eye(3, 4) - matrices.mean(0)
    other = [matrices[view].clone().requires_grad_() for view in range(3)]
    adams = [torch.optim.Adam([t], eps=1e-8) for t in other]
    for step in range(9):
        view, lr, grad = step * step % 3, 0.02 / (step + 1), torch.randn(3, 4, generator=rng(step))
        exposures.step(view, grad, lr, NO_FAULT)
        other[view].grad, adams[view].param_groups[0]["lr"] = grad, lr
        adams[view].step()
        mean = sum(t.detach() for t in other) / 3
        for t in other:
            t.data += torch.eye(3, 4) - mean
    torch.testing.assert_close(matrices, torch.stack([t.detach() for t in other]))
    torch.testing.assert_close(matrices.mean(0), torch.eye(3, 4))


def test_a_fault_leaves_all_as_it_was():
    exposures = some_exposures()
    before = {name: t.clone() for name, t in exposures.tensors.items()}
    fault = torch.tensor([4, 1], dtype=torch.int32)
    exposures.step(2, torch.full((3, 4), math.nan), 0.01, fault)
    for name, tensor in before.items():
        assert torch.equal(exposures.tensors[name], tensor)


def test_photographs_of_other_exposures_train_better_with_it(small_capture):
    views = [
        replace(v, image=(v.image * (0.6 + 0.08 * i)).to(torch.uint8))
        for i, v in enumerate([*small_capture.train, *small_capture.train])
    ]
    capture = replace(small_capture, train=views)
    options = {"iterations": 200, "budget": 60, "sh_degree": 0}
    losses = {}
    for exposure in (False, True):
        t = Trainer(capture, TrainConfig(**options, exposure=exposure))
        losses[exposure] = sum([t.step()["loss"] for _ in range(200)][-20:])
    assert losses[True] < 0.97 * losses[False]
    matrices = t.state().tensors["exposure.matrices"]
    gains = matrices[:, :, :3].diagonal(dim1=1, dim2=2).mean(1)
    assert float(gains[9]) > float(gains[0])  # the brightest photograph and the darkest
    without = evaluate(t.export(), capture.test, metrics="psnr")
    fitted = evaluate(t.export(), capture.test, metrics="psnr", exposure=True)
    assert (without["exposure"], fitted["exposure"]) == (False, True)
    assert fitted["mean"]["psnr"] > without["mean"]["psnr"]


def test_a_resumed_run_goes_on_exactly(small_capture, tmp_path):
    config = TrainConfig(iterations=30, budget=60, exposure=True, lr_exposure=0.05)
    whole = Trainer(small_capture, config)
    expected = [whole.step() for _ in range(20)]
    first = Trainer(small_capture, config)
    for _ in range(8):
        first.step()
    path = save_checkpoint(tmp_path, first.state(), keep=1)
    resumed = Trainer(small_capture, config)
    resumed.load_state(load_checkpoint(path))
    assert [resumed.step() for _ in range(12)] == expected[8:]
    plain = Trainer(small_capture, replace(config, exposure=False))
    with pytest.raises(UsageError, match="was trained with exposure=True, now exposure is False"):
        plain.load_state(first.state())


def test_the_rate_falls_log_linearly():
    schedule = Schedule.of(TrainConfig(iterations=101))
    rates = [schedule.exposure_lr(i) for i in (1, 51, 101)]
    assert rates == pytest.approx([1e-2, math.sqrt(1e-5), 1e-3])
