import subprocess
import sys
from typing import get_args

import pytest

import gart as package
from gart.cli.options import Backward
from gart.datasets.names import scene_names
from gart.tracing import BACKWARD_MODES

COMMANDS = ["train", "render", "eval", "profile", "doctor"]
PROBE = """
import sys
from gart.cli.app import run
code = run(sys.argv[1:])
heavy = {"torch", "nerfbaselines", "cv2", "numpy", "rich", "pydantic"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else code)
"""


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_imports_nothing_slow(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *command, "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: {' '.join(['gart', *command])} [OPTIONS]")


def test_no_arguments_show_the_help(gart):
    code, out, _ = gart()
    assert code == 0
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_train_help_lists_every_scene(gart):
    _, out, _ = gart("train", "--help")
    words = set(out.replace(",", " ").replace(":", " ").split())
    for dataset, scenes in scene_names().items():
        assert words.issuperset([dataset, *scenes])
    assert "demo" in words


def test_options_are_those_of_the_design(gart):
    options = {
        "train": "--out --config --set --iterations --budget --backward --tracer --downscale "
        "--device --seed --resume --overwrite",
        "render": "--mode --tracer --split --trajectory --frames --fps --width --height --fov "
        "--lens --extent --aperture --focus --samples --rolling-shutter --outputs --output",
        "eval": "--mode --tracer --metrics --protocol --exposure --json --table --report",
        "profile": "--iterations --backward --mode --json",
        "doctor": "--json",
    }
    for command, expected in options.items():
        _, out, _ = gart(command, "--help")
        listed = [line.split()[0] for line in out.splitlines() if line.startswith("  --")]
        assert listed == [*expected.split(), "--help"]


def test_version(gart):
    assert gart("--version") == (0, f"gart {package.__version__}\n", "")


def test_the_backward_modes_are_the_tracers():
    assert get_args(Backward) == BACKWARD_MODES  # written twice: help must not import the tracer
