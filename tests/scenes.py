"""Scenes and cameras that tests share: small, seeded, made from nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gart.cameras import Camera, panorama_intrinsics
from gart.scene import Gaussians

IDENTITY = torch.eye(3, 4)


def random_gaussians(
    n: int,
    *,
    seed: int = 0,
    degree: int = 3,
    low: tuple[float, float, float] = (-2, -2, 2),
    high: tuple[float, float, float] = (2, 2, 6),
    scales: tuple[float, float] = (0.05, 0.4),
    logit: float = 0.0,
    pose: Tensor = IDENTITY,
) -> Gaussians:
    """N float32 Gaussians with means in the box `low` to `high` of the camera at `pose`."""
    random = torch.Generator().manual_seed(seed)
    low_log, high_log = math.log(scales[0]), math.log(scales[1])
    box_low, box_high = torch.tensor(low), torch.tensor(high)
    means = box_low + (box_high - box_low) * torch.rand(n, 3, generator=random)
    return Gaussians(
        means=means @ pose[:, :3].T + pose[:, 3],
        quats=torch.randn(n, 4, generator=random),
        log_scales=low_log + (high_log - low_log) * torch.rand(n, 3, generator=random),
        opacity_logits=logit + 1.5 * torch.randn(n, generator=random),
        sh=0.3 * torch.randn(n, (degree + 1) ** 2, 3, generator=random),
    )


def gaussian(
    mean: tuple[float, float, float],
    *,
    scales: tuple[float, float, float] = (0.3, 0.3, 0.3),
    quat: tuple[float, float, float, float] = (1, 0, 0, 0),
    logit: float = 0.0,
    color: tuple[float, float, float] = (0.8, 0.4, 0.1),
) -> Gaussians:
    """One float32 Gaussian of one colour."""
    return Gaussians(
        means=torch.tensor([mean], dtype=torch.float32),
        quats=torch.tensor([quat], dtype=torch.float32),
        log_scales=torch.tensor([scales], dtype=torch.float64).log().float(),
        opacity_logits=torch.tensor([logit], dtype=torch.float32),
        sh=(torch.tensor([[color]]) - 0.5) / math.sqrt(1 / (4 * math.pi)),
    )


def join(*scenes: Gaussians) -> Gaussians:
    """All Gaussians of scenes with equal SH degree, in order."""
    columns = zip(*(scene.tensors().values() for scene in scenes), strict=True)
    return Gaussians(*(torch.cat(column) for column in columns))


def random_pose(seed: int, distance: float = 0.0) -> Tensor:
    """A camera with a random rotation, `distance` from the origin: [3, 4] float32."""
    random = torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, generator=random, dtype=torch.float64))
    rotation *= torch.linalg.det(rotation).sign()
    center = torch.randn(3, generator=random, dtype=torch.float64)
    center *= distance / center.norm()
    return torch.cat([rotation, center[:, None]], 1).float()


def camera(
    width: int = 37,
    height: int = 23,
    *,
    fov: float = 60.0,
    shift: tuple[float, float] = (0.0, 0.0),
    pose: Tensor = IDENTITY,
    model: str = "pinhole",
    distortion: tuple[float, ...] = (),
) -> Camera:
    """A camera `fov` degrees wide, its principal point `shift` pixels off the image centre."""
    half = math.radians(fov) / 2
    focal = width / 2 / (half if model == "opencv_fisheye" else math.tan(half))
    return Camera(
        c2w=pose,
        fx=focal,
        fy=focal,
        cx=width / 2 + shift[0],
        cy=height / 2 + shift[1],
        width=width,
        height=height,
        model=model,
        distortion=distortion,
    )


def panorama(height: int, width: int | None = None, *, pose: Tensor = IDENTITY) -> Camera:
    """A camera that sees all directions, twice as wide as high unless `width` is given."""
    width = width or 2 * height
    intrinsics = panorama_intrinsics(width, height)
    return Camera(pose, *intrinsics, width, height, "equirectangular")


def orthographic(
    width: int = 37, height: int = 23, *, extent: float = 4.0, pose: Tensor = IDENTITY
) -> Camera:
    """A camera with parallel rays that sees `extent` scene units from side to side."""
    focal = width / extent
    return Camera(pose, focal, focal, width / 2, height / 2, width, height, "orthographic")


def layers(n: int = 320, *, seed: int = 0, pose: Tensor = IDENTITY) -> Gaussians:
    """N faint, large, tilted sheets stacked along the view: every ray meets most of them, and their
    order differs from pixel to pixel."""
    scene = random_gaussians(
        n,
        seed=seed,
        degree=1,
        low=(-0.5, -0.5, 3),
        high=(0.5, 0.5, 5),
        scales=(1.0, 1.5),
        pose=pose,
    )
    random = torch.Generator().manual_seed(seed + 1)
    scene.log_scales[:, 2] = math.log(0.02)
    tilt = torch.nn.functional.normalize(torch.randn(n, 2, generator=random), dim=1)
    half = (0.3 + 0.4 * torch.rand(n, generator=random)) / 2
    scene.quats = torch.cat([half.cos()[:, None], half.sin()[:, None] * tilt, torch.zeros(n, 1)], 1)
    scene.opacity_logits = torch.full((n,), math.log(0.015 / 0.985))
    return scene


def shaped(scales: tuple[float, float, float], n: int = 60, seed: int = 0) -> Gaussians:
    """A cloud of Gaussians of one shape."""
    scene = random_gaussians(n, seed=seed)
    scene.log_scales[:] = torch.tensor(scales, dtype=torch.float64).log().float()
    return scene


def shell(n: int, *, seed: int = 0, pose: Tensor = IDENTITY) -> Gaussians:
    """Gaussians all around the camera at `pose`, none close to it."""
    random = torch.Generator().manual_seed(seed)
    scene = random_gaussians(n, seed=seed, scales=(0.05, 0.25))
    away = torch.nn.functional.normalize(torch.randn(n, 3, generator=random), dim=1)
    away = away * (1.5 + 2 * torch.rand(n, 1, generator=random))
    scene.means = away @ pose[:, :3].T + pose[:, 3]
    return scene


OPENCV = (-0.21, 0.06, 0.004, -0.003)
FULL_OPENCV = (0.12, -0.05, 0.002, 0.003, 0.01, 0.08, 0.02, 0.004)
FISHEYE = (0.02, -0.004, 0.001, -0.0002)
FAR = 1000.0

HARD_SCENES: dict[str, Callable[[], tuple[Gaussians, Camera]]] = {
    "one": lambda: (gaussian((0.1, -0.2, 3), scales=(0.5, 0.2, 0.1), quat=(3, 1, -2, 1)), camera()),
    "ten thousand": lambda: (
        random_gaussians(10_000, degree=1, scales=(0.005, 0.05)),
        camera(21, 13),
    ),
    "needles": lambda: (shaped((1, 1e-3, 1e-3), n=1500), camera()),
    "flat": lambda: (shaped((0.3, 0.3, 1e-6)), camera()),
    "around the camera": lambda: (
        join(
            random_gaussians(40, degree=0),
            gaussian((0.2, -0.1, 0.3), scales=(2, 1, 1.5), quat=(2, 1, 0, 1)),
        ),
        camera(),
    ),
    "across the camera plane": lambda: (
        join(
            random_gaussians(40, degree=0),
            gaussian((0.4, 0.1, 0.5), scales=(0.1, 0.15, 1), quat=(9, 1, -1, 0)),
            gaussian((0, 0.4, 0.2), scales=(1, 0.1, 0.5), quat=(9, 1, -1, 0), logit=2),
        ),
        camera(),
    ),
    "all around": lambda: (
        random_gaussians(60, low=(-2, -2, -2), high=(2, 2, 2), scales=(0.2, 1), logit=-1),
        camera(),
    ),
    "twins": lambda: (
        join(*(random_gaussians(30, seed=s // 2) for s in (0, 2, 1, 3, 0))),
        camera(),
    ),
    "opaque": lambda: (
        join(random_gaussians(40, degree=0), gaussian((0, 0, 3), logit=math.inf)),
        camera(),
    ),
    "huge": lambda: (random_gaussians(30, scales=(1e3, 1e4), logit=-2), camera()),
    "layers": lambda: (layers(), camera(fov=40)),
    "one pixel": lambda: (random_gaussians(80, scales=(0.3, 1)), camera(1, 1)),
    "seven by five": lambda: (random_gaussians(80), camera(7, 5)),
    "one row": lambda: (random_gaussians(80), camera(65, 1)),
    "wide angle": lambda: (
        random_gaussians(300, low=(-9, -6, 0.3), high=(9, 6, 4)),
        camera(fov=150),
    ),
    "principal point": lambda: (random_gaussians(80), camera(shift=(11.3, -7.6))),
    "principal point outside": lambda: (random_gaussians(80), camera(shift=(-30, 2))),
    "posed": lambda: (
        random_gaussians(80, pose=random_pose(3, 5)),
        camera(pose=random_pose(3, 5)),
    ),
    "far from the origin": lambda: (
        random_gaussians(80, pose=random_pose(5, FAR)),
        camera(pose=random_pose(5, FAR)),
    ),
    "opencv": lambda: (random_gaussians(80), camera(model="opencv", distortion=OPENCV)),
    "full_opencv": lambda: (
        random_gaussians(80, pose=random_pose(7, 2)),
        camera(pose=random_pose(7, 2), model="full_opencv", distortion=FULL_OPENCV),
    ),
    "fisheye": lambda: (
        shell(150, pose=random_pose(8, 2)),
        camera(44, 44, fov=180, pose=random_pose(8, 2), model="opencv_fisheye"),
    ),
    "fisheye beyond 180 degrees": lambda: (
        shell(150),
        camera(53, 45, fov=260, model="opencv_fisheye", distortion=FISHEYE),
    ),
    "panorama": lambda: (
        shell(150, seed=1, pose=random_pose(8, 2)),
        panorama(40, pose=random_pose(8, 2)),
    ),
}
"""Name -> scene and camera: shapes, places and lenses that break careless maths."""

HARD_LIMITS: dict[str, dict[str, float]] = {
    # Needles thinner than a thousandth of their distance: float32 pixel coordinates show.
    "needles": {"alpha_band": 1e-3, "doubtful": 0.01},
    "huge": {"doubtful": 0.005},
    # 300 peaks along each ray: some pairs are closer than float32 can tell.
    "layers": {"doubtful": 0.2},
}
"""Name -> what of `oracle.Limits` a hard scene needs; all others agree strictly."""
