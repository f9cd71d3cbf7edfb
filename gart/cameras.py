"""Cameras: pose, intrinsics and lens, and the ray of every pixel.

Axes are OpenCV's (x right, y down, z forward); pixel centres lie at +0.5. Lens models and parameter
order follow COLMAP and OpenCV (docs/conventions.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

DISTORTION_PARAMETERS = {"pinhole": 0, "opencv": 4, "full_opencv": 8, "opencv_fisheye": 4}
"""Lens model -> number of distortion parameters: opencv k1 k2 p1 p2, full_opencv k1 k2 p1 p2 k3 k4
k5 k6, opencv_fisheye k1 k2 k3 k4."""


@dataclass(frozen=True, eq=False)
class Camera:
    """One camera.

    Attributes:
        c2w: [3, 4] float32 on the CPU, camera to world.
        fx, fy, cx, cy: intrinsics in pixels of the image used.
        width, height: image size in pixels.
        model: a key of `DISTORTION_PARAMETERS`.
        distortion: the model's parameters; missing trailing ones are zero.
    """

    c2w: Tensor
    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int
    model: str = "pinhole"
    distortion: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if tuple(self.c2w.shape) != (3, 4):
            raise ValueError(f"c2w has shape {list(self.c2w.shape)}; expected [3, 4]")
        if self.width < 1 or self.height < 1:
            raise ValueError(f"image size is {self.width} x {self.height}; expected at least 1 x 1")
        if not (self.fx > 0 and self.fy > 0):
            raise ValueError(f"focal lengths are {self.fx}, {self.fy}; expected positive pixels")
        if self.model not in DISTORTION_PARAMETERS:
            raise ValueError(
                f"camera model is {self.model!r}; "
                f"expected one of {', '.join(DISTORTION_PARAMETERS)}"
            )
        wanted = DISTORTION_PARAMETERS[self.model]
        if len(self.distortion) > wanted:
            raise ValueError(
                f"{self.model} takes {wanted} distortion parameters; got {len(self.distortion)}"
            )
        padded = tuple(self.distortion) + (0.0,) * (wanted - len(self.distortion))
        object.__setattr__(self, "distortion", padded)

    @property
    def K(self) -> Tensor:
        """[3, 3] float32 intrinsic matrix."""
        return torch.tensor([[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1]])

    @property
    def viewmat(self) -> Tensor:
        """[4, 4] float32 world to camera."""
        rotation, center = self.c2w[:, :3].double(), self.c2w[:, 3].double()
        viewmat = torch.eye(4, dtype=torch.float64)
        viewmat[:3, :3] = rotation.T
        viewmat[:3, 3] = -rotation.T @ center
        return viewmat.float()

    @property
    def center(self) -> Tensor:
        """[3] camera centre in world units."""
        return self.c2w[:, 3]

    @property
    def is_planar(self) -> bool:
        """True when every ray meets the plane z = 1, so that depth is z-depth."""
        return self.model != "opencv_fisheye"

    @property
    def lens(self) -> tuple[Any, ...]:
        """All that decides the rays in camera space: equal lenses share their ray grids."""
        intrinsics = (self.fx, self.fy, self.cx, self.cy)
        return (self.model, *intrinsics, self.width, self.height, *self.distortion)

    @classmethod
    def of_lens(cls, lens: tuple[Any, ...]) -> Camera:
        """The camera with this `lens` at the world's origin."""
        model, fx, fy, cx, cy, width, height, *distortion = lens
        return cls(torch.eye(3, 4), fx, fy, cx, cy, width, height, model, tuple(distortion))

    def resized(self, width: int, height: int) -> Camera:
        """The same view at another image size."""
        sx, sy = width / self.width, height / self.height
        return replace(
            self,
            fx=self.fx * sx,
            fy=self.fy * sy,
            cx=self.cx * sx,
            cy=self.cy * sy,
            width=width,
            height=height,
        )

    def undistorted(self) -> Camera:
        """The pinhole camera with the same pose, size and intrinsics."""
        return replace(self, model="pinhole", distortion=())

    def directions(self) -> Tensor:
        """[H, W, 3] float64 camera-space ray directions through the pixel centres.

        Planar lenses: z = 1. Fisheye: unit length. NaN where the lens maps no ray to the pixel.
        """
        x = (torch.arange(self.width, dtype=torch.float64) + 0.5 - self.cx) / self.fx
        y = (torch.arange(self.height, dtype=torch.float64) + 0.5 - self.cy) / self.fy
        x, y = torch.broadcast_tensors(x[None, :], y[:, None])
        if self.model == "opencv_fisheye":
            return _fisheye_directions(x, y, self.distortion)
        if self.model != "pinhole":
            x, y = undistort_points(x, y, self.distortion)
        return torch.stack([x, y, torch.ones_like(x)], -1)

    def project(self, points: Tensor) -> Tensor:
        """Pixel coordinates [..., 2] of world `points` [..., 3] through the lens.

        NaN for points behind the camera's plane (planar lenses).
        """
        p = (points.double() - self.c2w[:, 3].double()) @ self.c2w[:, :3].double()
        x, y, z = p.unbind(-1)
        if self.model == "opencv_fisheye":
            radius = torch.hypot(x, y)
            theta = torch.atan2(radius, z)
            scale = _fisheye_radius(theta, self.distortion) / radius.clamp_min(1e-300)
            x, y = x * scale, y * scale
        else:
            z = torch.where(z > 0, z, torch.nan)
            x, y = x / z, y / z
            if self.model != "pinhole":
                x, y = distort_points(x, y, self.distortion)
        return torch.stack([x * self.fx + self.cx, y * self.fy + self.cy], -1)


@lru_cache(maxsize=16)
def has_ray(lens: tuple[Any, ...]) -> Tensor:
    """[H, W] bool: the pixels that cameras with this `Camera.lens` have a ray for."""
    return Camera.of_lens(lens).directions().isfinite().all(-1)


def distort_points(x: Tensor, y: Tensor, distortion: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Apply OpenCV's radial-tangential (4 parameters) or rational (8) model on the plane z = 1."""
    k1, k2, p1, p2, k3, k4, k5, k6 = (*distortion, *(0.0,) * (8 - len(distortion)))
    r2 = x * x + y * y
    radial = (1 + r2 * (k1 + r2 * (k2 + r2 * k3))) / (1 + r2 * (k4 + r2 * (k5 + r2 * k6)))
    return (
        x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
        y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
    )


def undistort_points(x: Tensor, y: Tensor, distortion: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Invert `distort_points` by Newton's method; NaN where it has no inverse near the point."""
    u, v = x.clone(), y.clone()
    for _ in range(20):
        (fu, fv), ((a, b), (c, d)) = _value_and_jacobian(u, v, distortion)
        ex, ey = fu - x, fv - y
        if bool((ex.abs() + ey.abs() < 1e-13).all()):
            break
        det = a * d - b * c
        u, v = u - (d * ex - b * ey) / det, v - (a * ey - c * ex) / det
    (fu, fv), ((a, b), (c, d)) = _value_and_jacobian(u, v, distortion)
    # A folded lens has a second branch with negative orientation: no ray of the real lens.
    good = ((fu - x).abs() + (fv - y).abs() < 1e-9) & (a * d - b * c > 0) & (a + d > 0)
    return torch.where(good, u, torch.nan), torch.where(good, v, torch.nan)


def _value_and_jacobian(
    x: Tensor, y: Tensor, distortion: tuple[float, ...]
) -> tuple[tuple[Tensor, Tensor], tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    k1, k2, p1, p2, k3, k4, k5, k6 = (*distortion, *(0.0,) * (8 - len(distortion)))
    r2 = x * x + y * y
    denominator = 1 + r2 * (k4 + r2 * (k5 + r2 * k6))
    radial = (1 + r2 * (k1 + r2 * (k2 + r2 * k3))) / denominator
    slope = k1 + r2 * (2 * k2 + r2 * 3 * k3) - radial * (k4 + r2 * (2 * k5 + r2 * 3 * k6))
    slope = 2 * slope / denominator  # twice the derivative of `radial` by r2
    cross = x * y * slope + 2 * p1 * x + 2 * p2 * y
    dx = radial + x * x * slope + 2 * p1 * y + 6 * p2 * x
    dy = radial + y * y * slope + 6 * p1 * y + 2 * p2 * x
    return distort_points(x, y, distortion), ((dx, cross), (cross, dy))


def _fisheye_radius(theta: Tensor, k: tuple[float, ...]) -> Tensor:
    t2 = theta * theta
    return theta * (1 + t2 * (k[0] + t2 * (k[1] + t2 * (k[2] + t2 * k[3]))))


def _fisheye_slope(theta: Tensor, k: tuple[float, ...]) -> Tensor:
    t2 = theta * theta
    return 1 + t2 * (3 * k[0] + t2 * (5 * k[1] + t2 * (7 * k[2] + t2 * 9 * k[3])))


def _fisheye_directions(x: Tensor, y: Tensor, k: tuple[float, ...]) -> Tensor:
    radius = torch.hypot(x, y)
    # The lens is defined while its radius grows with the angle, at most up to 180 degrees off axis.
    angles = torch.linspace(0, torch.pi, 4097, dtype=torch.float64)
    falling = (_fisheye_slope(angles, k) <= 0).nonzero()
    theta_max = angles[falling[0, 0]] if len(falling) else angles[-1]
    low, high = torch.zeros_like(radius), torch.full_like(radius, float(theta_max))
    for _ in range(52):  # bisection: monotone by construction, to the last bit
        middle = (low + high) / 2
        below = _fisheye_radius(middle, k) < radius
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    theta = (low + high) / 2
    theta = torch.where(radius <= _fisheye_radius(theta_max, k), theta, torch.nan)
    scale = torch.where(radius > 0, theta.sin() / radius.clamp_min(1e-300), 1.0)
    return torch.stack([x * scale, y * scale, theta.cos()], -1)
