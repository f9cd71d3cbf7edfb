"""Programs that run a warp's code on the CPU, and what they read."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from gart.scene import Gaussians
from gart.tracing import Bvh, TraceSettings

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
SOURCES = Path(__file__).parents[1] / "csrc"

needs_compiler = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux" or not SOURCES.is_dir(),
    reason="needs Linux, a C++ compiler and csrc",
)


def build(name: str, folder: Path) -> Path:
    source = Path(__file__).parent / "warp" / f"{name}.cpp"
    flags = ["-O2", "-std=c++17", "-Wall", "-Wno-unknown-pragmas", "-Werror", f"-I{SOURCES}"]
    # Fortified jumps refuse to change stacks; contraction may differ between two inlinings.
    flags += ["-U_FORTIFY_SOURCE", "-ffp-contract=off"]
    subprocess.run([COMPILER, *flags, str(source), "-o", str(folder / name)], check=True)
    return folder / name


def trace(
    program: Path,
    folder: Path,
    scene: Gaussians,
    origins: Tensor,
    directions: Tensor,
    t_min: float = 0.01,
) -> list[int]:
    """The numbers that the program prints for rays [R, 3], 32 a warp."""
    order, ellipsoids, nodes = Bvh(scene).native()[:3]
    settings = TraceSettings()
    model = [math.log2(settings.alpha_min), settings.alpha_max, settings.transmittance_min, t_min]
    arrays = {
        "order": order.numpy(),
        "ellipsoids": ellipsoids.numpy(),
        "nodes": nodes.numpy(),
        "origins": origins.numpy(),
        "directions": directions.numpy(),
        "model": np.array(model, np.float32),
    }
    for name, array in arrays.items():
        array.tofile(folder / name)
    run = subprocess.run([program, folder], check=True, capture_output=True, text=True)
    return [int(word) for word in run.stdout.split()]
