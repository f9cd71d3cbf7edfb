"""The rendering model as float64 PyTorch: brute force per ray, exact order, autograd gradients.

Slow by design: it is the specification that the native tracer is tested against.
"""

from gart.reference.spherical_harmonics import sh_basis
from gart.reference.tracer import (
    Hits,
    TracedRays,
    camera_rays,
    find_hits,
    render,
    response,
    trace_rays,
    whitening,
)

__all__ = [
    "Hits",
    "TracedRays",
    "camera_rays",
    "find_hits",
    "render",
    "response",
    "sh_basis",
    "trace_rays",
    "whitening",
]
