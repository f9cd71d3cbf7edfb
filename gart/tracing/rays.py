"""Differentiable tracing of arbitrary rays through a tree over the Gaussians (docs/bvh.md).

The model is that of `gart.tracing.trace`, in the same exact order; a camera's rays give its image.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gart import stages
from gart.memory import allocating
from gart.native import library
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.tracing.bvh import Bvh
from gart.tracing.settings import TraceSettings

_chunks_a_ray: dict[torch.device, float] = {}
"""How many chunks of hits recent rays took on a GPU: what the next ones are given room for."""


def trace_rays(
    gaussians: Gaussians,
    origins: Tensor,
    directions: Tensor,
    settings: TraceSettings | None = None,
    *,
    t_min: Tensor | float | None = None,
    bvh: Bvh | None = None,
) -> Rendering:
    """Trace rays from anywhere to anywhere, in exact order along each.

    A ray is origin + tau direction. Its hits are the Gaussians' points of maximum response, as in
    `trace`, with tau >= t_min; so a secondary ray starts where the first one hit, with a small
    `t_min` to leave the surface that it comes from.

    Args:
        gaussians: the scene, float32; gradients flow to all five tensors.
        origins: [..., 3] float32 in the world; gradients flow to it.
        directions: [..., 3] float32, of any length but 0; gradients flow to it. Broadcast against
            `origins`. Of two or more leading axes the last two are taken for an image, whose
            neighbours are traced together: faster, same result.
        settings: defaults to `TraceSettings()`; its `near` is the default of `t_min`. With
            sh="center" colours are taken at the directions from each ray's origin to the means.
        t_min: smallest tau of a hit, broadcast against [...]; not differentiated.
        bvh: tree over these Gaussians, brought up to date by whoever changed them; None builds one.

    Returns:
        Rendering with the rays' axes [...] in place of [H, W]. Depth is in units of tau, the
        lengths of the directions. Rays that are not finite or have no direction hit nothing.

    Raises:
        ValueError: a tensor of the wrong shape, dtype or device, named; sh="linear", which needs
            the one centre of a camera; a bvh of another scene or of a larger `alpha_min`.
        OutOfMemoryError: the hits do not fit in memory.
    """
    settings = settings or TraceSettings()
    if settings.sh == "linear":
        raise ValueError(
            "sh is 'linear', which is an expansion around one camera's centre; "
            "trace rays with sh='ray' or sh='center'"
        )
    origins, directions = broadcast_rays(origins, directions)
    if bvh is None:
        bvh = Bvh(gaussians, settings.alpha_min)
    _check(bvh, gaussians, settings)
    shape = origins.shape[:-1]
    nearest = torch.as_tensor(
        settings.near if t_min is None else t_min, dtype=torch.float32, device=origins.device
    )
    inputs = (
        *gaussians.tensors().values(),
        origins.reshape(-1, 3),
        directions.reshape(-1, 3),
    )
    call = _Call(
        settings=settings,
        t_min=nearest.detach().expand(shape).reshape(-1).contiguous(),
        width=shape[-1] if len(shape) > 1 else 0,
        keep_hits=torch.is_grad_enabled() and any(t.requires_grad for t in inputs),
    )
    with allocating(f"tracing {len(call.t_min):,} rays", "trace fewer rays at a time"):
        color, opacity, blended = _TraceRays.apply(call, bvh, *inputs)
    # Where nothing was hit both are 0; the clamp only keeps 0 / 0 out of the gradients.
    depth = blended / opacity.clamp_min(settings.alpha_min / 2)
    return Rendering(color.reshape(*shape, 3), opacity.reshape(shape), depth.reshape(shape))


def ray_hit_order(
    gaussians: Gaussians,
    origins: Tensor,
    directions: Tensor,
    settings: TraceSettings | None = None,
    *,
    t_min: Tensor | float | None = None,
    bvh: Bvh | None = None,
) -> tuple[Tensor, Tensor]:
    """The hits that each of R rays blended, front to back.

    Args:
        gaussians: the scene.
        origins: [R, 3] float32.
        directions: [R, 3] float32.
        settings: as `trace_rays`.
        t_min: smallest tau of a hit, of all rays or [R].
        bvh: as `trace_rays`.

    Returns:
        offsets [R + 1] int64 and gaussians [offsets[-1]] int32: ray r blended
        `gaussians[offsets[r]:offsets[r + 1]]`.
    """
    settings = settings or TraceSettings()
    nearest = torch.as_tensor(
        settings.near if t_min is None else t_min, dtype=torch.float32, device=origins.device
    )
    call = _Call(settings, nearest.expand(len(origins)).contiguous(), width=0, keep_hits=True)
    inputs = _plain((*gaussians.tensors().values(), origins, directions))
    if bvh is None:
        bvh = Bvh(gaussians, settings.alpha_min)
    _check(bvh, gaussians, settings)
    state = call.whole(inputs, call.trace(bvh, inputs)[3:])
    offsets, ids = library(gaussians.device).bvh_hits(state)
    return offsets, ids


def broadcast_rays(origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Both [..., 3].

    Raises:
        ValueError: one of them is something else.
    """
    for name, tensor in (("origins", origins), ("directions", directions)):
        if tensor.ndim == 0 or tensor.shape[-1] != 3:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; expected [..., 3]")
    origins, directions = torch.broadcast_tensors(origins, directions)
    return origins, directions


class _Call(NamedTuple):
    """What a call of `trace_rays` asks for, beside tensors that have gradients."""

    settings: TraceSettings
    t_min: Tensor
    """[R] float32."""
    width: int
    """Of the image that the rays make up; 0: they make up none."""
    keep_hits: bool

    def constants(self) -> list[Any]:
        """The rendering model, in csrc's order."""
        s = self.settings
        return [s.alpha_min, s.alpha_max, s.transmittance_min, s.sh == "ray"]

    def trace(self, bvh: Bvh, inputs: list[Tensor], chunks: int | None = None) -> list[Tensor]:
        """Colour, opacity, blended depth, and what the backward pass needs: see bvh_trace."""
        *scene, origins, directions = inputs
        device = scene[0].device
        if chunks is None:
            chunks = int(1.25 * _chunks_a_ray.get(device, 4.0) * len(self.t_min)) + 1024
        return list(
            library(device).bvh_trace(
                *scene,
                bvh.native(),
                origins,
                directions,
                self.t_min,
                *self.constants(),
                self.keep_hits,
                self.width,
                chunks if self.keep_hits else 0,
                torch.get_num_threads(),
            )
        )

    def whole(self, inputs: list[Tensor], state: list[Tensor]) -> list[Tensor]:
        """`state` with all hits: traced again if they did not fit the room that they were given.

        On the CPU they always do. On a GPU this waits until the rays are traced.
        """
        device = inputs[0].device
        if device.type != "cuda" or not len(self.t_min):
            return state
        used, room = int(state[-1]), len(state[-2])
        recent, now = _chunks_a_ray.get(device, 0.0), used / len(self.t_min)
        _chunks_a_ray[device] = max(now, 0.98 * recent + 0.02 * now)
        if used <= room:
            return state
        bvh = Bvh(Gaussians(*inputs[:5]), self.settings.alpha_min)
        return self.trace(bvh, inputs, used)[3:]


class _TraceRays(torch.autograd.Function):
    """Connects the native passes to autograd."""

    @staticmethod
    def forward(ctx: Any, call: _Call, bvh: Bvh, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with stages.stage("forward"):
            color, opacity, depth, *state = call.trace(bvh, _plain(inputs))
        ctx.call = call
        ctx.recorder = stages.active()  # PyTorch runs CUDA backward passes in a thread of its own
        ctx.save_for_backward(*inputs, *state)
        ctx.set_materialize_grads(False)
        return color, opacity, depth

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, state = _plain(ctx.saved_tensors[:7]), list(ctx.saved_tensors[7:])
        call: _Call = ctx.call
        none = inputs[0].new_empty(0)
        outputs = [none if g is None else g.contiguous() for g in grads]
        with ctx.recorder or nullcontext(), stages.stage("backward"):
            found = library(inputs[0].device).bvh_backward(
                *inputs,
                call.whole(inputs, state),
                *outputs,
                *call.constants(),
                any(ctx.needs_input_grad[-2:]),
                torch.get_num_threads(),
            )
        return (None, None, *found)


def _plain(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [t.detach().contiguous() for t in tensors]


def _check(bvh: Bvh, gaussians: Gaussians, settings: TraceSettings) -> None:
    if len(bvh) != len(gaussians):
        raise ValueError(
            f"the bvh has {len(bvh)} Gaussians and the scene {len(gaussians)}; update it first"
        )
    if bvh.alpha_min > settings.alpha_min:
        raise ValueError(
            f"the bvh is for alpha_min {bvh.alpha_min:g} and above, and the settings have "
            f"{settings.alpha_min:g}; build it with that"
        )
