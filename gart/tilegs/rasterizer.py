"""The rasterizer: project, intersect tiles and sort, composite; each a native call timed apart.

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
from gart.tilegs.settings import Mode, RasterSettings


@torch.no_grad()
def rasterize(
    gaussians: Gaussians, camera: Camera, settings: RasterSettings | None = None
) -> Rendering:
    """Render `gaussians` as seen by the pinhole `camera`; no gradients.

    Records the stages "project", "intersect + sort" and "raster" and the counter "pairs"
    (tile-Gaussian intersections) with `gart.stages`.

    Raises:
        ValueError: the camera is distorted, its pose is not finite, or the Gaussians are not on the
            CPU.
    """
    if not camera.is_planar or any(camera.distortion):
        raise ValueError(
            f"the rasterizer renders pinhole cameras and this one is {camera.model}; "
            "pass camera.undistorted(), or trace its rays with gart.tracing"
        )
    color, opacity, depth = _render(
        gaussians.means,
        gaussians.quats,
        gaussians.log_scales.exp(),
        gaussians.opacity_logits.sigmoid(),
        gaussians.sh,
        camera.viewmat,
        camera.K,
        camera.width,
        camera.height,
        settings or RasterSettings(),
    )
    return Rendering(color=color, opacity=opacity, depth=depth)


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
    mode: Mode = "classic",
    backgrounds: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Render a batch of pinhole cameras from activated parameters, as gsplat's `rasterization`.

    Args:
        means: [N, 3] centres in scene units.
        quats: [N, 4] rotations (w, x, y, z), normalised when used.
        scales: [N, 3] standard deviations in scene units.
        opacities: [N], at most 1.
        sh: [N, K, 3] spherical harmonics, K = 1, 4, 9 or 16.
        viewmats: [C, 4, 4] world to camera, OpenCV axes.
        Ks: [C, 3, 3] intrinsics in pixels; skew is ignored.
        width: image width in pixels.
        height: image height in pixels.
        sh_degree: use the coefficients up to this degree; all by default.
        mode: "classic" or "antialiased", see `RasterSettings`.
        backgrounds: [C, 3] colours behind the scene; black by default.

    Returns:
        colors [C, H, W, 3], alphas [C, H, W, 1] and expected depths [C, H, W, 1] (camera z, blended
        depth over alpha, 0 where nothing was drawn), all float32.

    Raises:
        ValueError: a shape, size, degree, mode, camera or device that does not fit.
    """
    settings = RasterSettings(mode=mode)
    if width < 1 or height < 1:
        raise ValueError(f"image size is {width} x {height}; expected at least 1 x 1")
    _check_shape("viewmats", viewmats, ("C", 4, 4))
    cameras = len(viewmats)
    _check_shape("Ks", Ks, (cameras, 3, 3))
    if backgrounds is not None:
        _check_shape("backgrounds", backgrounds, (cameras, 3))
    if sh_degree is not None:
        _check_shape("sh", sh, ("N", "K", 3))
        if sh_degree < 0 or (sh_degree + 1) ** 2 > sh.shape[1]:
            raise ValueError(
                f"sh_degree is {sh_degree}, which needs {(sh_degree + 1) ** 2} coefficients; "
                f"sh has shape {list(sh.shape)}"
            )
        sh = sh[:, : (sh_degree + 1) ** 2]

    colors = means.new_empty(cameras, height, width, 3, dtype=torch.float32)
    alphas = means.new_empty(cameras, height, width, 1, dtype=torch.float32)
    depths = torch.empty_like(alphas)
    for i in range(cameras):
        color, opacity, depth = _render(
            means, quats, scales, opacities, sh, viewmats[i], Ks[i], width, height, settings
        )
        alphas[i, ..., 0], depths[i, ..., 0] = opacity, depth
        colors[i] = color
        if backgrounds is not None:
            colors[i] += (1 - alphas[i]) * backgrounds[i]
    return colors, alphas, depths


def _render(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh: Tensor,
    viewmat: Tensor,
    K: Tensor,
    width: int,
    height: int,
    settings: RasterSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """Colour [H, W, 3], opacity [H, W] and expected depth [H, W] of one view."""
    scene = _checked_scene(means, quats, scales, opacities, sh)
    viewmat, K, center = _checked_view(viewmat, K)
    native, threads = library(means.device), torch.get_num_threads()
    with stages.stage("project"):
        splats, rects = native.tilegs_project(
            *scene,
            viewmat,
            K,
            center,
            width,
            height,
            settings.alpha_min,
            settings.near,
            settings.eps2d,
            settings.mode == "antialiased",
            threads,
        )
    with stages.stage("intersect + sort"):
        offsets, order = native.tilegs_intersect(splats, rects, width, height, threads)
    stages.count("pairs", len(order))
    with stages.stage("raster"):
        color, opacity, depth = native.tilegs_composite(
            splats,
            offsets,
            order,
            width,
            height,
            settings.alpha_min,
            settings.alpha_max,
            settings.transmittance_min,
            threads,
        )
    return color, opacity, depth


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
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{name} is on {tensor.device} and the rasterizer runs on the CPU; pass it .cpu()"
            )
    if (opacities > 1).any():
        raise ValueError(
            f"opacities reach {float(opacities.max())}; expected at most 1, logits need a sigmoid"
        )
    return tuple(tensor.detach().float().contiguous() for tensor in scene)


def _checked_view(viewmat: Tensor, K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """World-to-camera matrix [4, 4], intrinsics [3, 3], camera centre [3]: float32 on the CPU."""
    viewmat, K = viewmat.double().cpu(), K.double().cpu()
    if not viewmat.isfinite().all() or viewmat[3].tolist() != [0, 0, 0, 1]:
        raise ValueError(
            f"the world-to-camera matrix is {viewmat.tolist()}; "
            "expected finite numbers with last row 0 0 0 1"
        )
    if not K.isfinite().all() or K[0, 0] <= 0 or K[1, 1] <= 0:
        raise ValueError(f"K is {K.tolist()}; expected finite numbers and positive focal lengths")
    inverse, singular = torch.linalg.inv_ex(viewmat)
    if singular:
        raise ValueError(f"the world-to-camera matrix {viewmat.tolist()} has no inverse")
    return viewmat.float(), K.float(), inverse[:3, 3].float()


def _check_shape(name: str, tensor: Tensor, shape: tuple[int | str, ...]) -> None:
    """Refuse another shape; a letter stands for any extent."""
    fits = tensor.ndim == len(shape) and all(
        isinstance(want, str) or want == size
        for want, size in zip(shape, tensor.shape, strict=False)
    )
    if not fits:
        expected = ", ".join(str(want) for want in shape)
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected [{expected}]")
