"""Camera paths made from a capture's cameras, and other sizes and fields of view for cameras."""

from gart.trajectories.framing import reframe
from gart.trajectories.paths import PATHS, make_path

__all__ = ["PATHS", "make_path", "reframe"]
