import io
import json
import re
import shutil
import signal

import pytest
import yaml

from gart.cli.progress import TrainingProgress
from gart.cli.runs import Source
from gart.io import load_ply
from gart.training import Progress

TINY = ("--iterations", "6", "--budget", "300", "--downscale", "4", "--device", "cpu")


def test_train_makes_a_run_folder(trained):
    run = trained / "runs/demo"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["training"]["iterations"] == 6
    assert config["training"]["budget"] == 300
    assert config["dataset"]["downscale"] == 4
    assert config["gart"]["device"] == "cpu"
    assert 0 < len(load_ply(run / "point_cloud.ply")) <= 300
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["iteration"] == 6


def test_train_prints_plain_lines_without_a_terminal(gart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = gart("train", "demo", *TINY, "--set", "sh_degree=0", "--out", "a")
    first, plan, progress, last = out.splitlines()
    assert (code, err) == (0, "")
    assert re.fullmatch(
        r"demo: \d+ training views, \d+ held out, \d+ points; 6 iterations on cpu -> a", first
    )
    assert re.fullmatch(
        r"needs about [\d.]+ MB of [\d.]+ GB with its budget of 300 Gaussians", plan
    )
    assert re.fullmatch(
        r"training 6/6  \d+\.\d it/s  loss 0\.\d{4}  PSNR \d+\.\d\d dB  \d+ Gaussians  "
        r"\d+\.\d\d GiB  0:00:00 left",
        progress,
    )
    assert last == "saved a/point_cloud.ply"
    assert load_ply("a/point_cloud.ply").sh_degree == 0


def test_flags_win_over_set_and_config(gart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("iterations: 9\nseed: 1\nbackward: hybrid\nbudget: 200\n")
    line = "train demo --downscale 4 --config c.yaml --set iterations=8 --set seed=2"
    code, _, _ = gart(*line.split(), "--iterations", "2", "--backward", "pixel")
    training = yaml.safe_load((tmp_path / "runs/demo/config.yaml").read_text())["training"]
    assert code == 0
    chosen = {key: training[key] for key in ("iterations", "seed", "backward", "budget")}
    assert chosen == {"iterations": 2, "seed": 2, "backward": "pixel", "budget": 200}


def test_overwrite_replaces_a_run(gart, tmp_path, monkeypatch, trained):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained / "runs/demo", "run")
    line = ["train", "demo", *TINY, "--iterations", "2", "--out", "run", "--overwrite"]
    assert gart(*line)[0] == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["iteration"] == 2


def test_interrupted_run_says_how_to_continue_and_does(gart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    show = TrainingProgress.__call__

    def interrupt(self, progress):
        show(self, progress)
        if progress.iteration == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingProgress, "__call__", interrupt)
    code, _, err = gart("train", "demo", *TINY, "--out", "my run")
    assert code == 130
    assert err == (
        "error: interrupted; continue with: gart train demo --out 'my run' --device cpu --resume\n"
    )
    monkeypatch.setattr(TrainingProgress, "__call__", show)
    code, out, _ = gart("train", "demo", "--out", "my run", "--device", "cpu", "--resume")
    assert code == 0
    assert "6 iterations" in out
    config = yaml.safe_load((tmp_path / "my run/config.yaml").read_text())
    assert config["dataset"]["downscale"] == 4
    assert len(load_ply("my run/point_cloud.ply")) > 0


def test_profile_sets_the_backward_modes_side_by_side(gart, there, tmp_path):
    file = tmp_path / "p.json"
    code, out, _ = gart("profile", "demo", "--iterations", "2", "--json", str(file))
    result = json.loads(file.read_text())
    assert code == 0
    assert list(result["columns"]) == ["primitive", "hybrid", "pixel"]
    assert result["gaussians"] == len(load_ply("runs/demo/point_cloud.ply"))
    for stage in ("project", "tile lists", "forward", "loss", "backward", "optimiser", "densify"):
        assert stage in out
        assert all(column["stages_ms"][stage] > 0 for column in result["columns"].values())


def test_profile_of_all_layouts(gart, there):
    code, out, _ = gart("profile", "demo", "--backward", "all", "--iterations", "1")
    assert code == 0
    assert out.count("aabb") == 2 * 3  # two tables
    assert "additions" in out


@pytest.mark.parametrize(
    ("arguments", "kind", "columns"),
    [
        (["runs/demo", "--backward", "pixel"], "training", ["pixel"]),
        (["runs/demo", "--mode", "tilegs"], "rendering", ["tilegs"]),
        (["runs/demo/point_cloud.ply"], "rendering", ["rt"]),
        (["runs/demo/point_cloud.ply", "--mode", "tilegs"], "rendering", ["tilegs"]),
    ],
)
def test_profile_subjects(gart, there, tmp_path, arguments, kind, columns):
    file = tmp_path / "p.json"
    assert gart("profile", *arguments, "--iterations", "1", "--json", str(file))[0] == 0
    result = json.loads(file.read_text())
    assert (result["subject"], result["kind"], list(result["columns"])) == (
        arguments[0],
        kind,
        columns,
    )


def test_profile_of_a_scene_that_was_never_trained(gart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "profile demo --backward primitive --iterations 1"
    code, out, _ = gart(*line.split())
    assert code == 0
    assert out.splitlines()[1].startswith("demo on cpu: ")
    assert not (tmp_path / "runs").exists()


def test_runs_are_rendered_as_they_were_trained(gart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = ["train", "demo", *TINY, "--set", "sh=center", "--set", "background=white"]
    assert gart(*line)[0] == 0
    source = Source.find("demo")
    settings = source.settings("rt")
    assert settings is not None
    assert settings.sh == "center"
    assert source.background() == (1.0, 1.0, 1.0)


def test_progress_on_a_terminal_is_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with TrainingProgress("cpu") as progress:
        progress(Progress(50, 100, 0.25, 21.5, 1234, 10.0, 90061.0))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "50/100" in text
    assert "10.0 it/s  loss 0.2500  PSNR 21.50 dB  1234 Gaussians" in text
    assert "1 day, 1:01:01 left" in text
