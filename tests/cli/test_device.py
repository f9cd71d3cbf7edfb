from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gart import native
from gart.cli.device import choose_device
from gart.errors import GartError, LibraryError

NO_CODE = "no kernel image is available for execution on the device"
OBSTACLE = (
    "/lib/libgart_cuda.so is built for compute capability 8.0, 9.0 and holds no code for this "
    f"GPU's 12.0 ({NO_CODE}); reinstall gart with GART_CUDA=ON CUDAARCHS=120 pip install ."
)


@pytest.fixture
def library(monkeypatch):
    """A CUDA library on a machine with a GPU, as the driver sees it."""
    found = SimpleNamespace(
        missing="", functions={"trace_forward", "trace_backward", "tilegs_render"}, error=None
    )

    def load(backend):
        if found.error:
            raise found.error
        return SimpleNamespace(
            architectures=lambda: [800, 900],
            missing_code=lambda device: found.missing,
            implements_function=found.functions.__contains__,
        )

    monkeypatch.setattr(native, "_load", load)
    monkeypatch.setattr(native, "library_path", lambda backend: Path(f"/lib/libgart_{backend}.so"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 0))
    return found


@pytest.mark.parametrize("mode", ["rt", "tilegs"])
def test_the_gpu_is_used_where_it_can_be(library, capsys, mode):
    assert choose_device("auto", mode) == choose_device("cuda", mode) == "cuda"
    assert choose_device("cpu", mode) == "cpu"
    assert capsys.readouterr() == ("", "")


def falls_back(capsys, obstacle, mode="rt"):
    assert choose_device("auto", mode) == "cpu"
    said = f"working on the CPU, as the GPU cannot be used: {obstacle}\n"
    assert capsys.readouterr() == ("", said)
    with pytest.raises(GartError) as refused:
        choose_device("cuda", mode)
    assert str(refused.value) == (f"--device cuda is not possible: {obstacle}, or use --device cpu")


def test_a_gpu_that_the_library_has_no_code_for(library, capsys):
    library.missing = NO_CODE
    falls_back(capsys, OBSTACLE)


def test_a_library_that_does_not_load(library, capsys):
    library.error = LibraryError("x.so does not load (bad ELF)", "reinstall it")
    falls_back(capsys, "x.so does not load (bad ELF); reinstall it")


def test_a_library_that_lacks_the_mode(library, capsys):
    library.functions = {"trace_forward", "trace_backward"}
    obstacle = "the CUDA library /lib/libgart_cuda.so lacks --mode tilegs; update gart"
    falls_back(capsys, obstacle, "tilegs")
    assert choose_device("auto", "rt") == "cuda"


def test_nothing_is_said_where_no_gpu_is(library, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    assert capsys.readouterr() == ("", "")


def test_a_full_gpu_does_not_train_on_the_cpu(library, monkeypatch):
    def full(device):
        raise RuntimeError("CUDA: out of memory")

    monkeypatch.setattr(native, "_load", lambda backend: SimpleNamespace(missing_code=full))
    with pytest.raises(RuntimeError, match="out of memory"):
        choose_device("auto")
