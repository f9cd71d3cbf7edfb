import os
import subprocess

import pytest
import torch

import gart.io.environment as environment_module
from gart.errors import GartError, UsageError
from gart.io.environment import environment
from gart.io.ply import save_ply
from gart.io.run_folder import RunFolder, find_run
from gart.scene import Gaussians


def make_run(path, started=1):
    run = RunFolder.create(path)
    run.write_config({"iterations": 7}, {"name": "demo", "source": "demo", "downscale": 2})
    os.utime(run.config, (started, started))
    return run


def test_config_round_trip(tmp_path):
    run = RunFolder.create(tmp_path / "runs" / "a")
    dataset = {"name": "garten ä", "source": tmp_path, "downscale": 4, "size": (3, 4)}
    run.write_config({"iterations": 7, "lr": 1e-5}, dataset)
    config = run.read_config()
    assert config["training"] == {"iterations": 7, "lr": 1e-5}
    assert config["dataset"] == {**dataset, "source": str(tmp_path), "size": [3, 4]}
    assert {"version", "git_commit", "gpu", "driver", "torch", "created"} <= set(config["gart"])
    assert config["gart"]["device"] == "cpu"
    assert config["gart"]["gpu"] is None


def test_broken_configs_are_named(tmp_path):
    run = make_run(tmp_path / "a")
    run.config.write_text("a: [")
    with pytest.raises(GartError, match=r"config.yaml is not valid YAML"):
        run.read_config()
    run.config.write_text("gart: {}\ndataset: 3\n")
    with pytest.raises(GartError, match=r"config.yaml lacks the section 'dataset'"):
        run.read_config()
    run.config.unlink()
    with pytest.raises(GartError, match=r"config.yaml cannot be read"):
        run.read_config()


def test_existing_run_needs_resume_or_overwrite(tmp_path):
    run = make_run(tmp_path / "a")
    run.append_metrics({"iteration": 1})
    (run.checkpoints / "deep").mkdir(parents=True)
    (run.path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"already holds a run.*--resume.*--overwrite.*--out"):
        RunFolder.create(run.path)
    with pytest.raises(UsageError, match=r"exclude each other"):
        RunFolder.create(run.path, overwrite=True, resume=True)
    RunFolder.create(run.path, resume=True)
    assert run.read_metrics() == [{"iteration": 1}]
    RunFolder.create(run.path, overwrite=True)
    assert [p.name for p in run.path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_folders_are_left_alone(tmp_path, overwrite):
    (tmp_path / "holiday.jpg").write_text("photo")
    with pytest.raises(UsageError, match=r"not empty and holds no run"):
        RunFolder.create(tmp_path, overwrite=overwrite)
    with pytest.raises(UsageError, match=r"holiday.jpg is a file"):
        RunFolder.create(tmp_path / "holiday.jpg", overwrite=overwrite)
    assert (tmp_path / "holiday.jpg").read_text() == "photo"


def test_nothing_to_resume(tmp_path):
    with pytest.raises(UsageError, match=r"nothing to resume.*a holds no run"):
        RunFolder.create(tmp_path / "a", resume=True)
    assert not (tmp_path / "a").exists()


def test_metrics_survive_a_crash_and_rewind(tmp_path):
    run = make_run(tmp_path / "a")
    assert run.read_metrics() == []
    for i in (10, 20, 30):
        run.append_metrics({"iteration": i, "loss": float("nan")})
    with run.metrics.open("a") as file:
        file.write('{"iteration": 40, "lo')
    assert [r["iteration"] for r in run.read_metrics()] == [10, 20, 30]
    run.rewind_metrics(20)
    run.append_metrics({"iteration": 21, "loss": 0.5})
    assert run.read_metrics() == [
        {"iteration": 10, "loss": None},
        {"iteration": 20, "loss": None},
        {"iteration": 21, "loss": 0.5},
    ]


def test_result_of_unfinished_run(tmp_path):
    run = make_run(tmp_path / "a")
    with pytest.raises(GartError, match=r"a has no point_cloud.ply.*--resume"):
        run.load_gaussians()
    zeros = [torch.zeros(shape) for shape in [(2, 3), (2, 4), (2, 3), (2,), (2, 4, 3)]]
    save_ply(run.point_cloud, Gaussians(*zeros))
    assert run.load_gaussians().sh_degree == 1


def test_find_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = make_run(tmp_path / "runs" / "garden", started=100)
    new = make_run(tmp_path / "runs" / "demo", started=200)
    elsewhere = make_run(tmp_path / "elsewhere", started=300)
    assert find_run(None).path.name == new.path.name
    assert find_run("garden").path.resolve() == old.path
    assert find_run("mipnerf360/garden").path.resolve() == old.path
    assert find_run("runs/demo/").path.resolve() == new.path
    assert find_run(str(elsewhere.path)).path == elsewhere.path
    (tmp_path / "s.ply").write_text("ply")
    assert find_run("s.ply").name == "s.ply"


def test_find_run_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no run under runs/; train one first: gart train demo"):
        find_run(None)
    make_run(tmp_path / "runs" / "garden")
    make_run(tmp_path / "runs" / "demo")
    with pytest.raises(UsageError, match=r"gardn is no run; runs under runs/: demo, garden;"):
        find_run("gardn")
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match=r"data is a folder without a config.yaml"):
        find_run("data")
    (tmp_path / "a.spz").write_text("")
    with pytest.raises(UsageError, match=r"a.spz is no splat file that gart reads.*\.ply"):
        find_run("a.spz")
    with pytest.raises(UsageError, match=r"b.ply does not exist"):
        find_run("b.ply")
    # A wrong path is not taken for the run that shares its last part.
    with pytest.raises(UsageError, match=r"is no run"):
        find_run("../nowhere/garden")


def test_commit_is_that_of_the_checkout_gart_lies_in(tmp_path, monkeypatch):
    package = tmp_path / "gart" / "io"
    package.mkdir(parents=True)
    (package / "environment.py").write_text("")
    monkeypatch.setattr(environment_module, "__file__", str(package / "environment.py"))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    assert environment("cpu")["git_commit"] is None  # not a tracked file of that repository
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert environment("cpu")["git_commit"] == head.stdout.strip()
    (package / "environment.py").write_text("changed = True")
    assert environment("cpu")["git_commit"] == head.stdout.strip() + "-dirty"


def test_one_training_at_a_time(tmp_path):
    run = make_run(tmp_path / "a")
    message = r"another gart is training into .*a; wait for it, or give another folder"
    with run.locked():
        with pytest.raises(GartError, match=message):
            RunFolder.create(run.path, overwrite=True)
        assert run.exists
    RunFolder.create(run.path, overwrite=True)
    assert not run.exists


@pytest.mark.parametrize("damaged", [b"garbage", b"[1]", b"\xff\xfe"])
def test_a_damaged_line_of_metrics_is_named(tmp_path, damaged):
    run = make_run(tmp_path / "a")
    run.append_metrics({"iteration": 1})
    run.metrics.write_bytes(run.metrics.read_bytes() + damaged + b"\n")
    with pytest.raises(GartError, match=r"metrics.jsonl line 2 is no JSON object; delete"):
        run.read_metrics()
