"""What each Gaussian's share of an image adds up to: sums for scores, not for descent."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.scene import SH_C0, Gaussians
from gart.tracing.gradients import gradients
from gart.tracing.settings import TraceSettings
from gart.tracing.traced import Traced
from gart.tracing.tracer import trace


def blending_sums(
    gaussians: Gaussians,
    camera: Camera,
    weights: Tensor,
    settings: TraceSettings,
    traced: Traced | None = None,
) -> Tensor:
    """[N, 3] sums over the pixels p of T_p alpha_p weights_p, for each Gaussian.

    The gradient of a Gaussian's constant colour by an image G is sum_p T_p alpha_p G_p, so this is
    a backward pass through a scene of such colours; not differentiable.

    Args:
        gaussians, camera, settings: of the image; harmonics do not matter.
        weights: [H, W, 3] float32.
        traced: what `trace` has kept of that very image; otherwise it is traced again.
    """
    # Colour 1/2: away from the clamp at 0, beyond which there is no gradient.
    sh = torch.zeros(len(gaussians), 1, 3, device=weights.device, requires_grad=True)
    if traced is not None:
        none = weights.new_empty(0)
        outputs = [weights.contiguous(), none, none]
        by_sh = traced.with_constant_colors(sh.detach()).gradients(outputs)[4]
    else:
        scene = replace(gaussians.map(Tensor.detach), sh=sh)
        # Constant colours are the same at any direction.
        image = trace(scene, camera, replace(settings, sh="center"))
        (by_sh,) = gradients([image.color], [sh], [weights])
    return by_sh[:, 0] / SH_C0
