import io
import json
import re
import shutil
import signal

import pytest
import yaml

from gart.cli.progress import TrainingProgress
from gart.cli.runs import Source
from gart.datasets import load
from gart.io import load_ply, read_image, save_trajectory
from gart.training import Progress

TINY = ("--iterations", "6", "--budget", "300", "--downscale", "4", "--device", "cpu")


@pytest.fixture
def there(trained, monkeypatch):
    """The folder of the trained run, as the working folder."""
    monkeypatch.chdir(trained)
    return trained


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


def test_render_writes_the_held_out_views(gart, there):
    capture = load("demo", downscale=4)
    code, out, _ = gart("render")
    folder = there / "runs/demo/renders/test_rt"
    assert code == 0
    assert out.endswith(f"saved {len(capture.test)} views to runs/demo/renders/test_rt\n")
    assert {p.stem for p in folder.iterdir()} == {v.name.rsplit(".", 1)[0] for v in capture.test}
    for path in folder.iterdir():
        assert read_image(path).shape == capture.test[0].image.shape


def test_render_splits(gart, there, tmp_path):
    capture = load("demo", downscale=4)
    sizes = {"test": len(capture.test), "train": len(capture.train)}
    sizes["all"] = sizes["test"] + sizes["train"]
    for split, size in sizes.items():
        folder = tmp_path / split
        assert gart("render", "demo", "--split", split, "--output", str(folder))[0] == 0
        assert len(list(folder.iterdir())) == size


def test_render_a_trajectory_from_a_splat_file(gart, there, tmp_path):
    cameras = [view.camera.undistorted() for view in load("demo", downscale=4).train[:2]]
    save_trajectory(tmp_path / "path.json", cameras, fps=5)
    splats, path = "runs/demo/point_cloud.ply", str(tmp_path / "path.json")
    for mode in ("rt", "tilegs"):
        folder = tmp_path / mode
        line = ["render", splats, "--trajectory", path, "--mode", mode, "--output", str(folder)]
        assert gart(*line)[0] == 0
        assert sorted(p.name for p in folder.iterdir()) == ["00000.png", "00001.png"]
    video = tmp_path / "flight.mp4"
    assert gart("render", splats, "--trajectory", path, "--output", str(video))[0] == 0
    assert video.read_bytes()[4:8] == b"ftyp"


def test_eval_prints_and_writes_what_it_measured(gart, there, tmp_path):
    for mode, protocol in (("rt", "3dgs"), ("tilegs", "nerfbaselines")):
        file = tmp_path / f"{mode}.json"
        line = ["eval", "demo", "--mode", mode, "--protocol", protocol, "--metrics", "psnr,ssim"]
        code, out, _ = gart(*line, "--json", str(file))
        result = json.loads(file.read_text())
        assert code == 0
        assert result == json.loads((there / "runs/demo/eval.json").read_text())
        assert (result["mode"], result["protocol"]["name"]) == (mode, protocol)
        assert set(result["mean"]) == {"psnr", "ssim"}
        assert f"\npsnr       {result['mean']['psnr']:.2f} dB\n" in out
        assert f"\nssim       {result['mean']['ssim']:.4f}\n" in out


def test_eval_says_why_a_metric_is_missing(gart, there, monkeypatch):
    def evaluate(*args, **keywords):
        return {"images": 1, "mean": {"lpips": None}, "unavailable": {"lpips": "no weights"}}

    monkeypatch.setattr("gart.evaluation.evaluate", evaluate)
    code, out, _ = gart("eval", "demo")
    assert code == 0
    assert "\nlpips      not measured: no weights\n" in out


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
