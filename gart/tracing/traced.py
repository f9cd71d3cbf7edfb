"""What every native pass after the forward one is given."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gart.native import library
from gart.tracing.ray_grid import RayGrid
from gart.tracing.settings import TraceSettings


class Traced(NamedTuple):
    """An image that `trace_forward` has traced; `state` is what it kept; `c2w` is on the CPU."""

    grid: RayGrid
    c2w: Tensor
    settings: TraceSettings
    scene: list[Tensor]
    state: list[Tensor]

    @property
    def native(self) -> Any:
        """The library of the scene's device."""
        return library(self.scene[0].device)

    def inputs(self) -> list[Any]:
        """What csrc takes first."""
        return [*self.scene, self.c2w, self.grid.native(), self.state]

    def constants(self) -> list[Any]:
        """The rendering model, in csrc's order."""
        s = self.settings
        return [s.alpha_min, s.alpha_max, s.transmittance_min, s.near, s.sh == "ray"]

    def with_constant_colors(self, sh: Tensor) -> Traced:
        """The same image of the same Gaussians, but for their harmonics [N, 1, 3], all zeros."""
        state = list(self.state)
        if sh.is_cuda and self.settings.sh != "ray":
            state[1] = torch.full_like(state[1], 0.5)  # colours at the means' directions
        return self._replace(scene=[*self.scene[:4], sh], state=state)

    def gradients(self, by_outputs: list[Tensor]) -> Any:
        """Gradients by the five tensors, from those by colour, opacity and blended depth,
        contiguous; an empty tensor stands for an output without gradient.
        """
        return self.native.trace_backward(
            *self.inputs(),
            *by_outputs,
            *self.constants(),
            self.settings.backward,
            torch.get_num_threads(),
        )
