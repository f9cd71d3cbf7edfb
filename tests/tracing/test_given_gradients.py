"""Gradients from given ones: the same as torch.autograd.grad's, without what that imports."""

import subprocess
import sys

import pytest
import torch

from gart.tracing.gradients import gradients

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.parametrize("device", DEVICES)
def test_equal_those_of_autograd(device: str) -> None:
    random = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device=device)

    a, b = normal(4, 3).requires_grad_(), normal(3).requires_grad_()
    outputs = [(a * b).sin(), (a @ b).exp()]
    by_outputs = [normal(4, 3), normal(4)]
    expected = torch.autograd.grad(outputs, [a, b], by_outputs, retain_graph=True)
    for mine, theirs in zip(gradients(outputs, [a, b], by_outputs), expected, strict=True):
        assert torch.equal(mine, theirs)


def test_within_a_backward_pass() -> None:
    a = torch.ones(3, requires_grad=True)
    output = a * 2
    with torch.no_grad():
        (found,) = gradients([output], [a], [torch.tensor([1.0, 2.0, 3.0])])
    assert found.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize(
    "wrong", [torch.ones(5, 7), torch.ones(2, 4, 3), torch.ones(4, 3, dtype=torch.float64)]
)
def test_a_gradient_of_another_shape_or_dtype_is_refused(wrong: torch.Tensor) -> None:
    a = torch.ones(4, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"its output torch\.float32 \(4, 3\)"):
        gradients([a * 2], [a], [wrong])


def test_no_symbolic_mathematics_is_imported() -> None:
    code = """
import sys, torch
from gart.tracing.gradients import gradients
a = torch.ones(2, requires_grad=True)
gradients([a * 2], [a], [torch.ones(2)])
print("sympy" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
