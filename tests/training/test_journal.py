import pytest
import torch

from gart.errors import GartError
from gart.training import TrainConfig, Trainer, trainer
from gart.training.journal import FaultError, Journal, Measured


def write(journal: Journal, iteration: int, loss: float, error: float) -> None:
    journal.line()[:] = torch.tensor([loss, error])
    journal.close(iteration, f"{iteration}.png", 10 * iteration)


def test_numbers_come_a_page_at_a_time_in_order():
    journal = Journal("cpu", lines=3)
    write(journal, 1, 0.5, 1.0)
    write(journal, 2, 0.25, 0.1)
    journal.read()
    assert journal.measured() == []
    write(journal, 3, 0.125, 0.01)
    journal.read()
    assert [(m.iteration, m.loss, m.gaussians) for m in journal.measured()] == [
        *((1, 0.5, 10), (2, 0.25, 20), (3, 0.125, 30))
    ]
    assert journal.measured() == []


def test_waiting_brings_what_is_there_and_the_next_page_begins_anew():
    journal = Journal("cpu", lines=3)
    write(journal, 1, 0.5, 0.1)
    journal.read(wait=True)
    journal.read(wait=True)
    write(journal, 2, 0.25, 1e-3)
    journal.read(wait=True)
    found = journal.measured()
    assert found[0] == Measured(1, 0.5, pytest.approx(10), 10)
    assert found[1].psnr == pytest.approx(30)


def test_a_perfect_image_has_a_finite_psnr():
    journal = Journal("cpu")
    write(journal, 1, 0.0, 0.0)
    journal.read()
    assert journal.measured()[0].psnr == 100


def test_a_fault_names_its_iteration_view_and_values():
    journal = Journal("cpu", lines=4)
    write(journal, 11, 0.5, 1.0)
    journal.fault[:] = torch.tensor([12, 1 + 4 + 32])
    for iteration in (12, 13, 14):
        write(journal, iteration, torch.nan, 1.0)
    with pytest.raises(FaultError) as caught:
        journal.read()
    assert caught.value.iteration == 12
    assert str(caught.value).startswith(
        "the loss and the gradient of quats and the gradient of sh became NaN or infinite in "
        "iteration 12 (view 12.png); earlier checkpoints are intact"
    )
    assert [m.iteration for m in journal.measured()] == [11]


def poison(monkeypatch, at: int) -> None:
    """NaN in the rendering of iteration `at`."""
    real, calls = trainer.differentiate, []

    def traced(gaussians, camera, settings):
        image = real(gaussians, camera, settings)
        calls.append(camera)
        if len(calls) == at:
            image.rendering.color.fill_(torch.nan)
        return image

    monkeypatch.setattr(trainer, "differentiate", traced)


def advance_until_it_fails(t: Trainer, most: int) -> GartError:
    for _ in range(most):
        try:
            t.advance()
        except GartError as error:
            return error
    raise AssertionError("no fault was noticed")


@pytest.mark.parametrize("densify_from", [4, 60])
def test_a_fault_that_is_noticed_late_has_left_the_scene_alone(
    small_capture, monkeypatch, densify_from
):
    """As on a GPU, whose pages have several lines."""
    config = TrainConfig(iterations=60, budget=60, growth=0.5, densify_from=densify_from)
    t = Trainer(small_capture, config)
    t._journal = Journal("cpu", lines=5)
    poison(monkeypatch, at=3)
    t.advance()
    t.advance()
    state = t.state()
    error = advance_until_it_fails(t, 5)
    assert "the loss" in str(error)
    assert "in iteration 3 (view " in str(error)
    assert t.iteration == 2
    for name, tensor in t.state().tensors.items():
        if "generator" not in name:
            assert torch.equal(tensor, state.tensors[name])
    assert t.state().values["adam_steps"] == 2
    t.step()  # and it can go on
    assert t.iteration == 3
