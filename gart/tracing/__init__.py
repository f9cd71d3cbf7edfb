"""The ray tracer: exact order along every ray, any lens, gradients gathered per Gaussian."""

from gart.tracing.boxes import LTBufferError
from gart.tracing.settings import BACKWARD_MODES, LT_LAYOUTS, SH_MODES, TraceSettings
from gart.tracing.strips import whole_images
from gart.tracing.tracer import hit_order, trace

__all__ = [
    "BACKWARD_MODES",
    "LT_LAYOUTS",
    "SH_MODES",
    "LTBufferError",
    "TraceSettings",
    "hit_order",
    "trace",
    "whole_images",
]
