"""Splatting in float64: every Gaussian tried at every pixel, for scenes of a few hundred.

The specification of `gart.tilegs`: projection, response and blending of gsplat 1.5.3, but no tiles.
EWA splatting: Zwicker et al. 2001; blending: 3DGS, Kerbl et al. 2023, equations 2 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.reference.spherical_harmonics import sh_basis
from gart.reference.tracer import whitening
from gart.rendering import Rendering
from gart.scene import Gaussians


@dataclass
class Splats:
    """Images of N Gaussians, all float64.

    Attributes:
        centers: [N, 2] pixels.
        covariances: [N, 2, 2] square pixels, blur included.
        opacities: [N]; 0 where the Gaussian is not drawn.
        depths: [N] camera z of the means.
        colors: [N, 3].
    """

    centers: Tensor
    covariances: Tensor
    opacities: Tensor
    depths: Tensor
    colors: Tensor


def project(
    gaussians: Gaussians,
    camera: Camera,
    *,
    mode: Literal["classic", "antialiased"] = "classic",
    near: float = 0.01,
    eps2d: float = 0.3,
) -> Splats:
    """The Gaussians' images, the projection of the pinhole `camera` linearised at their means."""
    g = gaussians.map(lambda t: t.double())
    world_to_camera = camera.viewmat[:3, :3].double()
    offsets = g.means - camera.center.double()
    x, y, z = (offsets @ world_to_camera.T).unbind(-1)
    local_to_camera = world_to_camera @ torch.linalg.inv(whitening(g.quats, g.log_scales))
    covariances = local_to_camera @ local_to_camera.mT

    def slope(ratio: Tensor, focal: float, principal: float, size: int) -> Tensor:
        # The Jacobian is taken at most 0.3 half-images beyond the border.
        margin = 0.3 * size / (2 * focal)
        return ratio.clamp(-principal / focal - margin, (size - principal) / focal + margin)

    zero = torch.zeros_like(z)
    jacobian = torch.stack(
        [
            *(
                camera.fx / z,
                zero,
                -camera.fx / z * slope(x / z, camera.fx, camera.cx, camera.width),
            ),
            *(
                zero,
                camera.fy / z,
                -camera.fy / z * slope(y / z, camera.fy, camera.cy, camera.height),
            ),
        ],
        -1,
    ).unflatten(-1, (2, 3))
    sharp = jacobian @ covariances @ jacobian.mT
    blurred = sharp + eps2d * torch.eye(2, dtype=torch.float64)
    opacities = g.opacity_logits.sigmoid()
    if mode == "antialiased":
        opacities = opacities * (sharp.det().clamp_min(0) / blurred.det()).sqrt()
    basis = sh_basis(offsets / offsets.norm(dim=-1, keepdim=True), g.sh_degree)
    return Splats(
        centers=torch.stack([camera.fx * x / z + camera.cx, camera.fy * y / z + camera.cy], -1),
        covariances=blurred,
        opacities=torch.where(z >= near, opacities, 0.0),
        depths=z,
        colors=(0.5 + (basis[..., None] * g.sh).sum(-2)).clamp_min(0),
    )


def rasterize(
    gaussians: Gaussians,
    camera: Camera,
    *,
    mode: Literal["classic", "antialiased"] = "classic",
    alpha_min: float = 1 / 255,
    alpha_max: float = 0.999,
    transmittance_min: float = 1e-4,
    near: float = 0.01,
    eps2d: float = 0.3,
) -> Rendering:
    """Render a pinhole `camera`; float64, keywords as `gart.tilegs.RasterSettings`.

    The Gaussians must be finite. Memory grows as pixels times Gaussians.
    """
    splats = project(gaussians, camera, mode=mode, near=near, eps2d=eps2d)
    order = splats.depths.argsort(stable=True)
    pixel_y, pixel_x = torch.meshgrid(
        torch.arange(camera.height, dtype=torch.float64) + 0.5,
        torch.arange(camera.width, dtype=torch.float64) + 0.5,
        indexing="ij",
    )
    offsets = splats.centers[order] - torch.stack([pixel_x, pixel_y], -1)[..., None, :]
    squared = torch.einsum(
        "...na,nab,...nb->...n", offsets, torch.linalg.inv(splats.covariances[order]), offsets
    )
    alpha = splats.opacities[order] * torch.exp(-0.5 * squared)
    alpha = torch.where(alpha >= alpha_min, alpha.clamp(max=alpha_max), 0.0)
    after = (1 - alpha).cumprod(-1)
    before = torch.cat([torch.ones_like(after[..., :1]), after], -1)[..., :-1]
    # The splat that would end the pixel is left out, and with it all behind.
    weights = torch.where(after > transmittance_min, before * alpha, 0.0)
    opacity = weights.sum(-1)
    depth = weights @ splats.depths[order]
    return Rendering(
        color=weights @ splats.colors[order],
        opacity=opacity,
        depth=depth / torch.where(opacity > 0, opacity, 1.0),
    )
