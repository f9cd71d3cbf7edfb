"""Cameras whose rays do not all start at their centre: rolling shutter and thin lens.

Everything here is differentiable in the poses and rays that it is given, in any type and on any
device; `gart.tracing.camera_rays` and `trace` apply what a `Camera` has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))
"""Between neighbours of a sunflower's seeds, which fill a disc evenly for any number of them."""


@dataclass(frozen=True, eq=False)
class RollingShutter:
    """Rows are exposed one after the other while the camera moves.

    The first row is seen from the camera's own pose, the last one from `end`, the others from
    between: centres on a line, rotations about one axis at constant speed (slerp).

    Attributes:
        end: [3, 4] float32 on the CPU, camera to world.
    """

    end: Tensor

    def __post_init__(self) -> None:
        if tuple(self.end.shape) != (3, 4):
            raise ValueError(f"end of a shutter has shape {list(self.end.shape)}; expected [3, 4]")

    def poses(self, start: Tensor, rows: int) -> Tensor:
        """[rows, 3, 4] pose of each row; `start` [3, 4] is the first one's."""
        shares = torch.linspace(0, 1, rows, dtype=torch.float64, device=start.device)
        return poses_between(start, self.end.to(start.device), shares)


@dataclass(frozen=True)
class ThinLens:
    """A round aperture: what is not at the focus is out of focus.

    A pixel's rays start all over the disc and meet where its ray through the centre reaches the
    focus: the plane at that depth for planar and orthographic lenses, whose disc lies in the
    camera's plane; the sphere at that distance for fisheyes and panoramas, whose disc faces every
    ray. Renderers average over the samples, so noise falls with their number.

    Attributes:
        radius: of the disc in scene units.
        focus: depth or distance of what is sharp, in scene units.
        samples: rays a pixel.
        seed: each pixel turns the pattern of its samples by an angle drawn from it.
    """

    radius: float
    focus: float
    samples: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.radius < math.inf and 0 < self.focus < math.inf and self.samples >= 1):
            raise ValueError(
                f"thin lens has radius {self.radius:g}, focus {self.focus:g} and {self.samples} "
                "samples; expected a radius of 0 or more, a positive focus and 1 sample at least"
            )

    def offsets(self, sample: int, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Where on the disc every pixel's ray number `sample` starts: two [H, W] float64, in scene
        units. Each pixel's samples are points of equal shares of the area (Vogel 1979).
        """
        random = torch.Generator().manual_seed(self.seed)
        turns = torch.rand(height, width, generator=random, dtype=torch.float64)
        angles = 2 * math.pi * turns + GOLDEN_ANGLE * sample
        radius = self.radius * math.sqrt((sample + 0.5) / self.samples)
        return radius * angles.cos(), radius * angles.sin()

    def bend(
        self, origins: Tensor, directions: Tensor, sample: int, *, facing: bool
    ) -> tuple[Tensor, Tensor]:
        """The rays number `sample` of pixels whose rays through the centre are given.

        Their length along the ray through the centre stays, so that depth means what it did.

        Args:
            origins, directions: [H, W, 3] in camera space.
            sample: from 0.
            facing: the disc is at right angles to every ray, not to the camera's axis.
        """
        height, width = directions.shape[:2]
        u, v = (t.to(directions)[..., None] for t in self.offsets(sample, height, width))
        across, along = _disc(directions) if facing else directions.new_tensor(_PLANE).unbind(0)
        offset = u * across + v * along
        return origins + offset, directions - offset / self.focus


_PLANE = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
"""Axes of a disc in the camera's plane."""


def poses_between(start: Tensor, end: Tensor, shares: Tensor) -> Tensor:
    """[..., 3, 4] float64 poses on the way from `start` to `end` [3, 4]; `shares` [...] of it, 0
    and 1 being these two; beyond them the motion goes on.

    Raises:
        ValueError: half a turn lies between the poses, so that it has no direction.
    """
    start, end, shares = start.double(), end.double(), shares.double()
    turn = _rotation_vector(start[:, :3].T @ end[:, :3])
    rotations = start[:, :3] @ torch.linalg.matrix_exp(shares[..., None, None] * _cross(turn))
    centers = start[:, 3] + shares[..., None] * (end[:, 3] - start[:, 3])
    return torch.cat([rotations, centers[..., None]], -1)


def _rotation_vector(rotation: Tensor) -> Tensor:
    """[3] axis times angle of a rotation [3, 3]."""
    skew = (rotation - rotation.T) / 2
    axis = torch.stack([skew[2, 1], skew[0, 2], skew[1, 0]])  # times the sine
    sine, cosine = axis.norm(), (rotation.trace() - 1) / 2
    if cosine < 0 and sine < 1e-4:
        raise ValueError("half a turn lies between two poses; give poses that are closer in time")
    small = sine < 1e-9
    return axis * torch.where(small, 1.0, torch.atan2(sine, cosine) / sine.clamp_min(1e-9))


def _cross(vector: Tensor) -> Tensor:
    """[3, 3] matrix of the cross product with `vector` from the left."""
    x, y, z = vector.unbind(0)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)


def _disc(directions: Tensor) -> tuple[Tensor, Tensor]:
    """Two unit vectors [..., 3] at right angles to each other and to the unit vectors `directions`:
    to the right, at right angles to the camera's y, and down.
    """
    x, _, z = directions.unbind(-1)
    right = torch.stack([z, torch.zeros_like(x), -x], -1)
    length = right.norm(dim=-1, keepdim=True)
    any_side = right.new_tensor([1.0, 0.0, 0.0]).expand_as(right)  # looking up or down
    right = torch.where(length > 1e-9, right / length.clamp_min(1e-9), any_side)
    return right, torch.linalg.cross(directions, right)
