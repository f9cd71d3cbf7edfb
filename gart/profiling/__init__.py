"""Where the time and the memory go: stages, counts and peaks of training steps or renderings."""

from gart.profiling.cameras import orbit
from gart.profiling.measure import profile_rendering, profile_training
from gart.profiling.memory import peak_memory
from gart.profiling.table import tables

__all__ = ["orbit", "peak_memory", "profile_rendering", "profile_training", "tables"]
