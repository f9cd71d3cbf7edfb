"""The mean of the scenes of a run's last iterations, which is what the run gives.

Adam's steps do not become smaller where its rates do not: the scene goes on moving about the one
that it has found. The mean of its places (Polyak and Juditsky 1992; for networks Izmailov et al.
2018) is nearer to it than the last of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gart.scene import Gaussians


class Average:
    """Running mean of each tensor, as it is trained: logarithms of scales, logits of opacity.

    Attributes:
        count: scenes in it.
        tensors: the mean by tensor name; none while `count` is 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self.tensors: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, scene: Gaussians) -> None:
        """Take in `scene`, whose Gaussians are those of the scenes before it."""
        if self.count == 0:
            self.tensors = {name: t.clone() for name, t in scene.tensors().items()}
        else:
            for name, tensor in scene.tensors().items():
                self.tensors[name].lerp_(tensor, 1 / (self.count + 1))
        self.count += 1

    def restart(self) -> None:
        """Forget all scenes: there are other Gaussians now."""
        self.count, self.tensors = 0, {}

    def keep(self, rows: Tensor) -> None:
        """Keep `rows` (indices [R]) alone, in that order."""
        self.tensors = {name: t[rows] for name, t in self.tensors.items()}

    def scene(self) -> Gaussians:
        """The mean, where there is one."""
        return Gaussians(**self.tensors)
