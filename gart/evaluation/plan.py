"""What rendering or evaluating views will take in memory, before the scene is put on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from gart.cameras import Camera
from gart.forecast import Plan, Tracing
from gart.memory import free_memory
from gart.scene import Gaussians
from gart.tracing import TraceSettings

_IMAGE = {"psnr": 60, "ssim": 460, "lpips": 1500}
"""Bytes a pixel of a metric, measured; LPIPS with its larger network, VGG."""


def plan_rendering(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    device: torch.device | str,
    *,
    settings: TraceSettings | None = None,
    metrics: Iterable[str] = (),
) -> Plan:
    """Forecast for tracing `cameras` on `device`.

    Args:
        gaussians: the scene, not yet on a GPU.
        cameras: at least one.
        device: where the scene will be.
        settings: the tracer's, defaults when None.
        metrics: what each image will be measured by.
    """
    settings = settings or TraceSettings()
    largest = max(cameras, key=lambda camera: camera.width * camera.height)
    tracing = Tracing(
        gaussians=len(gaussians),
        coefficients=gaussians.sh.shape[1],
        width=largest.width,
        height=largest.height,
        faces=1 if largest.is_planar else 6,
        on_gpu=torch.device(device).type == "cuda",
        sh=settings.sh,
        backward=settings.backward,
        lt_layout=settings.lt_layout,
    )
    # On the CPU the scene is where it will stay.
    scene = tracing.scene if tracing.on_gpu else 0
    image = max((_IMAGE.get(metric, 0) for metric in metrics), default=0) + 40

    def needed(strips: int) -> float:
        return scene + max(tracing.needed(strips, keep_hits=False), image * tracing.pixels)

    return Plan.of(needed, tracing.blocks, free_memory(device))
