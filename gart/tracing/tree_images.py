"""Whole images through the tree: for cameras whose rays no tile lists can serve, and on demand."""

from __future__ import annotations

from dataclasses import replace

from gart.cameras import Camera
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.tracing.bvh import Bvh
from gart.tracing.camera_rays import camera_rays
from gart.tracing.rays import trace_rays
from gart.tracing.settings import TraceSettings


def trace_by_tree(gaussians: Gaussians, camera: Camera, settings: TraceSettings) -> Rendering:
    """The image of `camera`; of one with an aperture, the mean of its samples' images.

    Depth behind an aperture is the mean over the samples by their opacity. Gradients keep the hits
    of all samples until the backward pass.
    """
    bvh = Bvh(gaussians, settings.alpha_min)
    samples = 1 if camera.aperture is None else camera.aperture.samples
    total: Rendering | None = None
    for sample in range(samples):
        rays = camera_rays(camera, gaussians.device, sample)
        image = trace_rays(gaussians, *rays, settings, bvh=bvh)
        if samples == 1:
            return image
        image = replace(image, depth=image.depth * image.opacity)
        total = image if total is None else _sum(total, image)
    assert total is not None
    # Where nothing was hit both are 0; the clamp only keeps 0 / 0 out of the gradients.
    depth = total.depth / total.opacity.clamp_min(settings.alpha_min / 2)
    return Rendering(total.color / samples, total.opacity / samples, depth)


def _sum(a: Rendering, b: Rendering) -> Rendering:
    return Rendering(a.color + b.color, a.opacity + b.opacity, a.depth + b.depth)
