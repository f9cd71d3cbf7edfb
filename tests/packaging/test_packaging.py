import re
import subprocess
import sys
from importlib.metadata import files, requires, version
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement

import gart

ROOT = Path(__file__).parents[2]
PROBE = """
import gart.cli, gart.datasets.names
from gart.native import constants, library_path
assert library_path("cpu") is not None
assert constants()["trace_tile"] == 8
"""


def lines_of(file):
    lines = (ROOT / file).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def normal(name):
    return name.lower().replace("_", "-")


def test_the_installed_packages_work_from_elsewhere(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_but_gart_is_installed_at_top_level():
    tops = {Path(file).parts[0] for file in files("gart3d") or []}
    strays = {
        top for top in tops if not re.match(r"gart$|gart3d-|_editable_|\.\.$|__pycache__$", top)
    }
    assert not strays


def test_version_is_written_once():
    assert version("gart3d") == gart.__version__


def test_every_requirement_is_pinned_within_its_range():
    for python in ("3.10", "3.11", "3.12"):
        environment = {**default_environment(), "python_version": python}
        pins = {
            normal(pin.name): str(pin.specifier).removeprefix("==")
            for pin in lines_of("constraints.txt")
            if pin.marker is None or pin.marker.evaluate(environment)
        }
        for requirement in map(Requirement, requires("gart3d") or []):
            assert requirement.specifier.contains(pins[normal(requirement.name)]), requirement


def test_test_tools_are_no_runtime_requirement():
    runtime = [r for r in map(Requirement, requires("gart3d") or []) if r.marker is None]
    assert {normal(r.name) for r in runtime} == {
        "apache-tvm-ffi",
        "nerfbaselines",
        "numpy",
        "opencv-python",
        "plyfile",
        "pyyaml",
        "rich",
        "safetensors",
        "scipy",
        "torch",
        "typer",
    }
