"""Real spherical harmonics up to degree 3, in the order and with the signs of 3DGS."""

from __future__ import annotations

from math import pi, sqrt

import torch
from torch import Tensor


def sh_basis(directions: Tensor, degree: int) -> Tensor:
    """Basis values at unit vectors.

    Orthonormal over the sphere; in degree l ordered m = -l .. l, with the Condon-Shortley phase.

    Args:
        directions: [..., 3] unit vectors.
        degree: 0 to 3.

    Returns:
        [..., K], K = (degree + 1)^2, of the directions' dtype.

    Raises:
        ValueError: another degree.
    """
    if degree not in (0, 1, 2, 3):
        raise ValueError(f"spherical-harmonics degree is {degree}; expected 0, 1, 2 or 3")
    x, y, z = directions.unbind(-1)
    xx, yy, zz = x * x, y * y, z * z
    basis = [torch.full_like(x, sqrt(1 / (4 * pi)))]
    if degree >= 1:
        c = sqrt(3 / (4 * pi))
        basis += [-c * y, c * z, -c * x]
    if degree >= 2:
        c = sqrt(15 / (4 * pi))
        basis += [
            c * x * y,
            -c * y * z,
            sqrt(5 / (16 * pi)) * (2 * zz - xx - yy),
            -c * x * z,
            c / 2 * (xx - yy),
        ]
    if degree >= 3:
        c1, c2, c3 = sqrt(21 / (32 * pi)), sqrt(105 / (4 * pi)), sqrt(35 / (32 * pi))
        basis += [
            -c3 * y * (3 * xx - yy),
            c2 * x * y * z,
            -c1 * y * (4 * zz - xx - yy),
            sqrt(7 / (16 * pi)) * z * (2 * zz - 3 * xx - 3 * yy),
            -c1 * x * (4 * zz - xx - yy),
            c2 / 2 * z * (xx - yy),
            -c3 * x * (xx - 3 * yy),
        ]
    return torch.stack(basis, -1)
