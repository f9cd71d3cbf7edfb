"""What a densification strategy is: what it watches, and how it then changes the scene."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.tracing.traced import Traced
from gart.training.optimizer import Adam
from gart.training.photographs import Photograph


@dataclass(frozen=True)
class Observation:
    """One iteration after its backward pass, before the optimiser's step.

    Attributes:
        iteration: from 1.
        photograph: what was rendered.
        rendering: of it, without gradients.
        background: [3], behind both.
        traced: the scene as it was traced, with the 3D filter.
        grads: of the loss by `traced`.
        hits: of the image, where the strategy `wants_hits` and the tracer could keep them.
    """

    iteration: int
    photograph: Photograph
    rendering: Rendering
    background: Tensor
    traced: Gaussians
    grads: Gaussians
    hits: Traced | None = None


class Strategy(Protocol):
    """Decides which Gaussians there are.

    Attributes:
        tensors: what it has accumulated, by name, on the scene's device; checkpoints hold it.
    """

    tensors: dict[str, Tensor]

    def wants_hits(self, iteration: int) -> bool:
        """Whether `observe` has use for the hits of this iteration's image."""

    def observe(self, seen: Observation) -> None:
        """Accumulate what an iteration shows. Never makes the host wait for the GPU."""

    def densify(
        self, scene: Gaussians, optimizer: Adam, iteration: int, generator: torch.Generator
    ) -> Gaussians:
        """The scene after a densification that follows `iteration`.

        `scene` may be changed in place; the optimiser's rows are kept in step with the result.
        """


@torch.no_grad()
def prune(scene: Gaussians, optimizer: Adam, dead: Tensor) -> tuple[Gaussians, Tensor]:
    """The scene without `dead` ([N] bool), and the rows that are left ([M]), in their order.

    Nothing is removed where all are dead: there would be no scene to go on with.
    """
    kept = (~dead).nonzero()[:, 0]
    if len(kept) == 0:
        kept = dead.nonzero()[:, 0]
    if len(kept) == len(scene):
        return scene, kept
    optimizer.keep(kept)
    return scene.map(lambda t: t[kept]), kept


@torch.no_grad()
def append(scene: Gaussians, optimizer: Adam, more: Gaussians) -> Gaussians:
    """The scene with `more` at its end, whose moments are empty."""
    optimizer.append(len(more))
    tensors = more.tensors()
    return Gaussians(**{name: torch.cat([t, tensors[name]]) for name, t in scene.tensors().items()})


def rotated(quats: Tensor, vectors: Tensor) -> Tensor:
    """[N, 3] vectors turned by quaternions [N, 4] (w, x, y, z) of any length but 0."""
    quats = torch.nn.functional.normalize(quats, dim=1)
    w, axis = quats[:, :1], quats[:, 1:]
    across = 2 * torch.linalg.cross(axis, vectors)
    return vectors + w * across + torch.linalg.cross(axis, across)
