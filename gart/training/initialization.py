"""The first Gaussians: from sparse points, or along random rays of the photographs."""

from __future__ import annotations

import torch
from scipy.spatial import cKDTree
from torch import Tensor

from gart.cameras import Camera
from gart.capture import Capture, View
from gart.errors import GartError
from gart.scene import SH_C0, Gaussians
from gart.training.config import TrainConfig

NEAREST_SHARE, FARTHEST_SHARE = 1e-3, 0.1
"""A first scale is at least 0.001 of the median one (duplicate points) and at most 0.1 of the
distance to the nearest camera (stray points must not cover a view)."""


def scene_extent(cameras: list[Camera]) -> float:
    """1.1 times the largest distance of a camera centre from their mean (3DGS), in scene units.

    Cameras at one place give 1: the means then learn at the rate of a scene of unit size.
    """
    centers = torch.stack([camera.center for camera in cameras]).double()
    extent = 1.1 * float((centers - centers.mean(0)).norm(dim=-1).max())
    return extent if extent > 1e-6 else 1.0


def initial_gaussians(
    capture: Capture, config: TrainConfig, generator: torch.Generator
) -> Gaussians:
    """Gaussians on the CPU at the capture's points, or at random places its cameras see.

    Isotropic scales from the three nearest neighbours (root mean square distance, as 3DGS), opacity
    `config.init_opacity`, colour from the point, identity rotation. More points than
    `config.budget` are thinned at random.

    Raises:
        GartError: the capture has no training view.
    """
    if not capture.train:
        raise GartError(f"capture {capture.name} has no training views; check its split")
    points, colors = capture.points.float(), capture.point_colors
    finite = points.isfinite().all(-1)
    points, colors = points[finite], colors[finite]
    limit = config.budget
    if len(points) == 0:
        limit = min(config.init_random, config.budget)
        points, colors = random_points(capture.train, limit, generator)
    if len(points) > limit:
        kept = torch.randperm(len(points), generator=generator)[:limit].sort().values
        points, colors = points[kept], colors[kept]
    centers = torch.stack([view.camera.center for view in capture.train])
    n, k = len(points), (config.sh_degree + 1) ** 2
    sh = torch.zeros(n, k, 3)
    sh[:, 0] = (colors.float() / 255 - 0.5) / SH_C0
    scales = config.init_scale * neighbor_scales(points, centers)
    return Gaussians(
        means=points.clone(),
        quats=torch.tensor([1.0, 0, 0, 0]).repeat(n, 1),
        log_scales=scales.log()[:, None].repeat(1, 3),
        opacity_logits=torch.logit(torch.full((n,), config.init_opacity)),
        sh=sh,
    )


def neighbor_scales(points: Tensor, centers: Tensor) -> Tensor:
    """[N] root mean square distance of `points` [N, 3] to their three nearest others, clamped.

    `centers` [V, 3] are the cameras; see `FARTHEST_SHARE`.
    """
    places = points.double().numpy()
    nearest_camera, _ = cKDTree(centers.double().numpy()).query(places)
    farthest = FARTHEST_SHARE * torch.from_numpy(nearest_camera)
    k = min(3, len(points) - 1)
    if k == 0:
        return farthest.clamp_min(1e-8).float()
    distances, _ = cKDTree(places).query(places, k=k + 1, workers=-1)
    scales = torch.from_numpy(distances[:, 1:]).square().mean(-1).sqrt()
    distinct = scales[scales > 0]
    least = NEAREST_SHARE * float(distinct.median()) if len(distinct) else 1e-8
    # The lower bound has the last word: a point at a camera has an upper one of 0.
    return torch.minimum(scales, farthest).clamp_min(max(least, 1e-8)).float()


def random_points(
    views: list[View], count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Places [count, 3] along random pixels' rays of random views and the pixels' colours (uint8).

    Depths are uniform from a quarter to seven quarters of the distance to `focus_point`, or of the
    scene's extent for a camera that looks away from it. Transparent and masked pixels are passed
    over where a view has others.
    """
    focus = focus_point([view.camera for view in views])
    extent = scene_extent([view.camera for view in views])
    owner = torch.randint(len(views), (count,), generator=generator)
    points, colors = torch.empty(count, 3), torch.empty(count, 3, dtype=torch.uint8)
    for i, view in enumerate(views):
        rows = (owner == i).nonzero()[:, 0]
        camera = view.camera
        directions = camera.directions()
        usable = directions.isfinite().all(-1)
        content = usable.clone()
        if view.image.shape[-1] == 4:
            content &= view.image[..., 3].cpu() > 0
        if view.mask is not None:
            content &= view.mask.cpu()
        pixels = (content if content.any() else usable).flatten().nonzero()[:, 0]
        pixels = pixels[torch.randint(len(pixels), (len(rows),), generator=generator)]
        distance = float((focus - camera.center.double()) @ camera.c2w[:, 2].double())
        distance = distance if distance > 0.05 * extent else extent
        depth = distance * (0.25 + 1.5 * torch.rand(len(rows), generator=generator).double())
        rays = directions.reshape(-1, 3)[pixels] @ camera.c2w[:, :3].double().T
        points[rows] = (camera.center.double() + rays * depth[:, None]).float()
        colors[rows] = view.image.cpu().reshape(-1, view.image.shape[-1])[pixels, :3]
    return points, colors


def focus_point(cameras: list[Camera]) -> Tensor:
    """[3] float64 place with the least sum of squared distances to the optical axes."""
    centers = torch.stack([camera.center for camera in cameras]).double()
    axes = torch.stack([camera.c2w[:, 2] for camera in cameras]).double()
    across = torch.eye(3, dtype=torch.float64) - axes[:, :, None] * axes[:, None, :]
    # pinv: parallel axes leave the depth open, and the smallest step from the mean centre is taken.
    middle = centers.mean(0)
    right = (across @ (centers - middle)[:, :, None]).sum(0)[:, 0]
    return middle + torch.linalg.pinv(across.sum(0), rtol=1e-6) @ right
