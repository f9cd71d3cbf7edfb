"""Files: splats, run folders, trajectories, images and videos."""

from gart.io.images import read_image, save_depth, save_png
from gart.io.ply import load_ply, save_ply
from gart.io.run_folder import RunFolder, find_run
from gart.io.trajectory import Trajectory, load_trajectory, save_trajectory
from gart.io.video import VideoFile

__all__ = [
    "RunFolder",
    "Trajectory",
    "VideoFile",
    "find_run",
    "load_ply",
    "load_trajectory",
    "read_image",
    "save_depth",
    "save_ply",
    "save_png",
    "save_trajectory",
]
