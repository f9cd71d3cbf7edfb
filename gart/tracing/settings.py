"""Settings of the ray tracer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gart.native import constants

SH_MODES = ("ray", "center", "linear")
BACKWARD_MODES = ("primitive", "hybrid", "pixel")
LT_LAYOUTS = ("hits", "aabb")
TRACERS = ("tiles", "bvh")


def _native(name: str) -> Callable[[], float]:
    return lambda: constants()[name]


@dataclass(frozen=True)
class TraceSettings:
    """How rays are traced; defaults and their reasons are in csrc/common/constants.h.

    Attributes:
        alpha_min: responses below are no hits; also bounds every Gaussian's support.
        alpha_max: responses are clamped here, without gradient beyond.
        transmittance_min: a ray stops below; the hit that gets there is still blended.
        near: nearest hit, in scene units of the ray's z; of fisheyes and panoramas through tiles,
            along the axis of the cube's face that the tile looks at (up to 1.8 and 4.3 times as far
            away), through the tree their distance.
        ring_size: hits a pixel holds while their order is not yet proven; changes only speed.
            1 to 64 on the CPU, the default alone on CUDA; 0: no ring, every pixel takes the exact
            pass.
        sh: "ray": colour at the ray's direction (3DGART); "center": at the direction of the
            Gaussian's mean (3DGS); "linear": to first order around that direction, exact for degree
            1 (docs/tracer.md).
        backward: where gradients are summed: "primitive" (per Gaussian and tile), "pixel" (atomics
            per hit), "hybrid" (colour by primitive, geometry by pixel); same gradients.
        lt_layout: what the backward pass works from: "hits" (the order of each pixel's hits) or
            "aabb" (3DGART's buffer over screen boxes, with its chain rule and scalar atomics: the
            baseline); same gradients.
        memory_limit: bytes that tracing one image may take beside the scene, None for what is free;
            a larger image is traced in strips (gart/tracing/strips.py), with the same result.
        tracer: what finds a ray's hits: "tiles" (lists by tile, for the rays of one camera) or
            "bvh" (a tree, for any rays; docs/bvh.md); same images. `ring_size`, `backward`,
            `lt_layout` and `memory_limit` belong to "tiles".
    """

    alpha_min: float = field(default_factory=_native("alpha_min"))
    alpha_max: float = field(default_factory=_native("alpha_max_trace"))
    transmittance_min: float = field(default_factory=_native("transmittance_min"))
    near: float = field(default_factory=_native("near"))
    ring_size: int = field(default_factory=lambda: int(constants()["ring_size"]))
    sh: str = "ray"
    backward: str = "primitive"
    lt_layout: str = "hits"
    memory_limit: int | None = None
    tracer: str = "tiles"

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
        most = int(constants()["max_ring"])
        if not 0 <= self.ring_size <= most:
            raise ValueError(f"ring_size is {self.ring_size}; expected 0 to {most}")
        if self.sh not in SH_MODES:
            raise ValueError(f"sh is {self.sh!r}; expected one of {', '.join(SH_MODES)}")
        if self.backward not in BACKWARD_MODES:
            raise ValueError(
                f"backward is {self.backward!r}; expected one of {', '.join(BACKWARD_MODES)}"
            )
        if self.lt_layout not in LT_LAYOUTS:
            raise ValueError(
                f"lt_layout is {self.lt_layout!r}; expected one of {', '.join(LT_LAYOUTS)}"
            )
        if self.tracer not in TRACERS:
            raise ValueError(f"tracer is {self.tracer!r}; expected one of {', '.join(TRACERS)}")
        if self.memory_limit is not None and self.memory_limit < 0:
            raise ValueError(f"memory_limit is {self.memory_limit}; expected bytes, or None")
