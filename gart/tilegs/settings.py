"""What the rasterizer can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from gart.native import constants

Mode = Literal["classic", "antialiased"]

BINS = (16, 32, 64, 128)
"""Numbers of depth bins that the kernels are made for."""


@dataclass(frozen=True)
class RasterSettings:
    """Settings of the rasterizer; those of the image default to gsplat 1.5.3's
    (csrc/common/constants.h), those of the traversal to the paper's (docs/tilegs.md).

    Attributes:
        mode: "classic", or "antialiased": splats smaller than a pixel are dimmed by as much as the
            blur enlarges them (Mip-Splatting, Yu et al. 2024, section 5.2).
        alpha_min: weaker responses are left out, in (0, 1).
        alpha_max: responses are clamped to it, in [alpha_min, 1).
        transmittance_min: the splat that would bring a pixel's transmittance to it or below is left
            out, and so is all that lies behind, in [0, 1).
        near: Gaussians whose mean has a smaller camera z are left out; positive, in scene units.
        eps2d: variance in square pixels added to every splat's image, at least 0.
        bins: depth bins per tile, one of `BINS`; the image does not depend on it.
        repair: sort the bins. Without it the order within a bin is left open and the image is
            wrong; for the paper's ablation.
        packed: copy the splats into the order of the stream before blending (Packed-GW); the same
            image, for the paper's ablation.

    Raises:
        ValueError: a value outside its range.
    """

    mode: Mode = "classic"
    alpha_min: float = field(default_factory=lambda: constants()["alpha_min"])
    alpha_max: float = field(default_factory=lambda: constants()["alpha_max_tilegs"])
    transmittance_min: float = field(default_factory=lambda: constants()["transmittance_min"])
    near: float = field(default_factory=lambda: constants()["near"])
    eps2d: float = field(default_factory=lambda: constants()["eps2d"])
    bins: int = 64
    repair: bool = True
    packed: bool = False

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode is {self.mode!r}; expected 'classic' or 'antialiased'")
        if not 0 < self.alpha_min < 1:
            raise ValueError(f"alpha_min is {self.alpha_min}; expected a value in (0, 1)")
        if not self.alpha_min <= self.alpha_max < 1:
            raise ValueError(
                f"alpha_max is {self.alpha_max}; expected a value in [alpha_min, 1), "
                f"with alpha_min {self.alpha_min}"
            )
        if not 0 <= self.transmittance_min < 1:
            raise ValueError(
                f"transmittance_min is {self.transmittance_min}; expected a value in [0, 1)"
            )
        if not 0 < self.near < float("inf"):
            raise ValueError(f"near is {self.near}; expected a positive distance in scene units")
        if not 0 <= self.eps2d < float("inf"):
            raise ValueError(f"eps2d is {self.eps2d}; expected square pixels, at least 0")
        if self.bins not in BINS:
            raise ValueError(f"bins is {self.bins}; expected one of {', '.join(map(str, BINS))}")
