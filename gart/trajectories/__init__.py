"""Camera paths made from a capture's cameras; other sizes, lenses and optics for cameras."""

from gart.trajectories.framing import LENSES, reframe
from gart.trajectories.optics import add_aperture, add_rolling_shutter, usual_extent
from gart.trajectories.paths import PATHS, make_path

__all__ = [
    "LENSES",
    "PATHS",
    "add_aperture",
    "add_rolling_shutter",
    "make_path",
    "reframe",
    "usual_extent",
]
