"""What gart needs from this installation and machine, checked one thing at a time.

Imports nothing outside the standard library by itself: a broken package is a finding, not a crash.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import gart
from gart.errors import GartError, LibraryError

REINSTALL = "reinstall gart with pip install ."

PROBE = """
import sys
sys.modules["torch"] = None  # takes seconds to import, and is not needed for this
import tvm_ffi
tvm_ffi.load_module(sys.argv[1]).constants()
"""
"""Loads a library in a process of its own."""
PROBE_SECONDS = 60

LEAST_MEMORY = 2e9
LEAST_DISK = 2e9
LEAST_CACHE_DISK = 2e9
"""Bytes below which a warning is given: a small scene in training, a run with its checkpoints, and
a downloaded scene (only its own files are taken from an archive)."""


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        name: what was looked at.
        value: what was found.
        status: `problem` keeps gart from working; `warning` keeps it from a part of its work.
        mend: what to do about it; empty when all is well.
    """

    name: str
    value: str
    status: Literal["ok", "warning", "problem"] = "ok"
    mend: str = ""


def examine() -> list[Check]:
    """Every check, in the order to read them in. A check that itself fails is a problem."""
    packages = [package(name) for name in ("torch", "numpy", "nerfbaselines")]
    machine = [threads(), memory(), disk("disk for runs", Path.cwd() / "runs")]
    checks = [python(), gart_version(), *packages, *machine]
    if any(check.status == "problem" for check in packages):
        return checks  # the rest is made of these
    rest: dict[str, Callable[[], Check]] = {
        "GPU": gpu,
        "CPU library": cpu_library,
        "CUDA library": cuda_library,
        "dataset cache": dataset_cache,
        "LPIPS alex": lambda: lpips_weights("alex"),
        "LPIPS vgg": lambda: lpips_weights("vgg"),
    }
    return checks + [_guarded(name, check) for name, check in rest.items()]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except LibraryError as error:
        return Check(name, error.found, "problem", error.mend)
    except Exception as error:
        return Check(name, _reason(error), "problem", REINSTALL)


def python() -> Check:
    """The interpreter."""
    return Check("Python", f"{platform.python_version()} on {platform.platform()}")


def gart_version() -> Check:
    """gart and where it lies."""
    return Check("gart", f"{gart.__version__} in {Path(gart.__file__).parent}")


def package(name: str) -> Check:
    """A package that gart cannot do without: its version, and that it imports."""
    try:
        module = import_module(name)
        value = version(name)
    except Exception as error:  # a broken binary raises whatever it likes
        return Check(name, _reason(error), "problem", f"pip install --force-reinstall {name}")
    if name == "torch":
        cuda = module.version.cuda
        value = f"{module.__version__}, " + (f"built for CUDA {cuda}" if cuda else "built for CPU")
    return Check(name, value)


def gpu() -> Check:
    """The driver and the GPUs that torch can use."""
    import torch

    from gart.io.environment import driver_version

    driver = driver_version()
    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        described = [
            f"{card.name}, {_gb(card.total_memory)}, compute capability {card.major}.{card.minor}"
            for card in cards
        ]
        return Check("GPU", "; ".join([*described, f"driver {driver or 'unknown'}"]))
    if driver is None:
        return Check("GPU", "no NVIDIA driver; gart works on the CPU")
    if torch.version.cuda is None:
        mend = "install a CUDA build of PyTorch"
    else:
        mend = f"update the driver to one that serves CUDA {torch.version.cuda}, see nvidia-smi"
    return Check("GPU", f"driver {driver}, but PyTorch sees no GPU", "warning", mend)


def cpu_library() -> Check:
    """The C++ library, without which nothing works."""
    from gart import native

    path = native.library_path("cpu")
    if path is not None:
        _load_apart("cpu", path)
    native.library("cpu").constants()
    return Check("CPU library", f"loads from {path}")


def cuda_library() -> Check:
    """The CUDA library: present, loadable, as new as the C++ one, and able to use the GPU."""
    import torch

    from gart import native

    name, path = "CUDA library", native.library_path("cuda")
    has_gpu = torch.cuda.is_available()
    if path is None:
        return (
            Check(name, "not installed, so the GPU is not used", "warning", native.REBUILD)
            if has_gpu
            else Check(name, "not installed; needed on NVIDIA GPUs only")
        )
    _load_apart("cuda", path)
    found = {str(key): float(value) for key, value in native.library("cuda").constants().items()}
    if found != native.constants():
        value = f"{path} was built from other sources than the CPU library"
        return Check(name, value, "problem", native.REBUILD)
    capabilities = ", ".join(native.architectures())
    value = f"loads from {path}, built for compute capability {capabilities}"
    if not has_gpu:
        return Check(name, f"{value}; unused, as there is no GPU for it")
    try:
        native.require_gpu_code()
        _trace_one("cuda")
    except RuntimeError as error:
        if "out of memory" not in str(error):
            return Check(name, f"{value}; {_reason(error)}", "problem", native.REBUILD)
        mend = "end other work on the GPU, and try again"
        return Check(name, f"{value}; {_reason(error)}", "warning", mend)
    major, minor = torch.cuda.get_device_capability()
    return Check(name, f"{value}; traces on {major}.{minor}")


def _load_apart(backend: str, path: Path) -> None:
    """Load a library in another process first: a damaged one can end the process that loads it.

    Raises:
        LibraryError: it ended or hung that process. An ordinary failure is left to the next load.
    """
    from gart.native import does_not_load, require_whole

    require_whole(backend, path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE, path], capture_output=True, timeout=PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise does_not_load(backend, path, f"no answer in {PROBE_SECONDS} seconds") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise does_not_load(backend, path, f"that ends Python with {name}, so it is damaged")


def _trace_one(device: str) -> None:
    import torch

    from gart.cameras import Camera
    from gart.scene import Gaussians
    from gart.tracing import trace

    gaussian = Gaussians(
        means=torch.tensor([[0.0, 0.0, 2.0]]),
        quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]]),
        log_scales=torch.full((1, 3), -1.0),
        opacity_logits=torch.zeros(1),
        sh=torch.zeros(1, 1, 3),
    )
    camera = Camera(torch.eye(3, 4), fx=8, fy=8, cx=4, cy=4, width=8, height=8)
    opacity = trace(gaussian.to(device), camera).opacity.max().item()
    if not 0.4 < opacity <= 0.5:  # what its logit of 0 gives on its axis, half a pixel away
        raise GartError(f"a Gaussian of opacity 0.5 was traced as {opacity:.3f}")


def threads() -> Check:
    """Processors that this process may use."""
    with suppress(AttributeError):
        return Check("CPU threads", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}")
    return Check("CPU threads", str(os.cpu_count()))


def memory() -> Check:
    """Main memory that is free, as Linux reckons it."""
    try:
        text = Path("/proc/meminfo").read_text()
        lines = dict(line.split(":", 1) for line in text.splitlines())
        free, total = (int(lines[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError):
        return Check("memory", "unknown")
    value = f"{_gb(free)} free of {_gb(total)}"
    if free < LEAST_MEMORY:
        return Check("memory", value, "warning", "end other programs, or train with --downscale")
    return Check("memory", value)


def disk(name: str, folder: Path, least: float = LEAST_DISK) -> Check:
    """Free space where `folder` is or would be made, and that it can be written."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    value = f"{_gb(free)} free in {folder}"
    if not os.access(there, os.W_OK):
        return Check(name, f"{there} cannot be written", "warning", "work in a folder of yours")
    if free < least:
        return Check(name, value, "warning", f"free {_gb(least)}, or use another disk")
    return Check(name, value)


def dataset_cache() -> Check:
    """Where named scenes are downloaded to."""
    from gart.datasets.downloads import cache_folder

    check = disk("dataset cache", cache_folder().absolute(), LEAST_CACHE_DISK)
    if check.mend:
        mend = "to download data sets elsewhere, set GART_DATA to a folder with space"
        return Check(check.name, check.value, check.status, mend)
    return check


def lpips_weights(net: Literal["alex", "vgg"]) -> Check:
    """The classifier's weights of one LPIPS network."""
    from gart.evaluation.lpips import WeightsMissingError, backbone_file

    name = f"LPIPS {net}"
    try:
        return Check(name, str(backbone_file(net)))
    except WeightsMissingError as error:
        return Check(name, "no weights; this metric is left out", "warning", str(error))


def _reason(error: Exception) -> str:
    """An error's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
