"""The GPU's walk of rays by groups of lanes, run on the CPU: each finds what it finds alone."""

from pathlib import Path

import pytest
import torch
from scenes import HARD_SCENES, camera, gaussian, join, layers, random_gaussians
from torch import Tensor
from warp_programs import build, needs_compiler, trace

from gart.scene import Gaussians
from gart.tracing import camera_rays

pytestmark = needs_compiler


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("groups", tmp_path_factory.mktemp("warp"))


def hits(program: Path, folder: Path, scene: Gaussians, origins: Tensor, directions: Tensor) -> int:
    rays = (origins.reshape(-1, 3).contiguous(), directions.reshape(-1, 3).contiguous())
    count, found, others = trace(program, folder, scene, *rays)
    assert count == -(-len(rays[0]) // 32) * 32
    assert others == 0, f"{others} of {count} rays"
    return found


def anywhere(count: int, low: float, high: float) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    origins = low + (high - low) * torch.rand(count, 3, generator=random)
    return origins, torch.randn(count, 3, generator=random)


@pytest.mark.parametrize("name", HARD_SCENES)
def test_hard_scenes(program, tmp_path, name):
    scene, view = HARD_SCENES[name]()
    hits(program, tmp_path, scene, *camera_rays(view, "cpu"))


@pytest.mark.parametrize("count", [0, 1, 2, 5, 3000])
def test_rays_from_anywhere(program, tmp_path, count):
    scene = random_gaussians(count, low=(-2, -2, -2), high=(2, 2, 2))
    found = hits(program, tmp_path, scene, *anywhere(1000, -2, 2))
    assert (found > 10_000) == (count > 100)


def test_many_walks(program, tmp_path):
    rays = camera_rays(camera(16, 8, fov=20), "cpu")
    assert hits(program, tmp_path, layers(500), *rays) > 100 * 16 * 8


def test_rays_that_are_none_or_miss_everything(program, tmp_path):
    scene = random_gaussians(2000, low=(-2, -2, -2), high=(2, 2, 2))
    origins, directions = anywhere(203, -2, 2)
    directions[::3] = torch.nan
    directions[1::6] = 0
    origins[::5] += 100
    assert hits(program, tmp_path, scene, origins, directions) > 1000
    assert hits(program, tmp_path, scene, origins + 100, directions.abs()) == 0


def test_rays_across_the_axes(program, tmp_path):
    scene = random_gaussians(2000, low=(-2, -2, -2), high=(2, 2, 2))
    origins, _ = anywhere(192, -2, 2)
    axes = torch.cat([torch.eye(3), -torch.eye(3)]).repeat(32, 1)
    assert hits(program, tmp_path, scene, origins, axes) > 1000


def test_gaussians_as_far_as_each_other(program, tmp_path):
    """More of them than a walk keeps, faint and not."""
    for logit in (-4.5, -2.0, 3.0):
        one = gaussian((0.1, -0.2, 3), quat=(3, 1, -2, 1), logit=logit)
        other = gaussian((0.1, -0.2, 4), quat=(1, 1, -2, 1), logit=logit)
        scene = join(*[one] * 70, *[other] * 50)
        origins = torch.zeros(100, 3)
        directions = torch.tensor([0.1, -0.2, 3]) + 0.1 * anywhere(100, 0, 1)[1]
        assert hits(program, tmp_path, scene, origins, directions) > 100
