"""The GPU's walk of a warp's rays together, run on the CPU: each finds what it finds alone."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scenes import HARD_SCENES, camera, layers, random_gaussians
from torch import Tensor

from gart.scene import Gaussians
from gart.tracing import Bvh, TraceSettings, camera_rays

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
SOURCES = Path(__file__).parents[2] / "csrc"

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux" or not SOURCES.is_dir(),
    reason="needs Linux, a C++ compiler and csrc",
)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("warp") / "packets"
    source = Path(__file__).parent / "packets.cpp"
    flags = ["-O2", "-std=c++17", "-Wall", "-Wno-unknown-pragmas", "-Werror", f"-I{SOURCES}"]
    # Fortified jumps refuse to change stacks; contraction may differ between two inlinings.
    flags += ["-U_FORTIFY_SOURCE", "-ffp-contract=off"]
    subprocess.run([COMPILER, *flags, str(source), "-o", str(built)], check=True)
    return built


def together(
    program: Path, folder: Path, scene: Gaussians, origins: Tensor, directions: Tensor
) -> tuple[int, int]:
    """Hits of the rays [H, W, 3] that were in packets, and how many warps were: 8 x 4 of them."""
    order, ellipsoids, nodes = Bvh(scene).native()[:3]
    settings = TraceSettings()
    model = [math.log2(settings.alpha_min), settings.alpha_max, settings.transmittance_min, 0.01]
    arrays = {
        "order": order.numpy(),
        "ellipsoids": ellipsoids.numpy(),
        "nodes": nodes.numpy(),
        "origins": warps(origins),
        "directions": warps(directions),
        "model": np.array(model, np.float32),
    }
    for name, array in arrays.items():
        array.tofile(folder / name)
    run = subprocess.run([program, folder], check=True, capture_output=True, text=True)
    packets, rays, hits, others = map(int, run.stdout.split())
    assert others == 0, f"{others} of {rays} rays"
    return hits, packets


def warps(rays: Tensor) -> np.ndarray:
    """[warps, 32, 3]: 8 x 4 each, those beyond the image NaN."""
    height, width = rays.shape[0] + -rays.shape[0] % 4, rays.shape[1] + -rays.shape[1] % 8
    padded = torch.full((height, width, 3), torch.nan)
    padded[: rays.shape[0], : rays.shape[1]] = rays
    tiles = padded.reshape(height // 4, 4, width // 8, 8, 3).transpose(1, 2)
    return tiles.reshape(-1, 32, 3).contiguous().numpy()


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


def test_rays_apart_are_no_packet(program, tmp_path):
    origins, directions = camera_rays(camera(32, 24, fov=40), "cpu")
    directions[::4] *= -1
    assert together(program, tmp_path, random_gaussians(50), origins, directions) == (0, 0)
    apart = origins + 3 * torch.arange(24)[:, None, None]
    assert together(program, tmp_path, random_gaussians(50), apart, directions) == (0, 0)
