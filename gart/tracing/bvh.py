"""A bounding volume hierarchy over Gaussians, which finds what any ray may hit (docs/bvh.md)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gart import stages
from gart.native import constants, library
from gart.scene import Gaussians

REBUILD_AT = 1.3
"""`Bvh.update` builds again once the cost has grown to this many times what it was when built."""


class Bvh:
    """A tree of boxes over the supports of Gaussians, on their device.

    Built from Morton codes (Karras 2012) with four children a node. It holds what rays need of the
    Gaussians' geometry and opacity, so whoever changes these must `update` it; colours are not in
    it.

    Args:
        gaussians: the scene. Gaussians with non-finite geometry and those fainter than `alpha_min`
            are left out.
        alpha_min: responses below are no hits; the model's own when None. Rays may be traced with
            this or a larger one.

    Raises:
        ValueError: a tensor of the wrong dtype or device, named, or more than 2^30 - 1 Gaussians.
    """

    def __init__(self, gaussians: Gaussians, alpha_min: float | None = None) -> None:
        self.alpha_min = constants()["alpha_min"] if alpha_min is None else alpha_min
        self._build(gaussians)

    def __len__(self) -> int:
        return int(self._tensors[0].shape[0])

    @property
    def cost(self) -> float:
        """Surface-area cost: how many inner nodes of the binary tree a ray that meets the scene's
        box is expected to meet. Waits for the GPU."""
        return _cost(self._areas)

    def native(self) -> list[Tensor]:
        """The tensors that csrc takes, in its order: see bvh_build there."""
        return self._tensors

    def refit(self, gaussians: Gaussians) -> None:
        """Follow Gaussians that moved, as many and in the same order: the boxes are made anew, the
        topology stays. Faster than a build; rays get slower the farther the Gaussians moved.

        Raises:
            ValueError: another number of Gaussians.
        """
        if len(gaussians) != len(self):
            raise ValueError(
                f"the bvh has {len(self)} Gaussians and the scene {len(gaussians)}; build a new one"
            )
        geometry = _geometry(gaussians)
        with stages.stage("bvh refit"):
            self._areas = library(geometry[0].device).bvh_refit(
                *geometry, self.alpha_min, self._tensors, torch.get_num_threads()
            )

    def update(self, gaussians: Gaussians) -> bool:
        """Refit, or build where the number of Gaussians changed or the refit made the cost
        `REBUILD_AT` times what it was when built; returns whether it built. Waits for the GPU.
        """
        if len(gaussians) == len(self) and gaussians.device == self._tensors[0].device:
            self.refit(gaussians)
            if self.cost < REBUILD_AT * _cost(self._built_areas):
                return False
        self._build(gaussians)
        return True

    def _build(self, gaussians: Gaussians) -> None:
        geometry = _geometry(gaussians)
        with stages.stage("bvh build"):
            *self._tensors, self._areas = library(geometry[0].device).bvh_build(
                *geometry, self.alpha_min, torch.get_num_threads()
            )
        self._built_areas = self._areas


def _cost(areas: Tensor) -> float:
    """From the sum of the inner nodes' areas, and the root's."""
    total, root = areas.tolist()
    return total / root if root > 0 else 0.0


def _geometry(gaussians: Gaussians) -> list[Any]:
    tensors = (gaussians.means, gaussians.quats, gaussians.log_scales, gaussians.opacity_logits)
    return [t.detach().contiguous() for t in tensors]
