"""Which device a command works on."""

from __future__ import annotations

from gart.errors import GartError

_FUNCTIONS = {
    "rt": ("trace_forward", "trace_backward"),
    "tilegs": ("tilegs_project", "tilegs_intersect", "tilegs_composite"),
}


def choose_device(device: str, mode: str = "rt") -> str:
    """`cpu` or `cuda` for the --device value; `auto` takes CUDA where `mode` can work on it.

    Raises:
        GartError: `cuda` was asked for and cannot work here.
    """
    if device == "cpu":
        return "cpu"
    obstacle = _cuda_obstacle(mode)
    if obstacle is None:
        return "cuda"
    if device == "cuda":
        raise GartError(f"--device cuda is not possible: {obstacle}, or use --device cpu")
    return "cpu"


def _cuda_obstacle(mode: str) -> str | None:
    """Why CUDA cannot work here and what to do about it; None when it can."""
    import torch

    from gart.native import library, library_path

    if library_path("cuda") is None:
        return (
            "gart was installed without its CUDA library; "
            "reinstall it with GART_CUDA=ON where nvcc is on the PATH"
        )
    if not torch.cuda.is_available():
        return (
            f"PyTorch {torch.__version__} sees no CUDA GPU; "
            "install a CUDA build of PyTorch and check nvidia-smi"
        )
    if not all(library("cuda").implements_function(name) for name in _FUNCTIONS[mode]):
        return f"the CUDA library {library_path('cuda')} lacks --mode {mode}; update gart"
    return None
