"""An image with its backward pass as a call, against the same through autograd."""

import pytest
import torch
from scenes import camera, random_gaussians

from gart.tracing import TraceSettings, trace, tracer
from gart.tracing.tracer import differentiate

VIEW, SCENE = camera(70, 203), random_gaussians(50, degree=2, seed=1)


def by_autograd(settings, by_color, by_opacity):
    leaves = SCENE.map(lambda t: t.clone().requires_grad_())
    image = trace(leaves, VIEW, settings)
    loss = (image.color * by_color).sum()
    if by_opacity is not None:
        loss = loss + (image.opacity * by_opacity).sum()
    loss.backward()
    return image, leaves.map(lambda t: t.grad)


def outputs():
    g = torch.Generator().manual_seed(3)
    color = torch.randn(VIEW.height, VIEW.width, 3, generator=g)
    return color, torch.randn(VIEW.height, VIEW.width, generator=g)


@pytest.mark.parametrize("settings", [{}, {"sh": "center"}, {"lt_layout": "aabb"}])
@pytest.mark.parametrize("through_opacity", [True, False])
def test_it_is_what_autograd_gives(settings, through_opacity):
    settings = TraceSettings(**settings)
    by_color, by_opacity = outputs()
    by_opacity = by_opacity if through_opacity else None
    image = differentiate(SCENE, VIEW, settings)
    expected, grads = by_autograd(settings, by_color, by_opacity)
    for name in ("color", "opacity", "depth"):
        found = getattr(image.rendering, name)
        assert torch.equal(found, getattr(expected, name).detach())
        assert not found.requires_grad
    assert image.hits is not None
    found, _ = image.backward(by_color, by_opacity)
    for name, tensor in grads.tensors().items():
        assert torch.equal(getattr(found, name), tensor), name


def same_by_autograd(settings):
    by_color, by_opacity = outputs()
    image = differentiate(SCENE, VIEW, settings)
    assert image.hits is None
    expected, grads = by_autograd(settings, by_color, by_opacity)
    assert torch.equal(image.rendering.color, expected.color.detach())
    assert not image.rendering.color.requires_grad
    found, _ = image.backward(by_color, by_opacity)
    for name, tensor in grads.tensors().items():
        assert torch.equal(getattr(found, name), tensor), name
    assert not any(t.requires_grad for t in SCENE.tensors().values())


@pytest.mark.parametrize("settings", [{"sh": "linear"}, {"tracer": "bvh"}, {"memory_limit": 0}])
def test_what_goes_by_autograd_is_the_same(settings):
    same_by_autograd(TraceSettings(**settings))


def test_an_image_that_does_not_fit_after_all_is_traced_in_strips(monkeypatch):
    def too_large(*_):
        raise MemoryError

    monkeypatch.setattr(tracer, "_differentiate", too_large)
    same_by_autograd(TraceSettings())


def test_other_errors_are_not_hidden(monkeypatch):
    def wrong(*_):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(tracer, "_differentiate", wrong)
    with pytest.raises(RuntimeError, match="illegal"):
        differentiate(SCENE, VIEW, TraceSettings())
