"""The photometric loss: (1 - w) L1 + w (1 - SSIM), with SSIM's gradient worked out by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_C1, _C2 = 0.01**2, 0.03**2
"""SSIM's stabilisers for values in [0, 1] (Wang et al. 2004)."""


def photometric_loss(
    image: Tensor, target: Tensor, ssim_weight: float, mask: Tensor | None = None
) -> Tensor:
    """Scalar loss of `image` against `target`, as 3DGS (equation 7).

    Args:
        image: [H, W, 3] float32 rendering.
        target: [H, W, 3] float32 in [0, 1] (`as_float` of a photograph).
        ssim_weight: weight w of 1 - SSIM.
        mask: [H, W] bool; false pixels neither count nor receive a gradient.
    """
    if mask is not None:
        image = torch.where(mask[..., None], image, target)
    l1 = (image - target).abs()
    terms = l1
    if ssim_weight > 0:
        terms = (1 - ssim_weight) * l1 + ssim_weight * (1 - ssim_map(image, target))
    if mask is None:
        return terms.mean()
    # A masked pixel adds nothing to L1; its SSIM is left out, that of its neighbours is not.
    return (terms * mask[..., None]).sum() / (3 * mask.sum()).clamp_min(1)


def as_float(photograph: Tensor, background: Tensor) -> Tensor:
    """[H, W, 3] float32 of a uint8 photograph; one with alpha is put over `background` ([3])."""
    values = photograph.to(torch.float32) / 255
    if photograph.shape[-1] == 3:
        return values
    alpha = values[..., 3:]
    return values[..., :3] * alpha + (1 - alpha) * background


def ssim_map(image: Tensor, target: Tensor) -> Tensor:
    """[H, W, 3] structural similarity with an 11 x 11 Gaussian window (sigma 1.5), zero padded.

    Differentiable in `image` [H, W, 3]; `target` [H, W, 3] is taken as constant.
    """
    result: Tensor = _Ssim.apply(image, target)
    return result


class _Ssim(torch.autograd.Function):
    """SSIM from five blurred maps; backward blurs three."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, image: Tensor, target: Tensor) -> Tensor:
        x, y = image.detach().permute(2, 0, 1), target.detach().permute(2, 0, 1)
        mx, my, xx, yy, xy = blur(torch.cat([x, y, x * x, y * y, x * y])).chunk(5)
        # ssim = (a b) / (c d)
        a, b = 2 * mx * my + _C1, 2 * (xy - mx * my) + _C2
        c, d = mx * mx + my * my + _C1, (xx - mx * mx) + (yy - my * my) + _C2
        inverse = 1 / (c * d)
        ssim = a * b * inverse
        # Partial derivatives by mx, xx and xy, the maps that depend on the image.
        d_mx = 2 * (my * (b - a) * inverse + mx * ssim * (1 / d - 1 / c))
        ctx.save_for_backward(x, y, d_mx, -ssim / d, 2 * a * inverse)
        return ssim.permute(1, 2, 0)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        x, y, d_mx, d_xx, d_xy = ctx.saved_tensors  # type: ignore[attr-defined]
        g = grad.permute(2, 0, 1)
        # The window is symmetric, so the blur is its own adjoint.
        g_mx, g_xx, g_xy = blur(torch.cat([g * d_mx, g * d_xx, g * d_xy])).chunk(3)
        return (g_mx + 2 * x * g_xx + y * g_xy).permute(1, 2, 0), None


def blur(maps: Tensor) -> Tensor:
    """[C, H, W] maps under SSIM's Gaussian window, zero padded, as two one-dimensional passes."""
    x = torch.arange(-5, 6, device=maps.device, dtype=maps.dtype)
    window = torch.exp(-x * x / (2 * 1.5**2))
    window = (window / window.sum()).expand(len(maps), 1, 1, 11)
    # Depthwise on one image: ten times faster on a CPU than the maps as a batch.
    rows = F.conv2d(maps[None], window, padding=(0, 5), groups=len(maps))
    return F.conv2d(rows, window.transpose(2, 3), padding=(5, 0), groups=len(maps))[0]
