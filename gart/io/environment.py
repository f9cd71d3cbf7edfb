"""What a run was made with: versions, commit, GPU and driver."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def environment(device: torch.device | str) -> dict[str, str | None]:
    """Versions, git commit (None outside a checkout), device, GPU and driver (None on CPU)."""
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    return {
        "version": _version(),
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if on_gpu else None,
        "driver": driver_version() if on_gpu else None,
    }


def _version() -> str | None:
    try:
        return version("gart3d")
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    here = Path(__file__)
    # A wheel inside someone else's checkout must not report their commit.
    if _output("git", "-C", str(here.parent), "ls-files", "--error-unmatch", here.name) is None:
        return None
    describe = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return _output("git", "-C", str(here.parent), *describe)


def driver_version() -> str | None:
    """The NVIDIA driver's version as nvidia-smi tells it, None where there is none."""
    text = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return text.splitlines()[0] if text else None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
