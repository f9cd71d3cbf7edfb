"""The solids of the demo scene, their textures and lighting: an analytic ray caster.

Vectors are [3, R] float32 arrays; z points up; the table's radius is 1.5 units. Numpy, not torch:
many small torch operations stall when other programs use the same cores.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Texture = Callable[[Array], Array]
"""Surface points relative to the solid, [3, R] -> colours [3, R] in [0, 1]."""

_OFFSET = 1e-3  # lifts shadow rays off their surface
_AMBIENT, _DIFFUSE, _SPECULAR, _SHININESS = 0.50, 0.58, 0.15, 24


def vector(x: float, y: float, z: float) -> Array:
    """[3, 1]"""
    return np.array([[x], [y], [z]], np.float32)


def dot(a: Array, b: Array) -> Array:
    """[R]"""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def unit(vectors: Array) -> Array:
    """The vectors at length 1."""
    return vectors / np.sqrt(dot(vectors, vectors))


@dataclass(frozen=True)
class Solid(ABC):
    """A convex solid.

    Attributes:
        center: its origin in the world.
        texture: its colours.
        turn: rotation about the vertical in radians.
    """

    center: tuple[float, float, float]
    texture: Texture
    turn: float = 0.0

    def local(self, vectors: Array, *, points: bool) -> Array:
        """World to solid."""
        if points:
            vectors = vectors - vector(*self.center)
        return _turn(vectors, -self.turn)

    @abstractmethod
    def span(self, origins: Array, directions: Array) -> tuple[Array, Array]:
        """Where local rays enter and leave the solid; enter > leave where they miss."""

    @abstractmethod
    def normal(self, points: Array) -> Array:
        """Outward local unit normals at local surface points."""

    def hit(self, origins: Array, directions: Array) -> Array:
        """[R] distance at which world rays from outside meet the solid; inf where they miss."""
        enter, leave = self.span(
            self.local(origins, points=True), self.local(directions, points=False)
        )
        return np.where((enter < leave) & (enter > 0), enter, np.float32(np.inf))


@dataclass(frozen=True)
class Sphere(Solid):
    """Centred ball."""

    radius: float = 1.0

    def span(self, origins: Array, directions: Array) -> tuple[Array, Array]:
        """Between the roots of |p| = radius."""
        return _roots(origins, directions, self.radius)

    def normal(self, points: Array) -> Array:
        """Away from the centre."""
        return points / self.radius


@dataclass(frozen=True)
class Cylinder(Solid):
    """Upright cylinder standing on its origin, with caps."""

    radius: float = 1.0
    height: float = 1.0

    def span(self, origins: Array, directions: Array) -> tuple[Array, Array]:
        """Inside the wall and between the caps."""
        enter, leave = _roots(origins[:2], directions[:2], self.radius)
        low, high = _slab(origins[2], directions[2], 0, self.height)
        return np.maximum(enter, low), np.minimum(leave, high)

    def normal(self, points: Array) -> Array:
        """Up or down on a cap, else away from the axis."""
        top, bottom = points[2] > self.height - 1e-4, points[2] < 1e-4
        side = points[:2] / self.radius * ~(top | bottom)
        return np.stack([*side, top.astype(np.float32) - bottom])


@dataclass(frozen=True)
class Box(Solid):
    """Centred box."""

    half: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def span(self, origins: Array, directions: Array) -> tuple[Array, Array]:
        """Between all three pairs of faces."""
        slabs = [_slab(o, d, -h, h) for o, d, h in zip(origins, directions, self.half, strict=True)]
        enter, leave = zip(*slabs, strict=True)
        return np.max(enter, 0), np.min(leave, 0)

    def normal(self, points: Array) -> Array:
        """That of the face whose coordinate is at its bound."""
        scaled = points / vector(*self.half)
        return np.where(np.abs(scaled) == np.abs(scaled).max(0), np.sign(scaled), np.float32(0))


def _roots(origins: Array, directions: Array, radius: float) -> tuple[Array, Array]:
    """The interval of rays inside |x| = radius; empty (inf, -inf) where they miss."""
    a, b = (directions**2).sum(0), (origins * directions).sum(0)
    discriminant = b * b - a * ((origins**2).sum(0) - radius * radius)
    root = np.sqrt(np.maximum(discriminant, 0))
    missed = discriminant < 0
    enter = np.where(missed, np.float32(np.inf), (-b - root) / a)
    return enter, np.where(missed, np.float32(-np.inf), (-b + root) / a)


def _slab(origin: Array, direction: Array, low: float, high: float) -> tuple[Array, Array]:
    first, second = (low - origin) / direction, (high - origin) / direction
    return np.minimum(first, second), np.maximum(first, second)


def _turn(vectors: Array, angle: float) -> Array:
    if angle == 0:
        return vectors
    x, y, z = vectors
    c, s = math.cos(angle), math.sin(angle)
    return np.stack([c * x - s * y, s * x + c * y, z])


def _mix(amount: Array, a: tuple[float, float, float], b: tuple[float, float, float]) -> Array:
    return vector(*a) * (1 - amount) + vector(*b) * amount


def _soft(wave: Array, sharpness: float = 4.0) -> Array:
    """A wave in [-1, 1] to a smooth step pattern in [0, 1]."""
    return 0.5 + 0.5 * np.tanh(sharpness * wave)


def _checks(p: Array) -> Array:
    """The table: checks inside, a ring and a plain rim outside."""
    x, y, _ = p
    radius = np.hypot(x, y)
    checks = _soft(np.sin(x * 8.4) * np.sin(y * 8.4))
    tiles = _mix(checks, (0.86, 0.80, 0.68), (0.30, 0.46, 0.50))
    rim = _mix(_soft(np.cos((radius - 1.36) * 40), 2), (0.45, 0.27, 0.16), (0.78, 0.55, 0.30))
    outside = _soft((radius - 1.25) * 12, 2)
    return tiles * (1 - outside) + rim * outside


def _marble(p: Array) -> Array:
    x, y, z = p
    wave = np.sin(9 * z + 2.2 * np.sin(5 * x + 1) + 1.8 * np.sin(6 * y))
    return _mix(_soft(wave, 2), (0.93, 0.42, 0.16), (0.98, 0.86, 0.62))


def _gores(p: Array) -> Array:
    """A beach ball's segments."""
    return _mix(
        _soft(np.cos(6 * np.arctan2(p[1], p[0])), 5), (0.16, 0.36, 0.72), (0.92, 0.93, 0.90)
    )


def _dots(p: Array) -> Array:
    x, y, z = np.sin(p * 24)
    wave = x * y + y * z + z * x
    return _mix(_soft(wave - 0.4, 3), (0.78, 0.20, 0.38), (0.98, 0.80, 0.78))


def _lattice(p: Array) -> Array:
    lines = np.cos(p * 15.7).max(0)
    return _mix(_soft(lines - 0.86, 8), (0.30, 0.56, 0.28), (0.92, 0.86, 0.42))


def _helix(p: Array) -> Array:
    x, y, z = p
    return _mix(
        _soft(np.sin(2 * np.arctan2(y, x) + 16 * z), 4), (0.52, 0.28, 0.58), (0.90, 0.82, 0.92)
    )


SOLIDS: tuple[Solid, ...] = (
    Cylinder((0, 0, -0.16), _checks, radius=1.5, height=0.16),
    Sphere((-0.10, 0.25, 0.46), _marble, radius=0.46),
    Sphere((0.62, -0.35, 0.28), _gores, turn=0.4, radius=0.28),
    Sphere((-0.15, -0.78, 0.19), _dots, radius=0.19),
    Box((-0.82, -0.28, 0.24), _lattice, turn=0.5, half=(0.24, 0.24, 0.24)),
    Cylinder((0.72, 0.55, 0.0), _helix, radius=0.20, height=0.75),
)


def cast(origin: Array, directions: Array, light: Array) -> tuple[Array, Array]:
    """What rays see: Lambert shading with shadows and a mild highlight, black where they miss.

    Args:
        origin: [3, 1], outside all solids.
        directions: [3, R], unit length.
        light: [3, R], unit, towards the light.

    Returns:
        Colours [3, R] in [0, 1] and distances [R], inf where nothing is hit.
    """
    hits = np.stack([solid.hit(origin, directions) for solid in SOLIDS])
    distances = hits.min(0)
    nearest = np.where(np.isfinite(distances), hits.argmin(0), -1)
    colors = np.zeros_like(directions)
    for index, solid in enumerate(SOLIDS):
        rays = np.flatnonzero(nearest == index)
        seen, to_light = directions[:, rays], light[:, rays]
        points = origin + seen * distances[rays]
        local = solid.local(points, points=True)
        normals = _turn(solid.normal(local), solid.turn)
        lit = np.maximum(dot(normals, to_light), 0)
        lifted = points + _OFFSET * normals
        for other in SOLIDS:
            if other is not solid:  # convex: no solid shades its own lit side
                lit[np.isfinite(other.hit(lifted, to_light))] = 0
        highlight = np.maximum(dot(normals, unit(to_light - seen)), 0) ** _SHININESS
        sky = _AMBIENT * (0.75 + 0.25 * normals[2])
        shade = solid.texture(local) * (sky + _DIFFUSE * lit)
        colors[:, rays] = shade + _SPECULAR * highlight * (lit > 0)
    return np.clip(colors, 0, 1), distances
