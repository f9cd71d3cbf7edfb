import pytest

from gart import native
from gart.errors import LibraryError

WHOLE = native.library_path("cpu")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Where the libraries lie, empty, and what is loaded forgotten."""
    monkeypatch.setattr(native, "__path__", [str(tmp_path)])
    native._load.cache_clear()
    yield tmp_path
    native._load.cache_clear()


def refused(backend):
    with pytest.raises(LibraryError) as error:
        native.library(backend)
    assert str(error.value) == f"{error.value.found}; {error.value.mend}"
    return error.value.found, error.value.mend


def test_an_absent_library(installed):
    assert refused("cpu") == (
        f"gart's cpu library is not installed in {installed}",
        "reinstall gart with pip install .",
    )
    assert refused("cuda") == (
        f"gart's cuda library is not installed in {installed}",
        "reinstall gart with GART_CUDA=ON pip install . where nvcc is on the PATH",
    )


@pytest.mark.parametrize("part", [0.01, 0.5, 0.9999])
def test_a_library_that_was_cut_off_does_not_end_python(installed, part):
    whole = WHOLE.read_bytes()
    kept = int(part * len(whole))
    file = installed / "libgart_cpu.so"
    file.write_bytes(whole[:kept])
    assert refused("cpu") == (
        f"{file} does not load (the file is cut off after {kept} of {len(whole)} bytes)",
        "reinstall gart with pip install .",
    )


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "file too short"), (b"x" * 200, "invalid ELF header")]
)
def test_the_loader_says_why(installed, content, reason):
    file = installed / "libgart_cuda.so"
    file.write_bytes(content)
    assert refused("cuda") == (f"{file} does not load ({reason})", native.REBUILD)


def test_a_whole_library_loads(installed):
    (installed / "libgart_cpu.so").write_bytes(WHOLE.read_bytes())
    assert native.library("cpu").implements_function("trace_forward")
