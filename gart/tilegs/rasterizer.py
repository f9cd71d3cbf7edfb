"""The rasterizer: one native call renders all views (docs/tilegs.md), on the CPU or on CUDA.

Equations and order are gsplat 1.5.3's `rasterization(packed=False)` (csrc/common/splat.h). A
Gaussian with a NaN, or so large that its image is not finite, is not drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gart import stages
from gart.cameras import Camera
from gart.native import library
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.tilegs.settings import RasterSettings
from gart.tilegs.views import Views, view_of, views_of

STAGES = ("project", "intersect", "bins", "repair", "raster")
COUNTS = (
    "splats",
    "entries",
    "bin segments",
    "segments repaired",
    "entries repaired",
    "tests",
    "tile stream bytes",
)


@torch.no_grad()
def rasterize(
    gaussians: Gaussians, camera: Camera, settings: RasterSettings | None = None
) -> Rendering:
    """Render `gaussians` as seen by the pinhole `camera`, on their device; no gradients.

    While `gart.stages` records, every stage's time and the counts are recorded (docs/tilegs.md);
    otherwise the call returns as soon as the GPU has its work.

    Raises:
        ValueError: the camera is distorted, has an aperture or a rolling shutter, or its pose is
            not finite.
    """
    if not camera.is_planar or any(camera.distortion) or not camera.is_central:
        raise ValueError(
            f"the rasterizer renders pinhole cameras and this one is {camera.model}; "
            "pass camera.undistorted() without aperture or shutter, or trace it with gart.tracing"
        )
    colors, alphas, depths = _render(
        gaussians.means,
        gaussians.quats,
        gaussians.log_scales.exp(),
        gaussians.opacity_logits.sigmoid(),
        gaussians.sh,
        view_of(camera, gaussians.device),
        None,
        camera.width,
        camera.height,
        settings or RasterSettings(),
    )
    return Rendering(color=colors[0], opacity=alphas[0, ..., 0], depth=depths[0, ..., 0])


@torch.no_grad()
def rasterization(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    *,
    sh_degree: int | None = None,
    backgrounds: Tensor | None = None,
    settings: RasterSettings | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Render a batch of pinhole cameras from activated parameters, as gsplat's `rasterization`.

    Args:
        means: [N, 3] centres in scene units.
        quats: [N, 4] rotations (w, x, y, z), normalised when used.
        scales: [N, 3] standard deviations in scene units.
        opacities: [N], at most 1 (checked on the CPU only).
        sh: [N, K, 3] spherical harmonics, K = 1, 4, 9 or 16.
        viewmats: [C, 4, 4] world to camera, OpenCV axes; on the scene's device or on the CPU.
        Ks: [C, 3, 3] intrinsics in pixels; skew is ignored. Where they are on the CPU, they are
            checked.
        width: image width in pixels.
        height: image height in pixels.
        sh_degree: use the coefficients up to this degree; all by default.
        backgrounds: [C, 3] colours behind the scene; black by default.
        settings: defaults to `RasterSettings()`.

    Returns:
        colors [C, H, W, 3], alphas [C, H, W, 1] and expected depths [C, H, W, 1] (camera z, blended
        depth over alpha, 0 where nothing was drawn), all float32.

    Raises:
        ValueError: a shape, size, degree, camera or device that does not fit.
    """
    _check_shape("viewmats", viewmats, ("C", 4, 4))
    _check_shape("Ks", Ks, (len(viewmats), 3, 3))
    if backgrounds is not None:
        _check_shape("backgrounds", backgrounds, (len(viewmats), 3))
        backgrounds = backgrounds.detach().to(means.device, torch.float32).contiguous()
    if sh_degree is not None:
        _check_shape("sh", sh, ("N", "K", 3))
        if sh_degree < 0 or (sh_degree + 1) ** 2 > sh.shape[1]:
            raise ValueError(
                f"sh_degree is {sh_degree}, which needs {(sh_degree + 1) ** 2} coefficients; "
                f"sh has shape {list(sh.shape)}"
            )
        sh = sh[:, : (sh_degree + 1) ** 2]
    if opacities.device.type == "cpu" and (opacities > 1).any():
        raise ValueError(
            f"opacities reach {float(opacities.max())}; expected at most 1, logits need a sigmoid"
        )
    return _render(
        means,
        quats,
        scales,
        opacities,
        sh,
        views_of(viewmats, Ks, means.device),
        backgrounds,
        width,
        height,
        settings or RasterSettings(),
    )


def _render(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh: Tensor,
    views: Views,
    backgrounds: Tensor | None,
    width: int,
    height: int,
    settings: RasterSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """colors [C, H, W, 3], alphas [C, H, W, 1] and depths [C, H, W, 1]."""
    timed = stages.active() is not None
    colors, alphas, depths, stats = library(means.device).tilegs_render(
        *_checked_scene(means, quats, scales, opacities, sh),
        *views,
        means.new_empty(0, dtype=torch.float32) if backgrounds is None else backgrounds,
        width,
        height,
        settings.alpha_min,
        settings.alpha_max,
        settings.transmittance_min,
        settings.near,
        settings.eps2d,
        settings.mode == "antialiased",
        settings.bins,
        settings.repair,
        settings.packed,
        timed,
        torch.get_num_threads(),
    )
    if timed:
        values = stats.tolist()
        for name, ms in zip(STAGES, values[: len(STAGES)], strict=True):
            stages.add(name, ms)
        for name, value in zip(COUNTS, values[len(STAGES) :], strict=True):
            stages.count(name, value)
        stages.count("pixels", alphas.numel())
    return colors, alphas, depths


def _checked_scene(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, sh: Tensor
) -> tuple[Tensor, ...]:
    """The scene's tensors as the native library wants them: float32 and contiguous."""
    _check_shape("means", means, ("N", 3))
    n = len(means)
    _check_shape("quats", quats, (n, 4))
    _check_shape("scales", scales, (n, 3))
    _check_shape("opacities", opacities, (n,))
    _check_shape("sh", sh, (n, "K", 3))
    scene = (means, quats, scales, opacities, sh)
    for name, tensor in zip(("means", "quats", "scales", "opacities", "sh"), scene, strict=True):
        if tensor.device != means.device:
            raise ValueError(
                f"{name} is on {tensor.device} and means on {means.device}; "
                "expected the whole scene on one device"
            )
    return tuple(tensor.detach().float().contiguous() for tensor in scene)


def _check_shape(name: str, tensor: Tensor, shape: tuple[int | str, ...]) -> None:
    """Refuse another shape; a letter stands for any extent."""
    fits = tensor.ndim == len(shape) and all(
        isinstance(want, str) or want == size
        for want, size in zip(shape, tensor.shape, strict=False)
    )
    if not fits:
        expected = ", ".join(str(want) for want in shape)
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected [{expected}]")
