import torch

from gart.training.config import TrainConfig
from gart.training.optimizer import EPS, Adam, learning_rates


def torch_adam(gaussians, rates):
    """torch.optim.Adam on copies, the SH in two groups."""
    parts = {n: t.clone() for n, t in gaussians.tensors().items() if n != "sh"}
    parts["dc"], parts["rest"] = gaussians.sh[:, :1].clone(), gaussians.sh[:, 1:].clone()
    lr = {**rates, "dc": float(rates["sh"][0]), "rest": float(rates["sh"][1])}
    parameters = {n: torch.nn.Parameter(t) for n, t in parts.items()}
    groups = [{"params": [p], "lr": lr[n]} for n, p in parameters.items()]
    return parameters, torch.optim.Adam(groups, eps=EPS)


def give(parameters, grads):
    for name, p in parameters.items():
        p.grad = {"dc": grads["sh"][:, :1], "rest": grads["sh"][:, 1:]}.get(name, grads.get(name))


def test_equals_torch_adam_step_by_step(make_gaussians):
    scene = make_gaussians(30, degree=2)
    rates = learning_rates(TrainConfig(), scene)
    rates["means"] = 1e-3
    adam = Adam(scene, rates)
    parameters, theirs = torch_adam(scene, rates)
    for step in range(25):
        generator = torch.Generator().manual_seed(step)
        grads = {
            n: torch.randn(t.shape, generator=generator) * 10 ** (step % 5 - 6)
            for n, t in scene.tensors().items()
        }
        adam.step(scene, grads)
        give(parameters, grads)
        theirs.step()
        ours = {**scene.tensors(), "dc": scene.sh[:, :1], "rest": scene.sh[:, 1:]}
        for name, p in parameters.items():
            torch.testing.assert_close(ours[name], p.detach(), rtol=1e-5, atol=1e-6)


def test_rows_kept_through_relocation_and_growth_go_on_as_before(make_gaussians):
    scene = make_gaussians(10)
    rates = learning_rates(TrainConfig(), scene)
    rates["means"] = 1e-3
    alone = scene.map(torch.clone)
    adam, undisturbed = Adam(scene, dict(rates)), Adam(alone, dict(rates))
    moved, kept = torch.tensor([2, 5]), torch.tensor([0, 1, 3, 4, 6, 7, 8, 9])
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        grads = {n: torch.randn(t.shape, generator=generator) for n, t in alone.tensors().items()}
        undisturbed.step(alone, grads)
        extra = len(scene) - 10
        adam.step(
            scene, {n: torch.cat([g, g.new_ones(extra, *g.shape[1:])]) for n, g in grads.items()}
        )
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
    adam = Adam(scene, learning_rates(TrainConfig(), scene))  # the means' rate is 0 so far
    grads = {n: torch.zeros_like(t) for n, t in scene.tensors().items()}
    adam.step(scene, {**grads, "means": torch.ones(4, 3)})
    for name, tensor in before.tensors().items():
        assert torch.equal(getattr(scene, name), tensor)


def test_learning_rates_of_3dgs(make_gaussians):
    rates = learning_rates(TrainConfig(), make_gaussians(2, degree=3))
    assert rates["sh"].shape == (16, 1)
    torch.testing.assert_close(rates["sh"][:, 0], torch.tensor([2.5e-3] + [1.25e-4] * 15))
    assert (rates["quats"], rates["log_scales"], rates["opacity_logits"]) == (1e-3, 5e-3, 5e-2)
