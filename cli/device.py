"""Which device a command works on."""

from __future__ import annotations

import sys

from gart.errors import GartError, LibraryError

_FUNCTIONS = {"rt": ("trace_forward", "trace_backward"), "tilegs": ("tilegs_render",)}


def choose_device(device: str, mode: str = "rt") -> str:
    """`cpu` or `cuda` for the --device value; `auto` takes CUDA where `mode` can work on it, and
    says so where a GPU is there that it cannot work on.

    Raises:
        GartError: `cuda` was asked for and cannot work here.
    """
    if device == "cpu":
        return "cpu"
    import torch

    obstacle = _cuda_obstacle(mode)
    if obstacle is None:
        return "cuda"
    if device == "cuda":
        raise GartError(f"--device cuda is not possible: {obstacle}, or use --device cpu")
    if torch.cuda.is_available():
        print(f"working on the CPU, as the GPU cannot be used: {obstacle}", file=sys.stderr)
    return "cpu"


def _cuda_obstacle(mode: str) -> str | None:
    """Why CUDA cannot work here and what to do about it; None when it can."""
    import torch

    from gart.native import REBUILD, library, library_path, require_gpu_code

    if library_path("cuda") is None:
        return f"gart was installed without its CUDA library; {REBUILD}"
    if not torch.cuda.is_available():
        return (
            f"PyTorch {torch.__version__} sees no CUDA GPU; "
            "install a CUDA build of PyTorch and check nvidia-smi"
        )
    try:
        require_gpu_code()
    except LibraryError as error:
        return str(error)
    if not all(library("cuda").implements_function(name) for name in _FUNCTIONS[mode]):
        return f"the CUDA library {library_path('cuda')} lacks --mode {mode}; update gart"
    return None
