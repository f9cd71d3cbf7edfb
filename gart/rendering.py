"""What a renderer returns, whatever its method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Rendering:
    """One rendered view.

    Attributes:
        color: [H, W, 3] linear blend of the Gaussians' colours, premultiplied, without background.
        opacity: [H, W] in [0, 1]: 1 - transmittance.
        depth: [H, W] expected depth: blended depth over opacity, 0 where nothing was hit. z-depth
            for planar and orthographic lenses, distance for others.
    """

    color: Tensor
    opacity: Tensor
    depth: Tensor

    def over(self, background: Tensor) -> Tensor:
        """Colour over `background` ([3] or [H, W, 3]): [H, W, 3]."""
        return self.color + (1 - self.opacity)[..., None] * background
