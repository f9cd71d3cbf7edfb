"""The ray tracer: exact order along every ray, any lens, gradients gathered per Gaussian."""

from gart.tracing.boxes import LTBufferError
from gart.tracing.bvh import Bvh
from gart.tracing.camera_rays import camera_rays
from gart.tracing.rays import ray_hit_order, trace_rays
from gart.tracing.settings import BACKWARD_MODES, LT_LAYOUTS, SH_MODES, TRACERS, TraceSettings
from gart.tracing.strips import whole_images
from gart.tracing.surface import Surface, trace_ray_surface, trace_surface
from gart.tracing.tracer import hit_order, trace

__all__ = [
    "BACKWARD_MODES",
    "LT_LAYOUTS",
    "SH_MODES",
    "TRACERS",
    "Bvh",
    "LTBufferError",
    "Surface",
    "TraceSettings",
    "camera_rays",
    "hit_order",
    "ray_hit_order",
    "trace",
    "trace_ray_surface",
    "trace_rays",
    "trace_surface",
    "whole_images",
]
