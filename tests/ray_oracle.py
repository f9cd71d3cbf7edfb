"""`gart.tracing.trace_rays` against the float64 oracle: outputs, gradients and orders.

As in `oracle`, rays where float32 may decide otherwise are counted, and all others must agree.
"""

from __future__ import annotations

import torch
from oracle import OUTPUTS, STRICT, Limits, doubtful_rays
from torch import Tensor

from gart import reference
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.tracing import Bvh, TraceSettings, ray_hit_order, trace_rays

DEFAULT = TraceSettings(tracer="bvh")
Rays = tuple[Tensor, Tensor]
"""Origins and directions, each [R, 3] float32."""


def random_rays(n: int, *, seed: int = 0, center: tuple[float, float, float] = (0, 0, 4)) -> Rays:
    """Rays from within and around a ball of radius 3 at `center`, in all directions, of lengths
    from 0.5 to 2."""
    random = torch.Generator().manual_seed(seed)
    origins = 1.5 * torch.randn(n, 3, generator=random) + torch.tensor(center)
    directions = torch.nn.functional.normalize(torch.randn(n, 3, generator=random), dim=1)
    return origins, directions * (0.5 + 1.5 * torch.rand(n, 1, generator=random))


def certain_rays(
    gaussians: Gaussians,
    rays: Rays,
    settings: TraceSettings,
    limits: Limits = STRICT,
    t_min: float | Tensor | None = None,
) -> Tensor:
    """[R] bool: the rays that must agree; fails if more are doubtful than `limits` allows."""
    origins, directions = (t.detach().double() for t in rays)
    doubtful = doubtful_rays(gaussians, origins, directions, settings, limits.alpha_band, t_min)
    count, allowed = int(doubtful.sum()), int(limits.doubtful * doubtful.numel())
    assert count <= allowed, f"{count} doubtful rays of {doubtful.numel()}; {allowed} allowed"
    return ~doubtful


def oracle(
    gaussians: Gaussians,
    rays: Rays,
    settings: TraceSettings,
    t_min: float | Tensor | None = None,
) -> reference.TracedRays:
    """What the rays gather, in float64; with sh="center" each ray's origin is the centre."""
    return reference.trace_rays(
        gaussians,
        *rays,
        alpha_min=settings.alpha_min,
        alpha_max=settings.alpha_max,
        transmittance_min=settings.transmittance_min,
        near=settings.near if t_min is None else t_min,
        sh=settings.sh,
        center=rays[0],
    )


def loss_weights(count: int, losses: tuple[str, ...], seed: int = 0) -> dict[str, Tensor]:
    """Random weights [R(, 3)] float64 for the outputs named in `losses`."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(
            count, *((3,) if name == "color" else ()), generator=random, dtype=torch.float64
        )
        for name in losses
    }


def gradients(
    image: Rendering | reference.TracedRays, weights: dict[str, Tensor], leaves: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Gradients of the weighted sum of `image`'s outputs; zeros where a tensor plays no part."""
    loss = sum((getattr(image, n) * w.to(getattr(image, n))).sum() for n, w in weights.items())
    if not loss.requires_grad:
        return {name: torch.zeros_like(t) for name, t in leaves.items()}
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(t) if g is None else g
        for (name, t), g in zip(leaves.items(), found, strict=True)
    }


def leaves_of(gaussians: Gaussians, rays: Rays, like: Tensor) -> dict[str, Tensor]:
    """Copies of the scene and the rays in the type and on the device of `like`, which take
    gradients."""
    tensors = {**gaussians.tensors(), "origins": rays[0], "directions": rays[1]}
    return {name: t.detach().clone().to(like).requires_grad_() for name, t in tensors.items()}


def split(leaves: dict[str, Tensor]) -> tuple[Gaussians, Rays]:
    scene = {name: t for name, t in leaves.items() if name not in ("origins", "directions")}
    return Gaussians(**scene), (leaves["origins"], leaves["directions"])


def oracle_gradients(
    gaussians: Gaussians, rays: Rays, settings: TraceSettings, weights: dict[str, Tensor]
) -> dict[str, Tensor]:
    leaves = leaves_of(gaussians, rays, torch.empty(0, dtype=torch.float64))
    return gradients(oracle(*split(leaves), settings), weights, leaves)


def native_gradients(
    gaussians: Gaussians,
    rays: Rays,
    settings: TraceSettings,
    weights: dict[str, Tensor],
    device: str = "cpu",
) -> dict[str, Tensor]:
    leaves = leaves_of(gaussians, rays, torch.empty(0, device=device))
    scene, (origins, directions) = split(leaves)
    found = gradients(trace_rays(scene, origins, directions, settings), weights, leaves)
    return {name: gradient.cpu() for name, gradient in found.items()}


def assert_rays_agree(
    gaussians: Gaussians,
    rays: Rays,
    settings: TraceSettings = DEFAULT,
    limits: Limits = STRICT,
    device: str = "cpu",
    *,
    t_min: float | Tensor | None = None,
    bvh: Bvh | None = None,
) -> None:
    """Colour, opacity and depth of every certain ray are the oracle's."""
    certain = certain_rays(gaussians, rays, settings, limits, t_min)
    expected = oracle(gaussians, rays, settings, t_min)
    origins, directions = (t.to(device) for t in rays)
    actual = trace_rays(gaussians.to(device), origins, directions, settings, t_min=t_min, bvh=bvh)
    for name in OUTPUTS:
        output, reference_output = getattr(actual, name).cpu(), getattr(expected, name)
        assert output.dtype == torch.float32
        assert output.shape == reference_output.shape, name
        scale = max(1.0, float(reference_output.max())) if name == "depth" else 1.0
        allowed = limits.depth if name == "depth" else limits.image
        difference = (output.double() - reference_output)[certain].abs()
        largest = float(difference.max()) if difference.numel() else 0.0
        assert largest <= allowed * scale, f"{name} differs by {largest / scale:.2e}"


def assert_ray_orders_agree(
    gaussians: Gaussians,
    rays: Rays,
    settings: TraceSettings = DEFAULT,
    limits: Limits = STRICT,
    device: str = "cpu",
) -> list[list[int]]:
    """Every certain ray blends the oracle's Gaussians in its order; returns the oracle's."""
    certain = certain_rays(gaussians, rays, settings, limits).tolist()
    rows = oracle(gaussians, rays, settings).order.tolist()
    expected = [[i for i in row if i >= 0] for row in rows]
    origins, directions = (t.to(device) for t in rays)
    offsets, ids = ray_hit_order(gaussians.to(device), origins, directions, settings)
    actual = [row.tolist() for row in ids.cpu().tensor_split(offsets[1:-1].cpu())]
    wrong = [r for r, sure in enumerate(certain) if sure and actual[r] != expected[r]]
    assert not wrong, (
        f"{len(wrong)} rays out of order; ray {wrong[0]}: "
        f"{actual[wrong[0]]}, expected {expected[wrong[0]]}"
    )
    return expected


def assert_ray_gradients_agree(
    gaussians: Gaussians,
    rays: Rays,
    settings: TraceSettings = DEFAULT,
    losses: tuple[str, ...] = OUTPUTS,
    limits: Limits = STRICT,
    device: str = "cpu",
) -> None:
    """Gradients of the scene's five tensors and of the rays are the oracle's."""
    certain = certain_rays(gaussians, rays, settings, limits)
    weights = {
        name: w * (certain[:, None] if w.ndim == 2 else certain)
        for name, w in loss_weights(len(certain), losses).items()
    }
    expected = oracle_gradients(gaussians, rays, settings, weights)
    actual = native_gradients(gaussians, rays, settings, weights, device)
    for name, want in expected.items():
        gradient = actual[name].double()
        assert gradient.isfinite().all(), f"gradient of {name} is not finite"
        error, norm = float((gradient - want).norm()), float(want.norm())
        assert error <= limits.gradient * norm, (
            f"gradient of {name}: error {error:.2e}, norm {norm:.2e}"
        )
