"""gsplat 1.5.3 on the same Gaussians and cameras: `rasterization` and its 3DGUT."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.scene import Gaussians

MODES = {"gsplat": {}, "3dgut": {"with_ut": True, "with_eval3d": True}}


def gsplat_passes(
    scene: Gaussians, cameras: list[Camera]
) -> dict[str, tuple[Callable[[int], Tensor], list[Tensor]]]:
    """By name, camera number -> image [1, H, W, 3] and the leaves it is differentiable in.

    Empty where gsplat is not installed. The environment variable GSPLAT_SO may name its CUDA
    library, prebuilt, for machines on which it cannot be compiled at first use.
    """
    if importlib.util.find_spec("gsplat") is None:
        return {}
    if library := os.environ.get("GSPLAT_SO"):
        spec = importlib.util.spec_from_file_location("gsplat_cuda", library)
        assert spec is not None
        sys.modules["gsplat.csrc"] = module = importlib.util.module_from_spec(spec)
        assert spec.loader is not None
        spec.loader.exec_module(module)
    from gsplat import rasterization

    leaves = [
        scene.means,
        torch.nn.functional.normalize(scene.quats, dim=-1),
        scene.log_scales.exp(),
        scene.opacity_logits.sigmoid(),
        scene.sh,
    ]
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    viewmats = torch.stack([camera.viewmat for camera in cameras]).to(scene.device)
    intrinsics = torch.stack([camera.K for camera in cameras]).to(scene.device)
    width, height, degree = cameras[0].width, cameras[0].height, scene.sh_degree

    def forward(options: dict[str, bool], camera: int) -> Tensor:
        one = slice(camera, camera + 1)
        views = (viewmats[one], intrinsics[one], width, height)
        return rasterization(*leaves, *views, sh_degree=degree, packed=False, **options)[0]

    return {name: (partial(forward, options), leaves) for name, options in MODES.items()}
