"""The training step's mathematics in plain PyTorch: what the native functions are held against."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gart.cameras import Camera
from gart.capture import View
from gart.scene import Gaussians
from gart.training.photographs import Photograph


def ssim_map(x: Tensor, y: Tensor) -> Tensor:
    """SSIM [H, W, 3] with an 11 x 11 Gaussian window (sigma 1.5), zeros outside the image."""
    offsets = torch.arange(-5, 6, dtype=x.dtype)
    one = torch.exp(-(offsets**2) / (2 * 1.5**2))
    window = (torch.outer(one, one) / one.sum() ** 2).expand(3, 1, 11, 11)

    def blur(image: Tensor) -> Tensor:
        return F.conv2d(image.permute(2, 0, 1), window, padding=5, groups=3).permute(1, 2, 0)

    mx, my = blur(x), blur(y)
    vx, vy, cov = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
    return ((2 * mx * my + 1e-4) * (2 * cov + 9e-4)) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))


def over(photograph: Tensor, background: Tensor) -> Tensor:
    """A uint8 photograph as float, one with alpha over `background`."""
    values = photograph.to(background.dtype) / 255
    if photograph.shape[-1] == 3:
        return values
    return values[..., :3] * values[..., 3:] + (1 - values[..., 3:]) * background


def photometric(
    color: Tensor,
    opacity: Tensor,
    photograph: Tensor,
    background: Tensor,
    ssim_weight: float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Loss and mean squared error, differentiable in color and opacity."""
    x, y = color + (1 - opacity)[..., None] * background, over(photograph, background)
    counts = torch.ones_like(x) if mask is None else mask[..., None].to(x).expand_as(x)
    seen = torch.where(counts > 0, x, y)
    terms = (1 - ssim_weight) * (seen - y).abs() + ssim_weight * (1 - ssim_map(seen, y))
    total = counts.sum().clamp_min(1)
    error = ((seen.clamp(0, 1) - y).square() * counts).sum() / total
    return (terms * counts).sum() / total, error


def as_photograph(image: Tensor, mask: Tensor | None = None) -> Photograph:
    """The uint8 `image` as the trainer has it."""
    height, width = image.shape[:2]
    camera = Camera(torch.eye(3, 4), 10, 10, width / 2, height / 2, width, height)
    return Photograph.of(View("a.png", camera, image, mask), "cpu")


def smooth(gaussians: Gaussians, sizes: Tensor) -> Gaussians:
    """The 3D filter, differentiable in the scene."""
    widened = F.softplus(2 * (sizes.log()[:, None] - gaussians.log_scales)) / 2
    log_k = -widened.sum(-1)
    rest = torch.exp(-gaussians.opacity_logits.clamp_min(-80)) - torch.expm1(log_k)
    return replace(
        gaussians,
        log_scales=gaussians.log_scales + widened,
        opacity_logits=log_k - rest.log(),
    )


def rotations(quats: Tensor) -> Tensor:
    """Rotation matrices [N, 3, 3] of quaternions (w, x, y, z), normalised here."""
    w, x, y, z = F.normalize(quats, dim=-1).unbind(-1)
    rows = [
        *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    ]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def philox(counter: np.ndarray, key: int) -> np.ndarray:
    """Philox4x32-10 (Salmon et al. 2011) of counters [N, 4] uint32."""
    c = [counter[:, k].astype(np.uint64) for k in range(4)]
    low32 = np.uint64(0xFFFFFFFF)
    for number in range(10):
        k0 = np.uint64((key + number * 0x9E3779B9) & 0xFFFFFFFF)
        k1 = np.uint64(((key >> 32) + number * 0xBB67AE85) & 0xFFFFFFFF)
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ k0, b & low32, (a >> np.uint64(32)) ^ c[3] ^ k1]
        c.append(a & low32)
    return np.stack(c, 1).astype(np.uint32)


def normals(count: int, seed: int, draw: int) -> Tensor:
    """[count, 3] float64: standard normal numbers of a draw, by Box and Muller."""
    counter = np.zeros((count, 4), np.uint32)
    counter[:, 0], counter[:, 2] = np.arange(count), draw
    u = ((philox(counter, seed) >> 8) + 0.5) / 2**24
    r0, r1 = (np.sqrt(-2 * np.log(u[:, k])) for k in (0, 2))
    a0, a1 = 2 * np.pi * u[:, 1], 2 * np.pi * u[:, 3]
    return torch.tensor(np.stack([r0 * np.cos(a0), r0 * np.sin(a0), r1 * np.cos(a1)], 1))


def noise_shift(gaussians: Gaussians, amount: float, seed: int, draw: int) -> Tensor:
    """[N, 3] float64: equation 8 of 3DGS-MCMC."""
    scene = gaussians.map(lambda t: t.double())
    rotation = rotations(scene.quats)
    sigma = rotation @ torch.diag_embed(torch.exp(2 * scene.log_scales)) @ rotation.mT
    gate = torch.sigmoid(-100 * (scene.opacity_logits.sigmoid() - 0.005))
    shift = (sigma @ normals(len(scene), seed, draw)[..., None])[..., 0]
    return amount * gate[:, None] * shift
