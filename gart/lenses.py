"""Lens models: where a lens images the point that an ideal camera would image.

The ideal image of a planar lens is the plane z = 1. That of a fisheye is equidistant: a ray meets
it at the distance of its angle from the axis, so that rays from the side and behind have a place.
That of a panorama is (longitude, latitude): angles to the right of the axis z and downwards, up to
half a turn and to the poles. That of an orthographic lens is the camera's plane in scene units.
Models, parameters and their order are COLMAP's and OpenCV's (docs/conventions.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PARAMETERS = {
    "pinhole": (),
    "opencv": ("k1", "k2", "p1", "p2"),
    "full_opencv": ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6"),
    "fov": ("omega",),
    "opencv_fisheye": ("k1", "k2", "k3", "k4"),
    "thin_prism_fisheye": ("k1", "k2", "p1", "p2", "k3", "k4", "sx1", "sy1"),
    "equirectangular": (),
    "orthographic": (),
}
"""Lens model -> names of its distortion parameters, in order."""

PLANAR = frozenset(("pinhole", "opencv", "full_opencv", "fov"))
"""Models whose ideal image is the plane z = 1."""
FISHEYES = frozenset(("opencv_fisheye", "thin_prism_fisheye"))
"""Models whose ideal image is the equidistant one."""

Point = tuple[Tensor, Tensor]


def distort(model: str, distortion: tuple[float, ...], x: Tensor, y: Tensor) -> Point:
    """From the ideal image to the lens's, both in units of the focal length."""
    if not PARAMETERS[model]:
        return x, y
    if model == "fov":
        scale = _fov_scale(torch.hypot(x, y), *distortion)
        return x * scale, y * scale
    if model == "opencv_fisheye":
        scale = _horner(distortion, x * x + y * y)
        return x * scale, y * scale
    return _Polynomials.of(model, distortion).value(x, y)


def undistort(model: str, distortion: tuple[float, ...], x: Tensor, y: Tensor) -> Point:
    """Inverse of `distort`; NaN where the lens images nothing, as beyond a fold or a pole."""
    if model == "equirectangular":
        seen = (x.abs() <= math.pi) & (y.abs() <= math.pi / 2)
        return torch.where(seen, x, torch.nan), torch.where(seen, y, torch.nan)
    if not PARAMETERS[model]:
        return x, y
    if model == "fov":
        scale = _inverse_fov_scale(torch.hypot(x, y), *distortion)
        return x * scale, y * scale
    if model == "opencv_fisheye":
        return _undistort_radially(x, y, distortion)
    lens = _Polynomials.of(model, distortion)
    start = _undistort_radially(x, y, lens.numerator) if model in FISHEYES else (x, y)
    return _newton(lens, x, y, start)


def to_rays(model: str, x: Tensor, y: Tensor) -> Tensor:
    """[..., 3] directions, in camera space, of the rays to points (x, y) of the ideal image.

    Planar and orthographic lenses: z = 1. All others: unit length.
    """
    if model in PLANAR:
        return torch.stack([x, y, torch.ones_like(x)], -1)
    if model == "orthographic":
        zero = 0 * (x + y)  # NaN where there is no ray
        return torch.stack([zero, zero, zero + 1], -1)
    if model == "equirectangular":
        return torch.stack([x.sin() * y.cos(), y.sin(), x.cos() * y.cos()], -1)
    angle = torch.hypot(x, y)
    scale = torch.where(angle > 0, angle.sin() / angle.clamp_min(1e-300), 1.0)
    return torch.stack([x * scale, y * scale, angle.cos()], -1)


def to_image(model: str, points: Tensor) -> Point:
    """Where `points` [..., 3] in camera space lie in the ideal image; NaN behind the plane of a
    camera with a planar or orthographic lens.
    """
    x, y, z = points.unbind(-1)
    if model == "equirectangular":
        return torch.atan2(x, z), torch.atan2(y, torch.hypot(x, z))
    if model in FISHEYES:
        radius = torch.hypot(x, y)
        scale = torch.atan2(radius, z) / radius.clamp_min(1e-300)
        return x * scale, y * scale
    z = torch.where(z > 0, z, torch.nan)
    return (x / z, y / z) if model in PLANAR else (x + 0 * z, y + 0 * z)


@dataclass(frozen=True)
class _Polynomials:
    """Radial distortion numerator(r^2) / denominator(r^2), both 1 + c1 r^2 + c2 r^4 + ...; Brown's
    tangential p1, p2; and the thin prism's s1, s2."""

    numerator: tuple[float, ...]
    denominator: tuple[float, ...] = ()
    p1: float = 0.0
    p2: float = 0.0
    s1: float = 0.0
    s2: float = 0.0

    @classmethod
    def of(cls, model: str, distortion: tuple[float, ...]) -> _Polynomials:
        k1, k2, p1, p2, *more = distortion
        if model == "opencv":
            return cls((k1, k2), (), p1, p2)
        if model == "full_opencv":
            return cls((k1, k2, more[0]), tuple(more[1:]), p1, p2)
        k3, k4, s1, s2 = more
        return cls((k1, k2, k3, k4), (), p1, p2, s1, s2)

    def value(self, x: Tensor, y: Tensor) -> Point:
        r2 = x * x + y * y
        radial = _horner(self.numerator, r2) / _horner(self.denominator, r2)
        p1, p2 = self.p1, self.p2
        return (
            x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x) + self.s1 * r2,
            y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y + self.s2 * r2,
        )

    def jacobian(self, x: Tensor, y: Tensor) -> tuple[Point, Point]:
        """Rows d(value x) and d(value y), by x and by y."""
        r2 = x * x + y * y
        denominator = _horner(self.denominator, r2)
        radial = _horner(self.numerator, r2) / denominator
        # Twice the derivative of `radial` by r^2.
        slope = _horner_slope(self.numerator, r2) - radial * _horner_slope(self.denominator, r2)
        slope = 2 * slope / denominator
        p1, p2 = self.p1, self.p2
        cross = x * y * slope + 2 * p1 * x + 2 * p2 * y
        dx = radial + x * x * slope + 2 * p1 * y + 6 * p2 * x + 2 * self.s1 * x
        dy = radial + y * y * slope + 6 * p1 * y + 2 * p2 * x + 2 * self.s2 * y
        return (dx, cross + 2 * self.s1 * y), (cross + 2 * self.s2 * x, dy)


def _newton(lens: _Polynomials, x: Tensor, y: Tensor, start: Point) -> Point:
    """The point near `start` that `lens` images at (x, y)."""
    u, v = start
    for _ in range(20):
        fu, fv = lens.value(u, v)
        ex, ey = fu - x, fv - y
        if not bool((ex.abs() + ey.abs() >= 1e-13).any()):
            break
        (a, b), (c, d) = lens.jacobian(u, v)
        det = a * d - b * c
        u, v = u - (d * ex - b * ey) / det, v - (a * ey - c * ex) / det
    fu, fv = lens.value(u, v)
    (a, b), (c, d) = lens.jacobian(u, v)
    # A folded lens has a second branch with negative orientation: no ray of the real lens.
    good = ((fu - x).abs() + (fv - y).abs() < 1e-9) & (a * d - b * c > 0) & (a + d > 0)
    return torch.where(good, u, torch.nan), torch.where(good, v, torch.nan)


def _undistort_radially(x: Tensor, y: Tensor, k: tuple[float, ...]) -> Point:
    """Invert r (1 + k1 r^2 + ...) on the equidistant image."""
    radius = torch.hypot(x, y)
    # The lens is defined while its radius grows with the angle, at most up to 180 degrees off axis.
    angles = torch.linspace(0, torch.pi, 4097, dtype=torch.float64)
    growth = _horner(tuple((2 * i + 3) * c for i, c in enumerate(k)), angles * angles)
    falling = (growth <= 0).nonzero()
    most = angles[falling[0, 0]] if len(falling) else angles[-1]
    low, high = torch.zeros_like(radius), torch.full_like(radius, float(most))
    for _ in range(52):  # bisection: monotone by construction, to the last bit
        middle = (low + high) / 2
        below = middle * _horner(k, middle * middle) < radius
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    angle = (low + high) / 2
    angle = torch.where(radius <= most * _horner(k, most * most), angle, torch.nan)
    scale = torch.where(radius > 0, angle / radius.clamp_min(1e-300), 1.0)
    return x * scale, y * scale


def _horner(coefficients: tuple[float, ...], r2: Tensor) -> Tensor:
    """1 + c1 r^2 + c2 r^4 + ..."""
    total = torch.zeros_like(r2)
    for c in reversed(coefficients):
        total = r2 * (c + total)
    return 1 + total


def _horner_slope(coefficients: tuple[float, ...], r2: Tensor) -> Tensor:
    """Derivative of `_horner` by r^2."""
    total = torch.zeros_like(r2)
    for i in reversed(range(len(coefficients))):
        total = total * r2 + (i + 1) * coefficients[i]
    return total


_SMALL = 1e-8
"""Where atan(t) and tan(t) are t to float64's last bit."""


def _fov_scale(radius: Tensor, omega: float) -> Tensor:
    """Devernay and Faugeras 2001: atan(2 r tan(omega / 2)) / (r omega)."""
    if abs(omega) < _SMALL:
        return torch.ones_like(radius)
    slope = 2 * math.tan(omega / 2)
    scale = torch.atan(radius * slope) / (radius * omega)
    return torch.where((radius * slope).abs() < _SMALL, slope / omega, scale)


def _inverse_fov_scale(radius: Tensor, omega: float) -> Tensor:
    if abs(omega) < _SMALL:
        return torch.ones_like(radius)
    slope, angle = 2 * math.tan(omega / 2), radius * omega
    scale = torch.where(angle.abs() < _SMALL, omega / slope, torch.tan(angle) / (radius * slope))
    return torch.where(angle.abs() < math.pi / 2, scale, torch.nan)
