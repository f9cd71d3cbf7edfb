"""Same input, same bits: on every run and for every number of threads."""

import pytest
import torch
from oracle import OUTPUTS, gradients, loss_weights
from scenes import camera, layers, random_gaussians

from gart.tracing import BACKWARD_MODES, TraceSettings, hit_order, trace

VIEW = camera(61, 43)
SCENES = {"cloud": lambda: random_gaussians(300), "layers": lambda: layers(100)}


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def traced(scene, backward="primitive"):
    leaves = scene.map(lambda t: t.clone().requires_grad_())
    image = trace(leaves, VIEW, TraceSettings(backward=backward))
    return image, gradients(image, loss_weights(VIEW, OUTPUTS), leaves)


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("backward", BACKWARD_MODES)
def test_runs_and_threads(name, backward, threads):
    scene = SCENES[name]()
    threads(1)
    image, found = traced(scene, backward)
    for count in (1, 2, 3, 8):
        threads(count)
        again, found_again = traced(scene, backward)
        for output in OUTPUTS:
            assert torch.equal(getattr(image, output), getattr(again, output)), (output, count)
        for tensor, gradient in found.items():
            if backward == "primitive" or count == 1:  # sums in one order: no bit may differ
                assert torch.equal(gradient, found_again[tensor]), (tensor, count)
            error = (gradient - found_again[tensor]).double().norm() / gradient.double().norm()
            assert error < 5e-6, (tensor, count)  # float atomics


def test_order_does_not_depend_on_threads(threads):
    scene = layers(150)
    threads(1)
    offsets, indices, repaired = hit_order(scene, VIEW)
    threads(4)
    again = hit_order(scene, VIEW)
    assert torch.equal(offsets, again[0])
    assert torch.equal(indices, again[1])
    assert repaired == again[2]


def test_the_scene_is_left_alone():
    scene = random_gaussians(50)
    before = scene.map(torch.clone)
    traced(scene)
    for name, tensor in scene.tensors().items():
        assert torch.equal(tensor, before.tensors()[name])
