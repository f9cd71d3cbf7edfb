"""Training photographs on the device that trains."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gart.cameras import Camera, has_ray
from gart.capture import View


@dataclass(frozen=True)
class Photograph:
    """What renderings of one training view are compared with.

    Attributes:
        name: of its file.
        camera: its pose stays on the CPU, where the tracer takes it from without a wait.
        image: [H, W, 3] uint8, or [H, W, 4] with straight alpha.
        mask: [H, W] uint8, 0 where a pixel does not count; empty where all do.
        counted: how many pixels count.
    """

    name: str
    camera: Camera
    image: Tensor
    mask: Tensor
    counted: int

    @classmethod
    def of(cls, view: View, device: torch.device | str) -> Photograph:
        """`view` on `device`, pixels that its lens has no ray for masked out."""
        mask, seen = view.mask, has_ray(view.camera.lens)
        if not seen.all():
            mask = seen if mask is None else seen & mask
        counted = view.image.shape[0] * view.image.shape[1] if mask is None else int(mask.sum())
        if mask is None:
            mask = torch.empty(0)
        return cls(
            view.name,
            view.camera,
            view.image.to(device).contiguous(),
            mask.to(device, torch.uint8).contiguous(),
            counted,
        )

    def through(self, camera: Camera) -> Photograph:
        """With a corrected camera; pixels that its lens has no ray for are masked out as well."""
        seen = has_ray(camera.lens)
        if seen.all():
            return replace(self, camera=camera)
        seen = seen.to(self.image.device, torch.uint8)
        mask = self.mask * seen if self.mask.numel() else seen
        return replace(self, camera=camera, mask=mask, counted=int(mask.sum()))

    def halved(self) -> Photograph:
        """At half the size: means of 2 x 2 pixels, an odd last row or column left out.

        With alpha, colours count by their alpha. A pixel counts if all four did.
        """
        height, width = self.camera.height // 2, self.camera.width // 2
        four = _fours(self.image, height, width).float()
        image = four.mean(2)
        if image.shape[2] == 4:
            alpha = four[..., 3:]
            weighted = (four[..., :3] * alpha).sum(2) / alpha.sum(2).clamp_min(1)
            image = torch.cat([weighted, image[..., 3:]], 2)
        mask, counted = self.mask, height * width
        if mask.numel():
            mask = _fours(mask[..., None], height, width).amin(2)[..., 0].contiguous()
            counted = int(mask.sum())
        c = self.camera
        camera = replace(
            c, fx=c.fx / 2, fy=c.fy / 2, cx=c.cx / 2, cy=c.cy / 2, width=width, height=height
        )
        image = image.round().to(torch.uint8).contiguous()
        return replace(self, camera=camera, image=image, mask=mask, counted=counted)

    def over(self, background: Tensor) -> Tensor:
        """[H, W, 3] float32 in [0, 1], one with alpha over `background` ([3])."""
        values = self.image.float() / 255
        if values.shape[-1] == 3:
            return values
        alpha = values[..., 3:]
        return values[..., :3] * alpha + (1 - alpha) * background


def _fours(values: Tensor, height: int, width: int) -> Tensor:
    """[height, width, 4, C]: each 2 x 2 pixels of values [H, W, C]."""
    channels = values.shape[2]
    cut = values[: 2 * height, : 2 * width].reshape(height, 2, width, 2, channels)
    return cut.transpose(1, 2).reshape(height, width, 4, channels)
