"""PSNR and SSIM of a rendered image against a photograph.

Images are [H, W, 3] floats in [0, 1] on one device; masks are [H, W] bool, true where pixels count.
Everything is computed in float64, so GPUs and their reduced-precision convolutions agree with CPUs.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from gart.errors import GartError

WINDOW, SIGMA = 11, 1.5
"""SSIM's Gaussian window: side in pixels and standard deviation."""
C1, C2 = 0.01**2, 0.03**2

Padding = Literal["zero", "valid"]


def psnr(image: Tensor, photo: Tensor, mask: Tensor | None = None) -> float:
    """Peak signal-to-noise ratio in dB over the pixels of `mask`; infinite for equal images."""
    squared = (image.double() - photo.double()).square()
    return float(-10 * torch.log10((squared if mask is None else squared[mask]).mean()))


def ssim(
    image: Tensor, photo: Tensor, padding: Padding = "zero", mask: Tensor | None = None
) -> float:
    """Structural similarity (Wang et al. 2004), mean over channels and the pixels of `mask`.

    `zero`: a window at every pixel, black beyond the border, as the 3DGS code has it. `valid`: only
    windows that lie inside the image, (co)variances clipped to their possible range, as
    nerfbaselines (and dm_pix, tf.image) has it.

    Raises:
        GartError: an image smaller than the window with `valid`.
    """
    if padding == "valid" and min(image.shape[:2]) < WINDOW:
        raise GartError(
            f"SSIM needs images of at least {WINDOW} x {WINDOW} pixels; got "
            f"{image.shape[1]} x {image.shape[0]}: leave ssim out of --metrics"
        )
    x, y = (t.double().permute(2, 0, 1) for t in (image, photo))
    mean_x, mean_y, xx, yy, xy = _blur(torch.stack([x, y, x * x, y * y, x * y]), padding)
    var_x, var_y, cov = xx - mean_x * mean_x, yy - mean_y * mean_y, xy - mean_x * mean_y
    if padding == "valid":
        var_x, var_y = var_x.clamp_min(0), var_y.clamp_min(0)
        limit = (var_x * var_y).sqrt()
        cov = cov.clamp(-limit, limit)
    similarity = (2 * mean_x * mean_y + C1) * (2 * cov + C2)
    similarity /= (mean_x * mean_x + mean_y * mean_y + C1) * (var_x + var_y + C2)
    if mask is not None:
        edge = WINDOW // 2 if padding == "valid" else 0
        height, width = mask.shape
        similarity = similarity[:, mask[edge : height - edge, edge : width - edge]]
    return float(similarity.mean())


def _blur(maps: Tensor, padding: Padding) -> Tensor:
    """Gaussian window means of [..., H, W]: sums of shifted copies, one axis after the other."""
    weights = [math.exp(-0.5 * ((i - WINDOW // 2) / SIGMA) ** 2) for i in range(WINDOW)]
    weights = [weight / sum(weights) for weight in weights]
    if padding == "zero":
        maps = pad(maps, (WINDOW // 2,) * 4)
    for axis in (-2, -1):
        length = maps.shape[axis] - WINDOW + 1
        shifted = maps.narrow(axis, 0, length) * weights[0]
        for i in range(1, WINDOW):
            shifted.add_(maps.narrow(axis, i, length), alpha=weights[i])
        maps = shifted
    return maps
