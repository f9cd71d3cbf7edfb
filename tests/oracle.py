"""The native tracer against the float64 oracle: images, gradients and hit orders.

Where the oracle itself stands within rounding of a decision (a response at alpha_min, two peaks at
one depth, a peak at `near`, a transmittance at the stop), float32 may decide otherwise.
`doubtful_pixels` finds exactly those pixels; they are counted, and all others must agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.reference import (
    camera_rays,
    find_hits,
    render,
    response,
    trace_rays,
    whitening,
)
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.tracing import TraceSettings, hit_order, trace

DEFAULT = TraceSettings()
OUTPUTS = ("color", "opacity", "depth")
ALPHA_BAND = 3e-5
"""Relative: float32 rounding of a response at the threshold, where it is least accurate."""
TAU_BAND = 1e-6
"""Rounding of a peak's tau, relative to the farther of peak and mean: 8 ulp."""


@dataclass(frozen=True)
class Limits:
    """How closely a scene must agree."""

    image: float = 1e-4
    """Largest difference of colour and opacity."""
    depth: float = 1e-4
    """Largest difference of depth, relative to its largest value."""
    gradient: float = 1e-3
    """Norm of each tensor's gradient difference, relative to the gradient's norm."""
    doubtful: float = 0.0
    """Share of the pixels that may be doubtful."""
    alpha_band: float = ALPHA_BAND


STRICT = Limits()


def oracle_keywords(settings: TraceSettings) -> dict:
    names = ("alpha_min", "alpha_max", "transmittance_min", "near", "sh")
    return {name: getattr(settings, name) for name in names}


def doubtful_pixels(
    gaussians: Gaussians, camera: Camera, settings: TraceSettings, alpha_band: float = ALPHA_BAND
) -> Tensor:
    """[H, W] bool: pixels where a decision hangs on less than float32 can tell."""
    doubtful = doubtful_rays(gaussians, *camera_rays(camera), settings, alpha_band)
    return doubtful.unflatten(0, (camera.height, camera.width))


def doubtful_rays(
    gaussians: Gaussians,
    origins: Tensor,
    directions: Tensor,
    settings: TraceSettings,
    alpha_band: float = ALPHA_BAND,
    near: float | Tensor | None = None,
) -> Tensor:
    """[R] bool: the same for any rays [R, 3] float64; `near` of all or of each, in place of the
    settings'."""
    gaussians = gaussians.map(lambda t: t.detach().double())
    nearest = torch.as_tensor(settings.near if near is None else near, dtype=torch.float64)
    nearest = nearest.expand(len(origins))
    speed = directions.norm(dim=-1).nan_to_num(1.0)
    farthest = (
        torch.cdist(origins.nan_to_num(0, 0, 0), gaussians.means.nan_to_num(0, 0, 0)).amax(-1)
        if len(gaussians)
        else torch.zeros(len(origins))
    )
    hits = find_hits(
        gaussians,
        origins,
        directions,
        alpha_min=settings.alpha_min * (1 - alpha_band),
        near=nearest - TAU_BAND * farthest / speed,
    )
    reach = (gaussians.means[hits.gaussian] - origins[hits.ray]).norm(dim=-1) / speed[hits.ray]
    near_by = nearest[hits.ray]
    band = TAU_BAND * torch.maximum(reach, hits.tau)
    band_before = torch.cat([band.new_zeros(1), band])[:-1]
    shape = (len(directions), int(hits.rank.max()) + 1 if len(hits.rank) else 0)
    place = (hits.ray, hits.rank)
    alphas = hits.alpha.new_zeros(shape).index_put(place, hits.alpha.clamp(max=settings.alpha_max))
    after = (1 - alphas).cumprod(-1)
    before = torch.cat([after.new_ones(shape[0], 1), after], -1)[:, :-1]
    stop_band = settings.transmittance_min * 10 * alpha_band
    seen = (before >= settings.transmittance_min - stop_band)[place]
    same_ray = torch.cat([hits.ray.new_full((1,), -1), hits.ray])[:-1] == hits.ray
    gap = torch.cat([hits.tau.new_zeros(1), hits.tau])[:-1] - hits.tau
    # Bit-equal twins are ordered by index by both sides.
    twins = torch.cat([gaussians.means, gaussians.quats, gaussians.log_scales], -1)[hits.gaussian]
    equal = (torch.cat([twins.new_zeros(1, 10), twins])[:-1] == twins).all(-1)
    doubt = seen & (
        (hits.alpha < settings.alpha_min * (1 + alpha_band))
        | (hits.tau < near_by + band)
        | (same_ray & (gap.abs() <= torch.maximum(band, band_before)) & ~equal)
        | ((after[place] - settings.transmittance_min).abs() <= stop_band)
    )
    rays = torch.zeros(shape[0], dtype=torch.bool)
    rays[hits.ray[doubt]] = True
    return rays


def certain_pixels(
    gaussians: Gaussians, camera: Camera, settings: TraceSettings, limits: Limits
) -> Tensor:
    """[H, W] bool: the pixels that must agree; fails if more are doubtful than `limits` allows."""
    doubtful = doubtful_pixels(gaussians, camera, settings, limits.alpha_band)
    count, allowed = int(doubtful.sum()), int(limits.doubtful * doubtful.numel())
    assert count <= allowed, f"{count} doubtful pixels of {doubtful.numel()}; {allowed} allowed"
    return ~doubtful


def assert_images_agree(
    gaussians: Gaussians,
    camera: Camera,
    settings: TraceSettings = DEFAULT,
    limits: Limits = STRICT,
    device: str = "cpu",
) -> Rendering:
    """Compare `trace` on `device` with the oracle; returns the oracle's image."""
    certain = certain_pixels(gaussians, camera, settings, limits)
    expected = render(gaussians, camera, **oracle_keywords(settings))
    actual = trace(gaussians.to(device), camera, settings)
    for name in OUTPUTS:
        image = getattr(actual, name).cpu()
        reference = getattr(expected, name)
        assert image.dtype == torch.float32
        assert image.shape == reference.shape, name
        scale = max(1.0, float(reference.max())) if name == "depth" else 1.0
        allowed = limits.depth if name == "depth" else limits.image
        difference = (image.double() - reference)[certain].abs()
        largest = float(difference.max()) if difference.numel() else 0.0
        assert largest <= allowed * scale, f"{name} differs by {largest / scale:.2e}"
    return expected


def loss_weights(camera: Camera, losses: tuple[str, ...], seed: int = 0) -> dict[str, Tensor]:
    """Random weights [H, W(, 3)] float64 for the outputs named in `losses`."""
    random = torch.Generator().manual_seed(seed)
    shape = (camera.height, camera.width)
    return {
        name: torch.randn(
            *shape, *((3,) if name == "color" else ()), generator=random, dtype=torch.float64
        )
        for name in losses
    }


def gradients(image: Rendering, weights: dict[str, Tensor], leaves: Gaussians) -> dict[str, Tensor]:
    """Gradients of the weighted sum of `image`'s outputs; zeros where a tensor plays no part."""
    loss = sum(
        (getattr(image, n) * w.to(getattr(image, n).dtype)).sum() for n, w in weights.items()
    )
    tensors = leaves.tensors()
    if not loss.requires_grad:  # nothing was hit
        return {name: torch.zeros_like(t) for name, t in tensors.items()}
    found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    return {
        name: torch.zeros_like(t) if g is None else g
        for (name, t), g in zip(tensors.items(), found, strict=True)
    }


def oracle_gradients(
    gaussians: Gaussians,
    camera: Camera,
    settings: TraceSettings,
    losses: tuple[str, ...] = OUTPUTS,
    limits: Limits = STRICT,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The loss weights (0 at doubtful pixels) and the oracle's gradient of each tensor."""
    certain = certain_pixels(gaussians, camera, settings, limits)
    weights = {
        name: w * (certain[..., None] if w.ndim == 3 else certain)
        for name, w in loss_weights(camera, losses).items()
    }
    leaves = gaussians.map(lambda t: t.detach().double().requires_grad_())
    return weights, gradients(render(leaves, camera, **oracle_keywords(settings)), weights, leaves)


def native_gradients(
    gaussians: Gaussians,
    camera: Camera,
    settings: TraceSettings,
    weights: dict[str, Tensor],
    device: str = "cpu",
) -> dict[str, Tensor]:
    leaves = gaussians.map(lambda t: t.detach().clone().to(device).requires_grad_())
    weights = {name: weight.to(device) for name, weight in weights.items()}
    found = gradients(trace(leaves, camera, settings), weights, leaves)
    return {name: gradient.cpu() for name, gradient in found.items()}


def assert_gradients_close(
    actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float
) -> None:
    """Each tensor's difference is small against its norm; where it is zero, so is the other."""
    for name, reference in expected.items():
        gradient = actual[name].double()
        assert gradient.isfinite().all(), f"gradient of {name} is not finite"
        error, norm = float((gradient - reference).norm()), float(reference.norm())
        assert error <= tolerance * norm, f"gradient of {name}: error {error:.2e}, norm {norm:.2e}"


def assert_gradients_agree(
    gaussians: Gaussians,
    camera: Camera,
    settings: TraceSettings = DEFAULT,
    losses: tuple[str, ...] = OUTPUTS,
    limits: Limits = STRICT,
    device: str = "cpu",
) -> None:
    weights, expected = oracle_gradients(gaussians, camera, settings, losses, limits)
    actual = native_gradients(gaussians, camera, settings, weights, device)
    assert_gradients_close(actual, expected, limits.gradient)


def native_orders(
    gaussians: Gaussians, camera: Camera, settings: TraceSettings, device: str = "cpu"
) -> list[list[int]]:
    """Per pixel, the Gaussians the tracer blended, front to back.

    Fails unless, in every pixel, they are hits and sorted to within rounding.
    """
    offsets, indices, _ = hit_order(gaussians.to(device), camera, settings)
    offsets, indices = offsets.cpu(), indices.cpu()
    assert offsets.dtype == torch.int64
    assert indices.dtype == torch.int32
    assert offsets.shape == (camera.height * camera.width + 1,)
    assert offsets[0] == 0
    assert offsets[-1] == len(indices)

    index = indices.long()
    ray = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
    origins, directions = camera_rays(camera)
    exact = gaussians.map(lambda t: t.detach().double()[index])
    whiten = whitening(exact.quats, exact.log_scales)
    at = (origins[ray], directions[ray])
    tau, alpha = response(whiten, exact.means, exact.opacity_logits, *at)
    assert (alpha >= settings.alpha_min * (1 - ALPHA_BAND * 50)).all()
    band = TAU_BAND * ((exact.means - camera.center.double()).norm(dim=-1) + tau)
    backwards = (tau[1:] < tau[:-1] - band[1:] - band[:-1]) & (ray[1:] == ray[:-1])
    assert not backwards.any(), f"{int(backwards.sum())} hits lie before their predecessors"
    return [row.tolist() for row in indices.tensor_split(offsets[1:-1])]


def oracle_orders(gaussians: Gaussians, camera: Camera, settings: TraceSettings) -> list[list[int]]:
    keywords = oracle_keywords(settings)
    traced = trace_rays(gaussians, *camera_rays(camera), **keywords, center=camera.center)
    return [[i for i in row if i >= 0] for row in traced.order.tolist()]


def assert_orders_agree(
    gaussians: Gaussians,
    camera: Camera,
    settings: TraceSettings = DEFAULT,
    limits: Limits = STRICT,
    device: str = "cpu",
) -> list[list[int]]:
    """Every certain pixel blends as the oracle does; returns the oracle's orders."""
    certain = certain_pixels(gaussians, camera, settings, limits).flatten().tolist()
    expected = oracle_orders(gaussians, camera, settings)
    actual = native_orders(gaussians, camera, settings, device)
    wrong = [
        pixel for pixel, sure in enumerate(certain) if sure and actual[pixel] != expected[pixel]
    ]
    assert not wrong, (
        f"{len(wrong)} pixels out of order; pixel {wrong[0]}: "
        f"{actual[wrong[0]]}, expected {expected[wrong[0]]}"
    )
    return expected
