"""What a ray says about surfaces: median depth, normals, how many hits (docs/tracer.md).

The native tracers find each ray's hits, in exact order; from there on it is PyTorch, in float64, so
that flat Gaussians keep their digits, and rendering and training pay nothing for it. Schedule: rays
in order of their hits' number, a piece at a time as a padded matrix; a piece is computed again for
its gradients. Cost: 4 bytes a hit, and about 600 for each of the `HITS_AT_ONCE`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gart.cameras import Camera
from gart.memory import allocating
from gart.scene import Gaussians
from gart.tracing.bvh import Bvh
from gart.tracing.camera_rays import camera_rays
from gart.tracing.ray_grid import fits_tiles
from gart.tracing.rays import broadcast_rays, ray_hit_order
from gart.tracing.settings import TraceSettings
from gart.tracing.tracer import tile_hits

HITS_AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 21}
"""Of a piece: what stays in a CPU's caches; what keeps a GPU busy, in 1.3 GB."""
_COLUMNS = 13
"""Of a table of Gaussians: S^-1 R^T by rows, mean, opacity."""


@dataclass
class Surface:
    """Of a view, or of rays with any axes [...] in place of [H, W].

    Attributes:
        median_depth: [H, W] depth, in the units of `Rendering.depth`, of the hit that takes the
            transmittance to 0.5 or below; 0 where none does. Its gradient is that of this hit's
            depth: which hit it is does not change in small steps.
        normals: [H, W, 3] sum of transmittance x alpha x unit normal over the hits, in world axes:
            as long as the opacity where all agree, 0 where nothing was hit. A Gaussian's normal is
            that of the plane in which rays of one direction d have their maximum responses,
            -Sigma^-1 d normalised: it faces the camera (Gaussian Opacity Fields, Yu et al. 2024);
            of a round Gaussian it is -d.
        hit_count: [H, W] int32, how many hits were blended; no gradient.
    """

    median_depth: Tensor
    normals: Tensor
    hit_count: Tensor


def trace_surface(
    gaussians: Gaussians, camera: Camera, settings: TraceSettings | None = None
) -> Surface:
    """The surface that every pixel's ray sees, from the very hits that `trace` blends.

    Behind an aperture: the mean of its samples' normals, the mean median depth of those samples
    that have one, the hits of all.

    Args:
        gaussians: as `trace`; gradients flow to all but `sh`.
        camera: any lens, shutter and aperture; differentiable in its pose.
        settings: as `trace`; `sh` plays no part.

    Raises:
        ValueError: a tensor of the wrong shape, dtype or device, named.
        OutOfMemoryError: the hits do not fit in memory.
    """
    settings = settings or TraceSettings()
    if settings.tracer == "bvh" or not fits_tiles(camera, gaussians.device):
        return _by_tree(gaussians, camera, settings)
    hits = tile_hits(_without_colors(gaussians), camera, replace(settings, sh="center"))
    origins, directions = camera_rays(camera, gaussians.device)
    return surface_of_hits(gaussians, origins, directions, *hits, settings.alpha_max)


def trace_ray_surface(
    gaussians: Gaussians,
    origins: Tensor,
    directions: Tensor,
    settings: TraceSettings | None = None,
    *,
    t_min: Tensor | float | None = None,
    bvh: Bvh | None = None,
) -> Surface:
    """The surface that any rays see; arguments, axes and errors as `trace_rays`.

    Gradients flow to all of the scene but `sh`, and to the rays. Depth is in lengths of the
    directions.
    """
    settings = replace(settings or TraceSettings(), sh="center")
    origins, directions = broadcast_rays(origins, directions)
    if t_min is not None:
        t_min = torch.as_tensor(t_min).expand(origins.shape[:-1]).reshape(-1)
    offsets, ids = ray_hit_order(
        _without_colors(gaussians),
        origins.reshape(-1, 3),
        directions.reshape(-1, 3),
        settings,
        t_min=t_min,
        bvh=bvh,
    )
    return surface_of_hits(gaussians, origins, directions, offsets, ids, settings.alpha_max)


def surface_of_hits(
    gaussians: Gaussians,
    origins: Tensor,
    directions: Tensor,
    offsets: Tensor,
    ids: Tensor,
    alpha_max: float,
) -> Surface:
    """The surface seen by rays whose hits are known.

    Args:
        gaussians: of any floating type, which the result has too.
        origins: [..., 3] of any floating type.
        directions: [..., 3], R rays in all.
        offsets: [R + 1] int64: ray r blends `ids[offsets[r]:offsets[r + 1]]`, front to back.
        ids: [offsets[-1]] int32 indices of Gaussians.
        alpha_max: responses are clamped to it.
    """
    shape, dtype = origins.shape[:-1], gaussians.means.dtype
    origins, directions = origins.reshape(-1, 3), directions.reshape(-1, 3)
    counts = offsets.diff()
    table, slot = _table(gaussians, ids)
    order = counts.argsort(descending=True, stable=True)
    order = order[: int((counts > 0).sum())]
    differentiated = torch.is_grad_enabled() and any(
        t.requires_grad for t in (table, origins, directions)
    )
    none = (table[0, :0] + origins[:0, 0] + directions[:0, 0]).to(dtype)  # gradients 0 without hits
    medians, normals = [none], [none[:, None].expand(0, 3)]
    with allocating(f"the surface seen by {len(counts):,} rays", "trace fewer rays at a time"):
        for rays in _pieces(order, counts, HITS_AT_ONCE[origins.device.type]):
            inputs = (table, slot, origins, directions, rays, offsets, ids, alpha_max)
            if differentiated:
                median, normal = checkpoint(
                    _piece, *inputs, use_reentrant=False, preserve_rng_state=False
                )
            else:
                median, normal = _piece(*inputs)
            medians.append(median.to(dtype))
            normals.append(normal.to(dtype))
    nothing = none.new_zeros(len(counts), 3)
    return Surface(
        median_depth=nothing[:, 0].index_copy(0, order, torch.cat(medians)).reshape(shape),
        normals=nothing.index_copy(0, order, torch.cat(normals)).reshape(*shape, 3),
        hit_count=counts.int().reshape(shape),
    )


def _by_tree(gaussians: Gaussians, camera: Camera, settings: TraceSettings) -> Surface:
    bvh = Bvh(gaussians, settings.alpha_min)
    samples = 1 if camera.aperture is None else camera.aperture.samples
    each = [
        trace_ray_surface(
            gaussians, *camera_rays(camera, gaussians.device, sample), settings, bvh=bvh
        )
        for sample in range(samples)
    ]
    depths = torch.stack([surface.median_depth for surface in each])
    return Surface(
        median_depth=depths.sum(0) / (depths > 0).sum(0).clamp_min(1),
        normals=torch.stack([surface.normals for surface in each]).mean(0),
        hit_count=torch.stack([surface.hit_count for surface in each]).sum(0, dtype=torch.int32),
    )


def _without_colors(gaussians: Gaussians) -> Gaussians:
    """Detached, with the fewest harmonics there can be."""
    return replace(gaussians, sh=gaussians.sh[:, :1]).detach()


def _pieces(order: Tensor, counts: Tensor, most: int) -> Iterator[Tensor]:
    """`order`, rays with ever fewer hits, in pieces that fit a matrix of `most` hits."""
    longest = counts[order].cpu()
    start = 0
    while start < len(order):
        stop = start + max(1, most // int(longest[start]))
        yield order[start:stop]
        start = stop


def _table(gaussians: Gaussians, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The Gaussians that are hit, [13, U] float64, and the place of each there, [N].

    The others may be infinite or NaN: they take no part, so their gradients are 0.
    """
    hit = torch.zeros(len(gaussians), dtype=torch.bool, device=ids.device)
    hit[ids.long()] = True
    used = hit.nonzero()[:, 0]
    seen = gaussians.map(lambda t: t.index_select(0, used).double())
    w, x, y, z = (seen.quats / seen.quats.norm(dim=-1, keepdim=True)).unbind(-1)
    inverse = (-seen.log_scales).exp().unbind(-1)
    axes = (
        (1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)),
        (2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)),
        (2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)),
    )
    whitening = [scale * c for scale, axis in zip(inverse, axes, strict=True) for c in axis]
    columns = [*whitening, *seen.means.unbind(-1), seen.opacity_logits.sigmoid()]
    return torch.stack(columns), hit.cumsum(0) - 1


def _piece(
    table: Tensor,
    slot: Tensor,
    origins: Tensor,
    directions: Tensor,
    rays: Tensor,
    offsets: Tensor,
    ids: Tensor,
    alpha_max: float,
) -> tuple[Tensor, Tensor]:
    """Median depth [P] and normals [P, 3] float64 of `rays` [P]; the first has the most hits."""
    first, last = offsets[rays][:, None], offsets[rays + 1][:, None]
    rank = torch.arange(int(last[0] - first[0]), device=rays.device)
    place = first + rank
    real = place < last
    # Rows are filled up with their last hits, whose responses are finite.
    index = slot[ids[torch.minimum(place, last - 1)].long()]
    rows = table.index_select(1, index.flatten()).reshape(_COLUMNS, *index.shape)
    origin, direction = (
        t.index_select(0, rays).double().T[..., None] for t in (origins, directions)
    )
    whiten, mean, opacity = rows[:9].unflatten(0, (3, 3)), rows[9:12], rows[12]
    o_g, d_g = _times(whiten, origin - mean), _times(whiten, direction)
    tau = -(o_g * d_g).sum(0) / (d_g * d_g).sum(0)
    nearest = o_g + tau * d_g
    alpha = (opacity * (-(nearest * nearest).sum(0) / 2).exp()).clamp(max=alpha_max) * real
    after = (1 - alpha).cumprod(1)
    before = torch.cat([torch.ones_like(after[:, :1]), after[:, :-1]], 1)
    normal = -_times(whiten.transpose(0, 1), d_g)
    normal = normal / (normal * normal).sum(0).sqrt()
    depths = torch.cat([tau, torch.zeros_like(tau[:, :1])], 1)
    halfway = (after > 0.5).sum(1, keepdim=True)  # the zero's place where no hit gets there
    return depths.gather(1, halfway)[:, 0], (before * alpha * normal).sum(2).T


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """[3, 3, ...] times [3, ...]."""
    return matrix[:, 0] * vector[0] + matrix[:, 1] * vector[1] + matrix[:, 2] * vector[2]
