"""The native libraries: loaded on first use, torch tensors in and out without copies.

The C++ library is always there; the CUDA library only where it was built. Both export the tracer
under the same names, so callers write `library(device).trace_forward(...)`; only the C++ library
has the rasterizer (`tilegs_*`).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from gart.errors import GartError


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
        hint = {
            "cpu": "reinstall gart with `pip install .`",
            "cuda": "reinstall with GART_CUDA=ON and nvcc on the PATH, or use --device cpu",
        }[backend]
        raise GartError(f"gart's {backend} library is not installed in {__path__[0]}; {hint}")
    try:
        return tvm_ffi.load_module(str(path))
    except Exception as error:
        raise GartError(f"gart's {backend} library {path} does not load: {error}") from error


def library(device: torch.device | str) -> Any:
    """The native library that works on `device`'s tensors.

    Raises:
        GartError: the library was not built, or does not load.
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
