"""The native libraries: loaded on first use, torch tensors in and out without copies.

The C++ library is always there; the CUDA library only where it was built. Both export the same
names, so callers write `library(device).trace_forward(...)`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from gart.errors import LibraryError

REINSTALL = "reinstall gart with pip install ."
REBUILD = "reinstall gart with GART_CUDA=ON pip install . where nvcc is on the PATH"
_REPAIRS = {"cpu": REINSTALL, "cuda": REBUILD}


def library_path(backend: str) -> Path | None:
    """Path of the library for `backend` ("cpu" or "cuda"), or None where it was not built."""
    for folder in __path__:
        for suffix in ("so", "dylib"):
            path = Path(folder) / f"libgart_{backend}.{suffix}"
            if path.exists():
                return path
    return None


@lru_cache(maxsize=2)
def _load(backend: str) -> Any:
    import tvm_ffi

    path = library_path(backend)
    if path is None:
        found = f"gart's {backend} library is not installed in {__path__[0]}"
        raise LibraryError(found, _REPAIRS[backend])
    require_whole(backend, path)
    try:
        return tvm_ffi.load_module(str(path))
    except Exception as error:
        raise does_not_load(backend, path, str(error)) from error


def does_not_load(backend: str, path: Path, reason: str) -> LibraryError:
    """The error for a library that is there: the file, why, and what to do."""
    reason = " ".join(reason.rpartition(f"{path} ")[2].removeprefix(f"{path}: ").split())
    return LibraryError(f"{path} does not load ({reason})", _REPAIRS[backend])


def require_whole(backend: str, path: Path) -> None:
    """Refuse an ELF file that was cut off: loading it would end Python with SIGBUS.

    Raises:
        LibraryError: the file is shorter than its header says.
    """
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return  # the loader says what that is
    order = "<" if header[5] == 1 else ">"
    (sections,) = struct.unpack_from(f"{order}Q", header, 0x28)  # e_shoff: the last part of a file
    size, count = struct.unpack_from(f"{order}HH", header, 0x3A)
    length, whole = path.stat().st_size, sections + size * count
    if length < whole:
        reason = f"the file is cut off after {length} of {whole} bytes"
        raise does_not_load(backend, path, reason)


def library(device: torch.device | str) -> Any:
    """The native library that works on `device`'s tensors.

    Raises:
        LibraryError: the library was not built, or does not load.
        ValueError: a device that is neither the CPU nor CUDA.
    """
    backend = torch.device(device).type
    if backend not in ("cpu", "cuda"):
        raise ValueError(f"tensors are on device {device}; gart works on cpu and cuda")
    return _load(backend)


@lru_cache(maxsize=1)
def constants() -> dict[str, float]:
    """Defaults of the rendering model, from csrc/common/constants.h."""
    return {str(name): float(value) for name, value in _load("cpu").constants().items()}


def architectures() -> list[str]:
    """Compute capabilities, such as "9.0", that the CUDA library was compiled for.

    Raises:
        LibraryError: as `library`.
    """
    found = (int(value) // 10 for value in _load("cuda").architectures())  # 900 for 9.0
    return [f"{number // 10}.{number % 10}" for number in found]


def require_gpu_code() -> None:
    """Make sure that the CUDA library has code that torch's current GPU and its driver take.

    Raises:
        LibraryError: it has none, or the driver is too old; or as `library`.
        RuntimeError: the GPU cannot be asked, for example because its memory is full.
    """
    reason = str(_load("cuda").missing_code(torch.cuda.current_device()))
    if not reason:
        return
    path = library_path("cuda")
    if "driver version" in reason:
        raise LibraryError(
            f"{path} cannot use the GPU ({reason})",
            "update the NVIDIA driver, or build gart with an older CUDA toolkit",
        )
    major, minor = torch.cuda.get_device_capability()
    raise LibraryError(
        f"{path} is built for compute capability {', '.join(architectures())} and holds no code "
        f"for this GPU's {major}.{minor} ({reason})",
        f"reinstall gart with GART_CUDA=ON CUDAARCHS={major}{minor} pip install .",
    )
