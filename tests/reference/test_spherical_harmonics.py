import math

import numpy as np
import pytest
import torch

from gart.reference import sh_basis


def sphere_quadrature() -> tuple[torch.Tensor, torch.Tensor]:
    """Directions and weights that integrate polynomials up to degree 15 exactly over the sphere."""
    z, weights = np.polynomial.legendre.leggauss(8)
    phi = np.arange(16) * (2 * math.pi / 16)
    z, phi = np.meshgrid(z, phi, indexing="ij")
    radius = np.sqrt(1 - z * z)
    directions = np.stack([radius * np.cos(phi), radius * np.sin(phi), z], -1).reshape(-1, 3)
    weights = np.repeat(weights, 16) * (2 * math.pi / 16)
    return torch.from_numpy(directions), torch.from_numpy(weights)


def test_basis_is_orthonormal_over_the_sphere():
    directions, weights = sphere_quadrature()
    basis = sh_basis(directions, 3)
    gram = basis.T @ (weights[:, None] * basis)
    torch.testing.assert_close(gram, torch.eye(16, dtype=torch.float64), rtol=0, atol=1e-13)


def test_lower_degrees_are_prefixes():
    directions, _ = sphere_quadrature()
    basis = sh_basis(directions, 3)
    for degree in range(3):
        assert torch.equal(sh_basis(directions, degree), basis[:, : (degree + 1) ** 2])


def test_order_signs_and_constants_of_3dgs():
    x, y, z = direction = torch.tensor([1.0, 2.0, -2.0], dtype=torch.float64) / 3
    expected = [
        0.28209479177387814,
        -0.4886025119029199 * y,
        0.4886025119029199 * z,
        -0.4886025119029199 * x,
        1.0925484305920792 * x * y,
        -1.0925484305920792 * y * z,
        0.31539156525252005 * (2 * z * z - x * x - y * y),
        -1.0925484305920792 * x * z,
        0.5462742152960396 * (x * x - y * y),
        -0.5900435899266435 * y * (3 * x * x - y * y),
        2.890611442640554 * x * y * z,
        -0.4570457994644658 * y * (4 * z * z - x * x - y * y),
        0.3731763325901154 * z * (2 * z * z - 3 * x * x - 3 * y * y),
        -0.4570457994644658 * x * (4 * z * z - x * x - y * y),
        1.445305721320277 * z * (x * x - y * y),
        -0.5900435899266435 * x * (x * x - 3 * y * y),
    ]
    expected = torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in expected])
    torch.testing.assert_close(sh_basis(direction, 3), expected, rtol=1e-14, atol=1e-15)


def test_unknown_degree_is_refused():
    with pytest.raises(ValueError, match="degree is 4; expected 0, 1, 2 or 3"):
        sh_basis(torch.zeros(1, 3), 4)
