"""`gart.tracing.trace_surface` and `trace_ray_surface` against the float64 oracle."""

from __future__ import annotations

import torch
from oracle import STRICT, Limits
from ray_oracle import Rays, certain_rays, leaves_of, oracle, split
from torch import Tensor

from gart import reference
from gart.cameras import Camera
from gart.scene import Gaussians
from gart.tracing import Surface, TraceSettings, trace_ray_surface, trace_surface


def assert_surfaces_equal(
    actual: Surface, expected: reference.TracedRays, certain: Tensor, limits: Limits = STRICT
) -> None:
    """`actual` has any axes, `expected` and `certain` [R]."""
    assert actual.hit_count.dtype == torch.int32
    assert actual.median_depth.dtype == actual.normals.dtype == torch.float32
    count = actual.hit_count.flatten().cpu()
    assert torch.equal(count[certain].long(), expected.hit_count[certain])
    normals = actual.normals.reshape(-1, 3).cpu().double()
    assert float((normals - expected.normals)[certain].abs().max()) <= limits.image
    depth = actual.median_depth.flatten().cpu().double()
    scale = max(1.0, float(expected.median_depth.max()))
    assert float((depth - expected.median_depth)[certain].abs().max()) <= limits.depth * scale


def assert_image_agrees(
    gaussians: Gaussians,
    camera: Camera,
    settings: TraceSettings,
    limits: Limits = STRICT,
    device: str = "cpu",
) -> reference.TracedRays:
    """Both tracers' surfaces of an image are the oracle's; returns it."""
    rays = reference.camera_rays(camera)
    expected = oracle(gaussians, rays, settings)
    certain = certain_rays(gaussians, rays, settings, limits)
    actual = trace_surface(gaussians.to(device), camera, settings)
    assert actual.median_depth.shape == actual.hit_count.shape == (camera.height, camera.width)
    assert actual.normals.shape == (camera.height, camera.width, 3)
    assert_surfaces_equal(actual, expected, certain, limits)
    return expected


def assert_rays_agree(
    gaussians: Gaussians,
    rays: Rays,
    settings: TraceSettings,
    limits: Limits = STRICT,
    device: str = "cpu",
) -> None:
    expected = oracle(gaussians, rays, settings)
    actual = trace_ray_surface(gaussians.to(device), *(t.to(device) for t in rays), settings)
    certain = certain_rays(gaussians, rays, settings, limits)
    assert_surfaces_equal(actual, expected, certain, limits)


def surface_gradients(
    surface: Surface | reference.TracedRays, output: str, certain: Tensor, leaves: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Of a random weighted sum of one output of the certain rays; zeros where a tensor plays no
    part."""
    values = getattr(surface, output)
    values = values.reshape(len(certain), -1)
    random = torch.Generator().manual_seed(0)
    weights = torch.randn(values.shape, generator=random, dtype=torch.float64) * certain[:, None]
    found = torch.autograd.grad(
        (values * weights.to(values)).sum(), list(leaves.values()), allow_unused=True
    )
    return {
        name: torch.zeros_like(t) if g is None else g
        for (name, t), g in zip(leaves.items(), found, strict=True)
    }


def assert_gradients_agree(
    gaussians: Gaussians,
    rays: Rays,
    settings: TraceSettings,
    output: str,
    *,
    camera: Camera | None = None,
    limits: Limits = STRICT,
    device: str = "cpu",
) -> None:
    """Gradients of the scene, and without `camera`, whose rays they would be, of the rays."""
    certain = certain_rays(gaussians, rays, settings, limits)
    leaves = leaves_of(gaussians, rays, torch.empty(0, dtype=torch.float64))
    expected = surface_gradients(oracle(*split(leaves), settings), output, certain, leaves)
    leaves = leaves_of(gaussians, rays, torch.empty(0, device=device))
    scene, (origins, directions) = split(leaves)
    if camera is None:
        surface = trace_ray_surface(scene, origins, directions, settings)
    else:
        surface = trace_surface(scene, camera, settings)
        del leaves["origins"], leaves["directions"]
    for name, gradient in surface_gradients(surface, output, certain, leaves).items():
        error = float((gradient.cpu().double() - expected[name]).norm())
        norm = float(expected[name].norm())
        assert gradient.isfinite().all(), name
        assert error <= limits.gradient * norm, f"{name}: error {error:.2e}, norm {norm:.2e}"
