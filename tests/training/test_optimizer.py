from dataclasses import replace

import pytest
import torch
from training_oracle import noise_shift, normals, philox

from gart.scene import Gaussians
from gart.training.config import TrainConfig
from gart.training.optimizer import EPS, Adam, Noise, learning_rates

RATES = {**learning_rates(TrainConfig()), "means": 1e-3}


def sound() -> torch.Tensor:
    """No fault."""
    return torch.zeros(2, dtype=torch.int32)


def random_grads(scene: Gaussians, seed: int, scale: float = 1.0) -> Gaussians:
    generator = torch.Generator().manual_seed(seed)
    return scene.map(lambda t: scale * torch.randn(t.shape, generator=generator))


def zero_grads(scene: Gaussians) -> Gaussians:
    return scene.map(torch.zeros_like)


def torch_adam(gaussians):
    """torch.optim.Adam on copies, the SH in two groups."""
    parts = {n: t.clone() for n, t in gaussians.tensors().items() if n != "sh"}
    parts["sh_dc"], parts["sh_rest"] = gaussians.sh[:, :1].clone(), gaussians.sh[:, 1:].clone()
    parameters = {n: torch.nn.Parameter(t) for n, t in parts.items()}
    groups = [{"params": [p], "lr": RATES[n]} for n, p in parameters.items()]
    return parameters, torch.optim.Adam(groups, eps=EPS)


@pytest.mark.parametrize("degree", [0, 2, 3])
def test_equals_torch_adam_step_by_step(make_gaussians, degree):
    scene = make_gaussians(30, degree=degree)
    adam = Adam(scene, RATES)
    parameters, theirs = torch_adam(scene)
    for step in range(25):
        grads = random_grads(scene, step, 10.0 ** (step % 5 - 6))
        adam.step(scene, grads, sound())
        given = {**grads.tensors(), "sh_dc": grads.sh[:, :1], "sh_rest": grads.sh[:, 1:]}
        for name, p in parameters.items():
            p.grad = given[name]
        theirs.step()
        ours = {**scene.tensors(), "sh_dc": scene.sh[:, :1], "sh_rest": scene.sh[:, 1:]}
        for name, p in parameters.items():
            torch.testing.assert_close(ours[name], p.detach(), rtol=1e-5, atol=1e-6)


def test_harmonics_without_gradient_stay_and_later_learn_as_if_they_had_been_there(make_gaussians):
    few, all_of_them = (make_gaussians(20, degree=3) for _ in range(2))
    short, full = Adam(few, RATES), Adam(all_of_them, RATES)
    for step, coefficients in enumerate([1, 1, 4, 9, 16, 16]):
        grads = random_grads(few, step)
        grads.sh[:, coefficients:] = 0
        short.step(few, replace(grads, sh=grads.sh[:, :coefficients].contiguous()), sound())
        full.step(all_of_them, grads, sound())
    for name, tensor in all_of_them.tensors().items():
        assert torch.equal(getattr(few, name), tensor)
        assert torch.equal(short.m[name], full.m[name])
        assert torch.equal(short.v[name], full.v[name])


def test_rows_kept_through_relocation_and_growth_go_on_as_before(make_gaussians):
    scene = make_gaussians(10)
    alone = scene.map(torch.clone)
    adam, undisturbed = Adam(scene, RATES), Adam(alone, RATES)
    moved, kept = torch.tensor([2, 5]), torch.tensor([0, 1, 3, 4, 6, 7, 8, 9])
    for step in range(6):
        grads = random_grads(alone, step)
        undisturbed.step(alone, grads, sound())
        extra = len(scene) - 10
        more = grads.map(lambda g: torch.cat([g, g.new_ones(extra, *g.shape[1:])]))  # noqa: B023
        adam.step(scene, more, sound())
        if step == 2:
            adam.forget(moved)
            assert (adam.m["sh"][moved] == 0).all()
            assert (adam.v["means"][moved] == 0).all()
            adam.append(3)
            scene = scene.map(lambda t: torch.cat([t, t[:3]]))
    assert len(scene) == len(adam.m["quats"]) == 13
    for name, tensor in alone.tensors().items():
        assert torch.equal(getattr(scene, name)[kept], tensor[kept])


def test_a_zero_rate_or_gradient_changes_nothing(make_gaussians):
    scene = make_gaussians(4)
    before = scene.map(torch.clone)
    adam = Adam(scene, learning_rates(TrainConfig()))  # the means' rate is 0 so far
    adam.step(scene, replace(zero_grads(scene), means=torch.ones(4, 3)), sound())
    for name, tensor in before.tensors().items():
        assert torch.equal(getattr(scene, name), tensor)


def test_nothing_changes_once_there_is_a_fault(make_gaussians):
    scene = make_gaussians(5)
    adam = Adam(scene, RATES)
    adam.step(scene, random_grads(scene, 0), sound())
    before, moments = scene.map(torch.clone), {n: t.clone() for n, t in adam.m.items()}
    fault = torch.tensor([1, 4], dtype=torch.int32)
    adam.step(scene, random_grads(scene, 1), fault, Noise(1.0, 0, 2))
    for name, tensor in before.tensors().items():
        assert torch.equal(getattr(scene, name), tensor)
        assert torch.equal(adam.m[name], moments[name])


def test_learning_rates_of_3dgs():
    rates = learning_rates(TrainConfig())
    assert (rates["sh_dc"], rates["sh_rest"]) == (2.5e-3, 1.25e-4)
    assert (rates["quats"], rates["log_scales"], rates["opacity_logits"]) == (1e-3, 5e-3, 5e-2)


def test_the_oracle_has_philox_of_the_paper():
    """Known answers of the authors' library (Random123)."""
    import numpy as np

    zeros, ones = np.zeros((1, 4), np.uint32), np.full((1, 4), 0xFFFFFFFF, np.uint32)
    known = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox(zeros, 0)[0].tolist() == known
    known = [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox(ones, 2**64 - 1)[0].tolist() == known


def shift_of(scene: Gaussians, noise: Noise) -> torch.Tensor:
    moved = scene.map(torch.clone)
    moved.means.zero_()
    Adam(moved, RATES).step(moved, zero_grads(moved), sound(), noise)
    return moved.means


def test_noise_is_equation_8_with_numbers_that_depend_on_seed_iteration_and_index(make_gaussians):
    scene = make_gaussians(500)
    scene.opacity_logits[:] = torch.linspace(-9, -4, 500)
    for seed, iteration in ((0, 1), (2**63 - 1, 30_000)):
        shift = shift_of(scene, Noise(2.0, seed, iteration))
        expected = noise_shift(scene, 2.0, seed, iteration)
        torch.testing.assert_close(shift.double(), expected, rtol=1e-3, atol=1e-5)
    a, b = (shift_of(scene, Noise(2.0, 0, iteration)) for iteration in (1, 2))
    assert not torch.equal(a, b)


def test_noise_is_added_after_the_step_and_spares_the_opaque(make_gaussians):
    scene, still = make_gaussians(50), make_gaussians(50)
    for s in (scene, still):
        s.opacity_logits[:25], s.opacity_logits[25:] = -7.0, 2.0
    grads = random_grads(scene, 3)
    Adam(scene, RATES).step(scene, grads, sound(), Noise(3.0, 1, 4))
    Adam(still, RATES).step(still, grads, sound())
    torch.testing.assert_close(
        scene.means.double(),
        still.means.double() + noise_shift(still, 3.0, 1, 4),
        rtol=1e-3,
        atol=1e-5,
    )
    assert (scene.means[:25] != still.means[:25]).any(1).all()
    assert torch.equal(scene.means[25:], still.means[25:])


def test_normal_numbers_are_normal():
    n = normals(100_000, 5, 9)
    assert n.mean(0).abs().max() < 0.02
    torch.testing.assert_close(n.T @ n / len(n), torch.eye(3).double(), rtol=0, atol=0.02)
    quartic = (n**4).mean(0)
    torch.testing.assert_close(quartic, torch.full((3,), 3.0).double(), rtol=0.05, atol=0)


def test_gradients_of_another_shape_are_named(make_gaussians):
    scene = make_gaussians(4)
    wrong = replace(zero_grads(scene), quats=torch.zeros(4, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="gradients's quats has dtype"):
        Adam(scene, RATES).step(scene, wrong, sound())
    with pytest.raises(ValueError, match="gradients's means has shape"):
        Adam(scene, RATES).step(scene, make_gaussians(3), sound())
