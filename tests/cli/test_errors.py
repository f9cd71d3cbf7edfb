import errno
import os
import subprocess
import sys

import pytest

from gart.cli.output import printable
from gart.errors import GartError


def fails(result, code, message):
    assert result == (code, "", f"error: {message}\n")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("zzz", "No such command 'zzz'; see gart --help"),
        ("train", "Missing argument 'SCENE'; see gart train --help"),
        ("train demo --zzz", "No such option: --zzz; see gart train --help"),
    ],
)
def test_wrong_usage(gart, line, message):
    fails(gart(*line.split()), 2, message)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train demo --backward x", ["--backward", "'x'", "primitive", "hybrid", "pixel"]),
        ("train demo --device gpu", ["--device", "'gpu'", "auto", "cuda", "cpu"]),
        ("train demo --downscale 0", ["--downscale", "1"]),
        ("train demo --iterations many", ["--iterations", "see gart train --help"]),
        ("train demo --iterations 0", ["iterations is", "0", "at least 1"]),
        ("train demo --set colour=red", ["'colour'", "--set"]),
        ("train demo --config nowhere.yaml", ["nowhere.yaml", "default, demo"]),
        ("train no-such-scene", ["no-such-scene"]),
        ("render --mode x", ["--mode", "'x'", "rt", "tilegs"]),
        ("render --split val", ["--split", "'val'", "test", "train", "all"]),
        ("eval --protocol x", ["--protocol", "'x'", "3dgs", "nerfbaselines"]),
        ("profile --iterations 0", ["--iterations", "1"]),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(gart, tmp_path, line, words):
    code, out, err = gart(*line.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert [word for word in words if word not in err] == []
    assert not any(tmp_path.iterdir())


def test_unknown_metric(gart, trained):
    message = "--metrics has 'psn'; expected some of psnr,ssim,lpips"
    fails(gart("eval", str(trained / "runs/demo"), "--metrics", "psn"), 2, message)


def test_what_can_be_neither_run_nor_scene(gart, tmp_path):
    (tmp_path / "notes.txt").touch()
    message = "notes.txt is no splat file that gart reads; expected a .ply"
    fails(gart("profile", "notes.txt"), 2, message)
    message = (
        "runs/demo is no run; runs under runs/: none; give one of them, a run folder or a .ply, "
        "or train the scene first: gart train SCENE"
    )
    fails(gart("profile", "runs/demo"), 2, message)


def test_a_misspelt_scene_is_not_taken_for_a_run(gart):
    for subject in ("gardn", "mipnerf360/gardn"):
        code, _, err = gart("profile", subject)
        assert code == 2
        assert f"scene '{subject}' is neither an existing folder nor a known name" in err
        assert "did you mean" in err


def test_no_run_at_all(gart):
    message = "there is no run under runs/; train one first: gart train demo"
    for command in ("render", "eval", "profile"):
        fails(gart(command), 2, message)


def test_missing_splat_file(gart):
    for command in ("render", "eval", "profile"):
        fails(gart(command, "gone.ply"), 2, "splat file gone.ply does not exist")


def test_splat_file_has_no_photographs(gart, trained):
    path = trained / "runs/demo/point_cloud.ply"
    message = (
        f"{path} is a splat file and has no photographs; "
        "give a run folder, or cameras with gart render --trajectory FILE"
    )
    fails(gart("eval", str(path)), 2, message)
    fails(gart("render", str(path)), 2, message)


def test_an_existing_run_is_refused(gart, trained, monkeypatch):
    monkeypatch.chdir(trained)
    before = (trained / "runs/demo/config.yaml").read_bytes()
    message = (
        "runs/demo already holds a run; continue it with --resume, replace it with --overwrite, "
        "or give another folder with --out"
    )
    fails(gart("train", "demo"), 2, message)
    assert (trained / "runs/demo/config.yaml").read_bytes() == before


def test_nothing_to_resume(gart):
    message = (
        "nothing to resume: runs/demo holds no run (no config.yaml); "
        "leave out --resume to start one"
    )
    fails(gart("train", "demo", "--resume"), 2, message)


def test_overwrite_keeps_the_old_run_when_the_scene_does_not_load(gart, trained):
    run = trained / "runs/demo"
    before = sorted(run.rglob("*"))
    code, _, _ = gart("train", "no-such-scene", "--out", str(run), "--overwrite")
    assert code == 2
    assert sorted(run.rglob("*")) == before


def test_cuda_that_was_not_built(gart, monkeypatch):
    monkeypatch.setattr("gart.native.library_path", lambda backend: None)
    message = (
        "--device cuda is not possible: gart was installed without its CUDA library; "
        "reinstall gart with GART_CUDA=ON pip install . where nvcc is on the PATH, "
        "or use --device cpu"
    )
    fails(gart("train", "demo", "--device", "cuda"), 1, message)


def failing_load(error):
    def load(scene, **keywords):
        raise error

    return load


def test_a_failure_is_one_line_and_exit_code_1(gart, monkeypatch):
    monkeypatch.setattr(
        "gart.datasets.load", failing_load(GartError("photo 3 is missing; copy it"))
    )
    fails(gart("train", "demo"), 1, "photo 3 is missing; copy it")


def test_an_unexpected_exception_is_named(gart, monkeypatch):
    monkeypatch.setattr("gart.datasets.load", failing_load(ZeroDivisionError("by\n zero")))
    message = "ZeroDivisionError: by zero; rerun with --debug for the traceback"
    fails(gart("train", "demo"), 1, message)


@pytest.mark.parametrize("line", [["--debug", "train", "demo"], ["train", "demo", "--debug"]])
def test_debug_shows_the_traceback(gart, monkeypatch, line):
    monkeypatch.setattr("gart.datasets.load", failing_load(GartError("photo 3 is missing")))
    code, _, err = gart(*line)
    assert code == 1
    assert err.startswith("Traceback (most recent call last)")
    assert err.endswith("error: photo 3 is missing\n")


def test_interrupt_before_training(gart, monkeypatch):
    monkeypatch.setattr("gart.datasets.load", failing_load(KeyboardInterrupt()))
    fails(gart("train", "demo"), 130, "interrupted")


def test_sigterm_before_training(gart, monkeypatch):
    monkeypatch.setattr("gart.datasets.load", failing_load(SystemExit(143)))
    fails(gart("train", "demo"), 143, "terminated")


def test_a_file_that_cannot_be_written_is_named(gart, monkeypatch):
    error = IsADirectoryError(21, "Is a directory", ".x.1.tmp", None, "x.json")
    monkeypatch.setattr("gart.datasets.load", failing_load(error))
    message = "x.json: Is a directory; give another path, or mend this one"
    fails(gart("train", "demo"), 1, message)


def test_a_failure_of_several_lines_becomes_one(gart, monkeypatch):
    monkeypatch.setattr("gart.datasets.load", failing_load(GartError("no YAML: bad\n  line 1")))
    fails(gart("train", "demo"), 1, "no YAML: bad line 1")


def test_a_damaged_config_names_the_setting(gart, tmp_path):
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("{gart: {}, dataset: {source: a}, training: {}}")
    for command in ("train demo --resume --out runs/a", "render runs/a"):
        code, _, err = gart(*command.split())
        assert code == 1
        assert "config.yaml: downscale under dataset is None; expected int" in err


def test_backward_mode_of_what_is_only_rendered(gart, trained):
    message = (
        "--backward pixel belongs to training; a splat file, and --mode tilegs, is only rendered: "
        "leave it out"
    )
    run = trained / "runs/demo"
    fails(gart("profile", str(run / "point_cloud.ply"), "--backward", "pixel"), 2, message)
    fails(gart("profile", str(run), "--mode", "tilegs", "--backward", "pixel"), 2, message)


def test_what_a_terminal_would_obey_is_shown_as_escapes(gart, tmp_path):
    name = os.fsdecode(b"\x1b[31mred\xff")
    message = r"scene '\x1b[31mred\udcff' is neither an existing folder nor a known name"
    code, _, err = gart("train", name)
    assert code == 2
    assert message in err
    for folder in ("images", "sparse/0"):
        (tmp_path / name / folder).mkdir(parents=True)
    _, out, _ = gart("data", "check", name)
    assert r"\x1b[31mred\udcff is not a capture" in out
    assert printable("ä 日本\n\t\u2028") == r"ä 日本\n\t\u2028"


def test_a_name_that_the_terminal_cannot_show_ends_no_command(tmp_path):
    name = os.fsdecode(b"\xff")
    (tmp_path / name).mkdir()
    probe = "from gart.cli.app import main; main()"
    line = [sys.executable, "-c", probe, "data", "check", name]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(line, capture_output=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (1, b"")
    assert rb"\udcff is not a capture" in done.stdout


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left"), "No space left; free some and run the command"),
        (OSError(errno.ENOSPC, "No space left", "a"), "a: No space left; free some and run the"),
        (OSError(errno.EACCES, "Permission denied", "a\n"), r"a\n: Permission denied; give anot"),
    ],
)
def test_failures_of_the_disk(gart, monkeypatch, error, message):
    def fail(*_):
        raise error

    monkeypatch.setattr("gart.cli.runs.Source.find", fail)
    code, _, err = gart("render")
    assert code == 1
    assert err.startswith(f"error: {message}")
