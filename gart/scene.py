"""The scene: a set of 3D Gaussians with view-dependent colour."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SH_DEGREES = {1: 0, 4: 1, 9: 2, 16: 3}
"""Spherical-harmonics coefficients per channel -> degree."""
SH_C0 = 0.5 / math.sqrt(math.pi)
"""Value of the constant spherical harmonic."""


@dataclass
class Gaussians:
    """N 3D Gaussians, all tensors float32 on one device.

    Attributes:
        means: [N, 3] centres in scene units.
        quats: [N, 4] rotations as (w, x, y, z); normalised when used.
        log_scales: [N, 3] natural logarithms of the standard deviations along the local axes.
        opacity_logits: [N] opacity before the sigmoid; +inf means fully opaque.
        sh: [N, K, 3] spherical harmonics, K = (degree + 1)^2, degree 0 to 3; colour is
            max(0, 0.5 + sum_k basis_k(direction) sh_k), directions from the camera to the scene.
    """

    means: Tensor
    quats: Tensor
    log_scales: Tensor
    opacity_logits: Tensor
    sh: Tensor

    def __post_init__(self) -> None:
        n = self.means.shape[0] if self.means.ndim else 0
        coefficients = self.sh.shape[1] if self.sh.ndim == 3 else "K"
        expected: dict[str, tuple[int | str, ...]] = {
            "means": (n, 3),
            "quats": (n, 4),
            "log_scales": (n, 3),
            "opacity_logits": (n,),
            "sh": (n, coefficients, 3),
        }
        for name, tensor in self.tensors().items():
            if tensor.shape != expected[name]:
                want = [n, "K", 3] if name == "sh" else list(expected[name])
                raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {want}")
        if self.sh.shape[1] not in SH_DEGREES:
            raise ValueError(f"sh has {self.sh.shape[1]} coefficients; expected 1, 4, 9 or 16")

    def __len__(self) -> int:
        return self.means.shape[0]

    @property
    def sh_degree(self) -> int:
        """Degree of the spherical harmonics, 0 to 3."""
        return SH_DEGREES[self.sh.shape[1]]

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.means.device

    def tensors(self) -> dict[str, Tensor]:
        """All five tensors by name, in declaration order."""
        return dict(vars(self))

    def map(self, fn: Callable[[Tensor], Tensor]) -> Gaussians:
        """Apply `fn` to each tensor; for example `g.map(lambda t: t[keep])`."""
        return Gaussians(**{name: fn(tensor) for name, tensor in self.tensors().items()})

    def to(self, device: torch.device | str) -> Gaussians:
        """Copy to `device`."""
        return self.map(lambda t: t.to(device))

    def detach(self) -> Gaussians:
        """Share the data, drop the gradients."""
        return self.map(lambda t: t.detach())
