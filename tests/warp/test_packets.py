"""The GPU's walk of a warp's rays together, run on the CPU: each finds what it finds alone."""

import math
from pathlib import Path

import pytest
import torch
from scenes import HARD_SCENES, camera, layers, random_gaussians, random_pose, shaped
from torch import Tensor
from warp_programs import build, needs_compiler, trace

from gart.scene import Gaussians
from gart.tracing import camera_rays

pytestmark = needs_compiler


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("packets", tmp_path_factory.mktemp("warp"))


def together(
    program: Path,
    folder: Path,
    scene: Gaussians,
    origins: Tensor,
    directions: Tensor,
    t_min: float = 0.01,
) -> tuple[int, int]:
    """Hits of the rays [H, W, 3] that were in packets, and how many warps were: 8 x 4 of them."""
    packets, rays, hits, others = trace(
        program, folder, scene, warps(origins), warps(directions), t_min
    )
    assert others == 0, f"{others} of {rays} rays"
    return hits, packets


def warps(rays: Tensor) -> Tensor:
    """[warps, 32, 3]: 8 x 4 each, those beyond the image NaN."""
    height, width = rays.shape[0] + -rays.shape[0] % 4, rays.shape[1] + -rays.shape[1] % 8
    padded = torch.full((height, width, 3), torch.nan)
    padded[: rays.shape[0], : rays.shape[1]] = rays
    tiles = padded.reshape(height // 4, 4, width // 8, 8, 3).transpose(1, 2)
    return tiles.reshape(-1, 32, 3).contiguous()


@pytest.mark.parametrize("name", HARD_SCENES)
def test_hard_scenes(program, tmp_path, name):
    scene, view = HARD_SCENES[name]()
    together(program, tmp_path, scene, *camera_rays(view, "cpu"))


@pytest.mark.parametrize("count", [0, 1, 2, 5, 3000])
def test_random_scenes(program, tmp_path, count):
    rays = camera_rays(camera(51, 37, fov=60), "cpu")
    hits, packets = together(program, tmp_path, random_gaussians(count), *rays)
    assert packets == 70
    assert (hits > 1000) == (count > 100)


def test_many_walks(program, tmp_path):
    rays = camera_rays(camera(16, 8, fov=20), "cpu")
    hits, packets = together(program, tmp_path, layers(500), *rays)
    assert packets == 4
    assert hits > 100 * 16 * 8


def test_origins_that_differ_and_rays_across_the_axes(program, tmp_path):
    random = torch.Generator().manual_seed(0)
    scene = random_gaussians(2000, low=(-3, -3, -3), high=(3, 3, 3))
    origins, directions = camera_rays(camera(32, 24, fov=40), "cpu")
    near = origins + 0.01 * torch.randn(origins.shape, generator=random)
    assert together(program, tmp_path, scene, near, directions)[1] == 24
    assert together(program, tmp_path, scene, near, -3 * directions)[1] == 24
    for axis in range(3):
        along = torch.zeros_like(directions)
        along[..., axis] = 1 - 2 * (axis % 2)
        assert together(program, tmp_path, scene, near, along)[1] == 24


@pytest.mark.parametrize("axis", range(3))
def test_directions_around_an_axis(program, tmp_path, axis):
    """Signs change within a warp, at 0, -0 and what is too short to divide by."""
    scene = random_gaussians(2000, low=(-3, -3, -3), high=(3, 3, 3), scales=(0.01, 0.2))
    origins = torch.zeros(24, 32, 3)
    small = torch.tensor([1e-2, 1e-7, 1e-35, 0.0])
    small = torch.cat([-small, small.flip(0)]).repeat(4)
    directions = torch.empty_like(origins)
    directions[..., axis] = -0.5
    directions[..., (axis + 1) % 3] = small
    directions[..., (axis + 2) % 3] = small[:24, None]
    origins[..., axis] = 0.1 * small[:24, None]
    for t_min in (-math.inf, 0.01, 2.0):
        hits, packets = together(program, tmp_path, scene, origins, directions, t_min)
        assert packets == 24
        assert hits > 100


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("shape", [(0.3, 0.3, 1e-6), (0.01, 0.3, 1e-6), (0.1, 0.1, 0.1)])
def test_boxes_without_room(program, tmp_path, shape, offset):
    """Boxes as thin as float32 has them around hits, also where coordinates are coarse."""
    scene = shaped(shape, 2000)
    scene.quats[:] = torch.tensor([1.0, 0, 0, 0])
    scene.quats[::3] = torch.tensor([1.0, 1, 0, 0])
    scene.means += offset * torch.tensor([1.0, -1, 0.5])
    origins, directions = camera_rays(camera(32, 24, fov=20, pose=random_pose(4)), "cpu")
    origins = origins + offset * torch.tensor([1.0, -1, 0.5])
    towards = scene.means.mean(0) - origins[0, 0]
    turned = directions - directions.mean((0, 1)) + towards / towards.norm()
    for way in (1.0, -0.3):
        hits, packets = together(
            program, tmp_path, scene, origins, way * turned, 1.5 if way > 0 else -math.inf
        )
        assert packets == 24
        assert hits > 100


def test_rays_apart_are_no_packet(program, tmp_path):
    origins, directions = camera_rays(camera(32, 24, fov=40), "cpu")
    directions[::4] *= -1
    assert together(program, tmp_path, random_gaussians(50), origins, directions) == (0, 0)
    apart = origins + 3 * torch.arange(24)[:, None, None]
    assert together(program, tmp_path, random_gaussians(50), apart, directions) == (0, 0)
