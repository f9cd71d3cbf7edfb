"""Exposure compensation: an affine colour transform for every photograph, learnt beside the scene.

As 3DGS does since 2024: photographs of one scene differ in exposure and white balance, which
Gaussians would otherwise explain by colours that only some views see. Held-out views have no
photograph to learn from and are rendered without.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gart.rendering import Rendering

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
"""Adam's usual constants: a transform's gradients are sums over an image and not tiny."""


class Exposures:
    """Transforms [A | b] of all training views, [V, 3, 4], and their Adam.

    What is seen through view i is A C + b o, for a rendering's colour C (premultiplied, without
    background) and opacity o: of an opaque rendering, its colours' transform. The background is
    left as it is, and so is what shows it.

    Scaling all transforms and dividing the scene's colours changes no rendering. So the mean
    transform is kept the identity: the scene is what the average photograph shows.

    Attributes:
        tensors: `matrices` [V, 3, 4]; moments `m` and `v`, shaped alike; `steps` [V], times that
            each view was stepped. On the device: nothing here makes the host wait.
    """

    def __init__(self, views: int, device: torch.device | str) -> None:
        matrices = torch.eye(3, 4, device=device).repeat(views, 1, 1)
        zeros = torch.zeros_like(matrices)
        steps = torch.zeros(views, device=device)
        self.tensors = {"matrices": matrices, "m": zeros, "v": zeros.clone(), "steps": steps}

    @torch.no_grad()
    def apply(self, view: int, rendering: Rendering) -> Rendering:
        """The rendering as the photograph of `view` would have it. Not differentiable."""
        matrix = self.tensors["matrices"][view]
        offset = rendering.opacity[..., None] * matrix[:, 3]
        return replace(rendering, color=offset.add_(rendering.color @ matrix[:, :3].T))

    @torch.no_grad()
    def backward(
        self, view: int, rendering: Rendering, by_color: Tensor, by_opacity: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients by the rendering that `apply` was given, and by the transform.

        Args:
            view, rendering: as `apply`.
            by_color, by_opacity: gradients [H, W, 3] and [H, W] by what it returned.

        Returns:
            by color [H, W, 3], by opacity [H, W], by the transform [3, 4].
        """
        matrix = self.tensors["matrices"][view]
        through_offset = by_color @ matrix[:, 3]
        by_opacity = through_offset if by_opacity is None else through_offset.add_(by_opacity)
        seen = by_color.reshape(-1, 3).T
        by_matrix = seen @ rendering.color.reshape(-1, 3)
        by_offset = seen @ rendering.opacity.reshape(-1, 1)
        return by_color @ matrix[:, :3], by_opacity, torch.cat([by_matrix, by_offset], 1)

    @torch.no_grad()
    def step(self, view: int, grad: Tensor, lr: float, fault: Tensor) -> None:
        """One Adam step of `view`'s transform by its gradient [3, 4], then the mean is restored.

        Where `fault` ([2] int32, `Journal.fault`) is set on the device nothing changes there.
        """
        matrices, m, v, steps = (self.tensors[n] for n in ("matrices", "m", "v", "steps"))
        sound = fault[0] == 0
        count = steps[view] + 1
        first = BETA1 * m[view] + (1 - BETA1) * grad
        second = BETA2 * v[view] + (1 - BETA2) * grad.square()
        scale = (second / (1 - BETA2**count)).sqrt() + EPS
        moved = matrices.clone()
        moved[view] -= lr * first / (1 - BETA1**count) / scale
        moved += torch.eye(3, 4, device=moved.device) - moved.mean(0)
        torch.where(sound, moved, matrices, out=matrices)
        torch.where(sound, first, m[view], out=m[view])
        torch.where(sound, second, v[view], out=v[view])
        steps[view] += sound
