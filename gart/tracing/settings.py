"""Settings of the ray tracer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gart.native import constants

SH_MODES = ("ray", "center")
BACKWARD_MODES = ("primitive", "hybrid", "pixel")


def _native(name: str) -> Callable[[], float]:
    return lambda: constants()[name]


@dataclass(frozen=True)
class TraceSettings:
    """How rays are traced; defaults and their reasons are in csrc/common/constants.h.

    Attributes:
        alpha_min: responses below are no hits; also bounds every Gaussian's support.
        alpha_max: responses are clamped here, without gradient beyond.
        transmittance_min: a ray stops below; the hit that gets there is still blended.
        near: nearest hit, in scene units of the ray's z.
        ring_size: hits a pixel holds while their order is not yet proven; changes only speed.
            1 to 64 on the CPU, the default alone on CUDA.
        sh: "ray": colour at the ray's direction (3DGART); "center": at the direction of the
            Gaussian's mean (3DGS).
        backward: where gradients are summed: "primitive" (per Gaussian and tile), "pixel" (atomics
            per hit), "hybrid" (colour by primitive, geometry by pixel); same gradients.
    """

    alpha_min: float = field(default_factory=_native("alpha_min"))
    alpha_max: float = field(default_factory=_native("alpha_max_trace"))
    transmittance_min: float = field(default_factory=_native("transmittance_min"))
    near: float = field(default_factory=_native("near"))
    ring_size: int = field(default_factory=lambda: int(constants()["ring_size"]))
    sh: str = "ray"
    backward: str = "primitive"

    def __post_init__(self) -> None:
        if not 0 < self.alpha_min < self.alpha_max < 1:
            raise ValueError(
                f"alpha_min is {self.alpha_min}, alpha_max {self.alpha_max}; "
                "expected 0 < alpha_min < alpha_max < 1"
            )
        if not 0 <= self.transmittance_min < 1:
            raise ValueError(f"transmittance_min is {self.transmittance_min}; expected [0, 1)")
        if not self.near > 0:
            raise ValueError(f"near is {self.near}; expected a positive distance")
        if not 1 <= self.ring_size <= 64:
            raise ValueError(f"ring_size is {self.ring_size}; expected 1 to 64")
        if self.sh not in SH_MODES:
            raise ValueError(f"sh is {self.sh!r}; expected one of {', '.join(SH_MODES)}")
        if self.backward not in BACKWARD_MODES:
            raise ValueError(
                f"backward is {self.backward!r}; expected one of {', '.join(BACKWARD_MODES)}"
            )
