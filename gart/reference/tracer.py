"""Tracing rays through Gaussians: who is hit, in which order, and how the hits are blended.

The response of a Gaussian along a ray is its peak on the ray (3DGRT, Moenne-Loccoz et al. 2024,
section 4.2), blending is front to back in the order of the peaks (3DGART).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.reference.spherical_harmonics import sh_basis
from gart.rendering import Rendering
from gart.scene import Gaussians

PAIRS_AT_ONCE = 200_000
"""(ray, Gaussian) pairs examined at a time, so that the search stays within some tens of MB."""


@dataclass
class Hits:
    """All hits of R rays, sorted by ray, then tau, then Gaussian index.

    Attributes:
        ray, gaussian, rank: [M] int64: which ray, which Gaussian, how many hits lie before it.
        tau, alpha: [M] float64, without gradient; alpha before the clamp to alpha_max.
    """

    ray: Tensor
    gaussian: Tensor
    rank: Tensor
    tau: Tensor
    alpha: Tensor


@dataclass
class TracedRays:
    """What R rays gather.

    Attributes:
        color: [R, 3] float64, premultiplied, without background.
        opacity: [R] 1 - transmittance.
        depth: [R] blended tau over opacity; 0 where nothing was hit.
        order: [R, L] int64 indices of the blended Gaussians, front to back, padded with -1.
        median_depth: [R] tau of the hit that takes the transmittance to 0.5 or below; 0 without.
        normals: [R, 3] blended unit normals, in world axes: a Gaussian's is -Sigma^-1 d, normal of
            the plane of its peaks along all rays of direction d (Gaussian Opacity Fields, Yu et al.
            2024).
        hit_count: [R] int64, how many hits were blended.
    """

    color: Tensor
    opacity: Tensor
    depth: Tensor
    order: Tensor
    median_depth: Tensor
    normals: Tensor
    hit_count: Tensor


def whitening(quats: Tensor, log_scales: Tensor) -> Tensor:
    """S^-1 R^T [..., 3, 3]: from world offsets to the frame where the Gaussian is the unit one."""
    w, x, y, z = (quats / quats.norm(dim=-1, keepdim=True)).unbind(-1)
    rotation_transposed = torch.stack(
        [
            *(1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)),
            *(2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)),
            *(2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)),
        ],
        -1,
    ).unflatten(-1, (3, 3))
    return (-log_scales).exp()[..., None] * rotation_transposed


def response(
    whiten: Tensor, means: Tensor, opacity_logits: Tensor, origins: Tensor, directions: Tensor
) -> tuple[Tensor, Tensor]:
    """Place `tau` and height `alpha` (before the clamp) of a Gaussian's peak along a ray.

    Args:
        whiten: [..., 3, 3] from `whitening`.
        means: [..., 3].
        opacity_logits: [...].
        origins: [..., 3].
        directions: [..., 3], of any length: the peak lies at origin + tau direction.

    Returns:
        tau, alpha: each [...], the leading shapes broadcast.
    """
    o, d = _transform(whiten, origins - means), _transform(whiten, directions)
    tau = -_dot(o, d) / _dot(d, d)
    nearest = o + tau[..., None] * d
    return tau, opacity_logits.sigmoid() * torch.exp(-_dot(nearest, nearest) / 2)


@torch.no_grad()
def find_hits(
    gaussians: Gaussians,
    origins: Tensor,
    directions: Tensor,
    *,
    alpha_min: float,
    near: float | Tensor,
) -> Hits:
    """Every Gaussian with alpha >= alpha_min and tau >= near, for every ray, in exact order.

    Gaussians with a mean, quaternion or log scale that is not finite are never hit, nor is any by a
    ray that is not finite.
    """
    finite = (
        torch.cat([gaussians.means, gaussians.quats, gaussians.log_scales], -1).isfinite().all(-1)
    )
    whiten = whitening(gaussians.quats, gaussians.log_scales)
    at_once = max(1, PAIRS_AT_ONCE // max(1, len(gaussians)))
    nearest = torch.as_tensor(near, dtype=torch.float64, device=directions.device)
    nearest = nearest.expand(len(directions))[:, None]
    parts = []
    for start in range(0, max(1, len(directions)), at_once):
        rays = slice(start, start + at_once)
        tau, alpha = response(
            whiten,
            gaussians.means,
            gaussians.opacity_logits,
            origins[rays, None],
            directions[rays, None],
        )
        hit = finite & (alpha >= alpha_min) & (tau >= nearest[rays])
        ray, gaussian = hit.nonzero(as_tuple=True)
        parts.append((ray + start, gaussian, tau[hit], alpha[hit]))
    ray, gaussian, tau, alpha = (torch.cat(column) for column in zip(*parts, strict=True))
    order = tau.argsort(stable=True)  # stable: the pairs come by ray and index
    order = order[ray[order].argsort(stable=True)]
    ray, gaussian, tau, alpha = ray[order], gaussian[order], tau[order], alpha[order]
    rank = torch.arange(len(ray), device=ray.device) - torch.searchsorted(ray, ray)
    return Hits(ray, gaussian, rank, tau, alpha)


def trace_rays(
    gaussians: Gaussians,
    origins: Tensor,
    directions: Tensor,
    *,
    alpha_min: float = 1 / 255,
    alpha_max: float = 0.99,
    transmittance_min: float = 1e-4,
    near: float | Tensor = 0.01,
    sh: Literal["ray", "center", "linear"] = "ray",
    center: Tensor | None = None,
) -> TracedRays:
    """Trace rays; differentiable by autograd in all five tensors of `gaussians`, in the rays and in
    `center`.

    Args:
        gaussians: N Gaussians (converted to float64).
        origins: [R, 3] in world units.
        directions: [R, 3], of any length: `tau`, `near` and the depth count in their lengths. A ray
            with NaN hits nothing.
        alpha_min: a weaker response is no hit.
        alpha_max: responses are clamped to it, with no gradient where clamped.
        transmittance_min: the hit that brings the transmittance below it is the ray's last.
        near: smallest tau of a hit; of all rays, or [R].
        sh: colour at the ray's direction; at the direction from `center` to the mean (as 3DGS); or
            to first order around that: with the harmonics Y as homogeneous polynomials, d and d0
            the two unit directions, Y(d0) + grad Y(d0) . (d - d0) in place of Y(d).
        center: [3] camera centre for `sh="center"` and `sh="linear"`, or [R, 3] for every ray its
            own, as `origins` would be.

    Raises:
        ValueError: `sh` is unknown, or `center` is missing.
    """
    if sh not in ("ray", "center", "linear"):
        raise ValueError(f"sh is {sh!r}; expected 'ray', 'center' or 'linear'")
    if sh != "ray" and center is None:
        raise ValueError(f"sh={sh!r} needs the camera centre; got center=None")
    gaussians = gaussians.map(lambda t: t.double())
    origins, directions = origins.double(), directions.double()
    hits = find_hits(gaussians, origins, directions, alpha_min=alpha_min, near=near)

    # Only Gaussians that are hit take part from here on: no other can put NaN into gradients.
    used, slot = hits.gaussian.unique(return_inverse=True)
    seen = gaussians.map(lambda t: t[used])
    origin, direction = origins[hits.ray], directions[hits.ray]
    whiten = whitening(seen.quats, seen.log_scales)[slot]
    tau, alpha = response(whiten, seen.means[slot], seen.opacity_logits[slot], origin, direction)
    alpha = alpha.clamp(max=alpha_max)
    if center is None or sh == "ray":
        color = _colors(direction, seen.sh[slot])
    else:
        view = seen.means[slot] - center.double().expand_as(origins)[hits.ray]
        color = (
            _colors(view, seen.sh[slot])
            if sh == "center"
            else _linear_colors(view, direction, seen.sh[slot])
        )

    shape = (len(directions), int(hits.rank.max()) + 1 if len(hits.rank) else 0)
    place = (hits.ray, hits.rank)
    alphas = alpha.new_zeros(shape).index_put(place, alpha)
    after = (1 - alphas).cumprod(-1)
    before = torch.cat([after.new_ones(shape[0], 1), after], -1)[:, :-1]
    blended = before >= transmittance_min
    weights = torch.where(blended, before * alphas, 0.0)[place]

    zeros = color.new_zeros(shape[0])
    opacity = zeros.index_add(0, hits.ray, weights)
    depth = zeros.index_add(0, hits.ray, weights * tau)
    order = hits.gaussian.new_full(shape, -1).index_put(place, hits.gaussian)
    order = torch.where(blended, order, -1)

    normal = -_unit(_transform(whiten.mT, _transform(whiten, direction)))
    # The one hit of a ray, if there is one, that finds more than half of the light and leaves less.
    halves = (blended & (before > 0.5) & (after <= 0.5))[place]
    return TracedRays(
        color=color.new_zeros(shape[0], 3).index_add(0, hits.ray, weights[:, None] * color),
        opacity=opacity,
        depth=depth / torch.where(opacity > 0, opacity, 1.0),
        order=order[:, : int((order >= 0).sum(-1).max()) if order.numel() else 0],
        median_depth=zeros.index_add(0, hits.ray[halves], tau[halves]),
        normals=color.new_zeros(shape[0], 3).index_add(0, hits.ray, weights[:, None] * normal),
        hit_count=(order >= 0).sum(-1),
    )


def render(
    gaussians: Gaussians,
    camera: Camera,
    *,
    alpha_min: float = 1 / 255,
    alpha_max: float = 0.99,
    transmittance_min: float = 1e-4,
    near: float = 0.01,
    sh: Literal["ray", "center", "linear"] = "ray",
) -> Rendering:
    """Trace every pixel of `camera`; keywords as `trace_rays`.

    Depth is z-depth for planar and orthographic lenses, distance for others. Pixels to which the
    lens maps no ray are zero. `sh="center"` is seen from where each ray starts. Shutter and
    aperture are left out.
    """
    origins, directions = camera_rays(camera)
    traced = trace_rays(
        gaussians,
        origins,
        directions,
        alpha_min=alpha_min,
        alpha_max=alpha_max,
        transmittance_min=transmittance_min,
        near=near,
        sh=sh,
        center=origins,
    )
    size = (camera.height, camera.width)
    return Rendering(
        color=traced.color.unflatten(0, size),
        opacity=traced.opacity.unflatten(0, size),
        depth=traced.depth.unflatten(0, size),
    )


def camera_rays(camera: Camera) -> tuple[Tensor, Tensor]:
    """World-space origins and directions, each [H * W, 3] float64, of the pixels in rows."""
    c2w = camera.c2w.double()
    directions = camera.directions().reshape(-1, 3) @ c2w[:, :3].T
    return c2w[:, 3] + camera.origins().reshape(-1, 3) @ c2w[:, :3].T, directions


# Sums are written out, so that equal Gaussians give equal bits and tie: library products do not.
def _dot(a: Tensor, b: Tensor) -> Tensor:
    x, y, z = (a * b).unbind(-1)
    return x + y + z


def _transform(matrix: Tensor, vector: Tensor) -> Tensor:
    a, b, c = matrix.unbind(-1)
    return a * vector[..., 0:1] + b * vector[..., 1:2] + c * vector[..., 2:3]


def _colors(directions: Tensor, sh: Tensor) -> Tensor:
    """Colours [..., 3] of `sh` [..., K, 3] seen along `directions` [..., 3] of any length."""
    return _blend(sh_basis(_unit(directions), _degree(sh)), sh)


def _linear_colors(views: Tensor, directions: Tensor, sh: Tensor) -> Tensor:
    """As `_colors`, to first order around `views` [..., 3]."""
    at = _unit(views)
    basis, change = torch.func.jvp(  # type: ignore[misc]
        lambda u: sh_basis(u, _degree(sh)), (at,), (_unit(directions) - at,)
    )
    return _blend(basis + change, sh)


def _blend(basis: Tensor, sh: Tensor) -> Tensor:
    return (0.5 + (basis[..., None] * sh).sum(-2)).clamp_min(0)


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True)


def _degree(sh: Tensor) -> int:
    return int(sh.shape[-2] ** 0.5) - 1
