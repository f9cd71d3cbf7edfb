"""A scene and the losses on whose gradients every way to gather them is tried."""

from __future__ import annotations

from functools import cache

from oracle import OUTPUTS, oracle_gradients
from scenes import camera, random_gaussians, random_pose

from gart.tracing import TraceSettings

LOSSES = {name: (name,) for name in OUTPUTS} | {"mixed": OUTPUTS}
"""By name, the outputs that a loss depends on."""


def cloud():
    """Sixty Gaussians before a camera, in a pose without symmetry."""
    pose = random_pose(1, 3)
    return random_gaussians(60, seed=3, pose=pose), camera(pose=pose)


@cache
def expected(sh, loss):
    """The oracle's loss weights and gradients of `cloud()`."""
    return oracle_gradients(*cloud(), TraceSettings(sh=sh), LOSSES[loss])
