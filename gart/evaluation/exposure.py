"""Renderings with their colours fitted to held-out photographs: what exposure alone loses."""

from __future__ import annotations

import torch
from torch import Tensor


def fit_exposure(image: Tensor, photograph: Tensor, mask: Tensor | None = None) -> Tensor:
    """`image` under the affine colour transform that brings it closest to `photograph`.

    Least squares over the pixels that count, which sees the held-out photograph: numbers made this
    way are to be told apart from others.

    Args:
        image: [H, W, 3] float32.
        photograph: [H, W, 3] float32 in [0, 1], or uint8.
        mask: [H, W] bool, the pixels that count; None for all.

    Returns:
        [H, W, 3] float32 in [0, 1].
    """
    wanted = photograph.double() / 255 if photograph.dtype == torch.uint8 else photograph.double()
    seen = image.double().clamp(0, 1)
    seen = torch.cat([seen, torch.ones_like(seen[..., :1])], 2)
    rows, targets = (seen, wanted) if mask is None else (seen[mask], wanted[mask])
    rows, targets = rows.reshape(-1, 4), targets.reshape(-1, 3)
    # Normal equations; pinv: the colours of a grey image are no three directions.
    transform = torch.linalg.pinv(rows.T @ rows, rtol=1e-10, hermitian=True) @ (rows.T @ targets)
    return (seen @ transform).clamp(0, 1).float()
