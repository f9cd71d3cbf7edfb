"""The ray tracer: exact order along every ray, any lens, gradients gathered per Gaussian."""

from gart.tracing.settings import BACKWARD_MODES, SH_MODES, TraceSettings
from gart.tracing.tracer import hit_order, trace

__all__ = ["BACKWARD_MODES", "SH_MODES", "TraceSettings", "hit_order", "trace"]
