"""Cameras: pose, intrinsics and lens, and the ray of every pixel.

Axes are OpenCV's (x right, y down, z forward); pixel centres lie at +0.5. Lens models and parameter
order follow COLMAP and OpenCV (docs/conventions.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gart.lenses import PARAMETERS, PLANAR, distort, to_image, to_rays, undistort
from gart.optics import RollingShutter, ThinLens

MAX_SIDE = 32768
"""Of an image, in pixels: beyond it a file is damaged rather than ambitious."""


@dataclass(frozen=True, eq=False)
class Camera:
    """One camera.

    Attributes:
        c2w: [3, 4] float32 on the CPU, camera to world.
        fx, fy, cx, cy: intrinsics in pixels of the image used: fx, fy a unit of the lens's ideal
            image (`gart.lenses`), so pixels a scene unit of an orthographic lens.
        width, height: image size in pixels, at most `MAX_SIDE`.
        model: a key of `gart.lenses.PARAMETERS`.
        distortion: the model's parameters; missing trailing ones are zero.
        shutter: how the camera moves while its rows are exposed; None: not at all.
        aperture: what lets objects out of focus blur; None: a point.
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
    shutter: RollingShutter | None = None
    aperture: ThinLens | None = None

    def __post_init__(self) -> None:
        if tuple(self.c2w.shape) != (3, 4):
            raise ValueError(f"c2w has shape {list(self.c2w.shape)}; expected [3, 4]")
        if not (1 <= self.width <= MAX_SIDE and 1 <= self.height <= MAX_SIDE):
            raise ValueError(
                f"image size is {self.width} x {self.height}; expected pixels from 1 to {MAX_SIDE}"
            )
        if not (self.fx > 0 and self.fy > 0):
            raise ValueError(f"focal lengths are {self.fx}, {self.fy}; expected positive pixels")
        if self.model not in PARAMETERS:
            raise ValueError(
                f"camera model is {self.model!r}; expected one of {', '.join(PARAMETERS)}"
            )
        wanted = len(PARAMETERS[self.model])
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
        return self.model in PLANAR

    @property
    def is_central(self) -> bool:
        """True when every ray starts at the camera's centre."""
        return self.model != "orthographic" and self.shutter is None and self.aperture is None

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

        Planar and orthographic lenses: z = 1. Others: unit length. NaN where the lens maps no ray
        to the pixel.
        """
        return to_rays(self.model, *self.undistort(*self._pixels()))

    def origins(self) -> Tensor:
        """[H, W, 3] float64 where the rays start in camera space: at 0 but for parallel rays, which
        start on the camera's plane. Shutter and aperture are `gart.tracing.camera_rays`' affair.
        """
        if self.model != "orthographic":
            return torch.zeros(1, 1, 3, dtype=torch.float64).expand(self.height, self.width, 3)
        x, y = self.undistort(*self._pixels())
        return torch.stack([x, y, torch.zeros_like(x)], -1)

    def _pixels(self) -> tuple[Tensor, Tensor]:
        """Two [H, W] float64: the pixel centres in the lens's image."""
        x = (torch.arange(self.width, dtype=torch.float64) + 0.5 - self.cx) / self.fx
        y = (torch.arange(self.height, dtype=torch.float64) + 0.5 - self.cy) / self.fy
        x, y = torch.broadcast_tensors(x[None, :], y[:, None])
        return x, y

    def project(self, points: Tensor) -> Tensor:
        """Pixel coordinates [..., 2] of world `points` [..., 3] through the lens.

        NaN for points behind the camera's plane (planar and orthographic lenses). Motion and
        aperture are left out.
        """
        p = (points.double() - self.c2w[:, 3].double()) @ self.c2w[:, :3].double()
        x, y = self.distort(*to_image(self.model, p))
        return torch.stack([x * self.fx + self.cx, y * self.fy + self.cy], -1)

    def distort(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """From the ideal image to the lens's (see `gart.lenses`), in units of focal lengths."""
        return distort(self.model, self.distortion, x, y)

    def undistort(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Inverse of `distort`; NaN where the lens images nothing."""
        return undistort(self.model, self.distortion, x, y)


def panorama_intrinsics(width: float, height: float) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy of an equirectangular image that shows all directions."""
    return width / (2 * math.pi), height / math.pi, width / 2, height / 2


@lru_cache(maxsize=16)
def has_ray(lens: tuple[Any, ...]) -> Tensor:
    """[H, W] bool: the pixels that cameras with this `Camera.lens` have a ray for."""
    return Camera.of_lens(lens).directions().isfinite().all(-1)
