"""The photometric loss (1 - w) L1 + w (1 - SSIM) with its gradients, in one native call."""

from __future__ import annotations

import torch
from torch import Tensor

from gart.native import library
from gart.rendering import Rendering
from gart.training.journal import Journal
from gart.training.photographs import Photograph


def photometric_loss(
    rendering: Rendering,
    photograph: Photograph,
    background: Tensor,
    ssim_weight: float,
    journal: Journal,
    iteration: int,
    *,
    through_opacity: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the loss of `rendering` over `background`, as 3DGS (equation 7).

    SSIM has an 11 x 11 Gaussian window (sigma 1.5), zero padded. A photograph with alpha is put
    over the background too. The loss and the mean squared error of what is seen (clamped to
    [0, 1]) go into the journal's line of `iteration`, means over the values that count; a loss that
    is not finite is its fault.

    Args:
        rendering: [H, W] float32.
        photograph: pixels outside its mask neither count nor receive a gradient.
        background: [3] float32.
        ssim_weight: weight w of 1 - SSIM.
        journal: of the training run, on the rendering's device.
        iteration: from 1.
        through_opacity: false over a black background, through which opacity has no gradient.

    Returns:
        Gradients by color [H, W, 3] and by opacity [H, W], None without `through_opacity`.

    Raises:
        ValueError: a tensor of the wrong shape, dtype or device, named.
    """
    by_color, by_opacity = library(rendering.color.device).photometric_loss(
        rendering.color.detach().contiguous(),
        rendering.opacity.detach().contiguous(),
        background,
        photograph.image,
        photograph.mask,
        photograph.counted,
        ssim_weight,
        through_opacity,
        journal.line(),
        journal.fault,
        iteration,
        torch.get_num_threads(),
    )
    return by_color, by_opacity if through_opacity else None
