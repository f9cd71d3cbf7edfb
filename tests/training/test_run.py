import os
import signal

import pytest
import yaml

from gart.errors import GartError
from gart.io.ply import load_ply
from gart.io.run_folder import RunFolder
from gart.training import TrainConfig, load_config, run, train
from gart.training.checkpoint import checkpoints, load_checkpoint

CONFIG = {"iterations": 30, "budget": 50, "log_every": 10, "checkpoint_every": 10}


def losses(folder: RunFolder) -> list[tuple[int, float]]:
    return [(r["iteration"], r["loss"]) for r in folder.read_metrics()]


@pytest.fixture
def whole(small_capture, tmp_path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "whole")
    train(small_capture, TrainConfig(**CONFIG), folder)
    return folder


def test_a_run_fills_its_folder(small_capture, tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    reports = []
    small_capture.metadata["source"] = "made up"
    train(small_capture, TrainConfig(**CONFIG), folder, report=reports.append)
    config = yaml.safe_load(folder.config.read_text())
    assert config["dataset"]["name"] == "small"
    assert config["dataset"]["source"] == "made up"
    assert config["dataset"]["background"] == pytest.approx([0.1, 0.2, 0.3])
    assert load_config(folder.config) == TrainConfig(**CONFIG)
    assert [i for i, _ in losses(folder)] == [10, 20, 30]
    assert [load_checkpoint(p).values["iteration"] for p in checkpoints(folder.checkpoints)] == [
        *(20, 30)
    ]
    assert len(load_ply(folder.point_cloud)) == reports[-1].gaussians
    assert [r.iteration for r in reports] == list(range(1, 31))
    assert reports[-1].seconds_left == 0
    assert reports[0].iterations == 30


@pytest.fixture
def default_signals():
    """Python's own handlers; a shell that starts the tests in the background has SIGINT ignored."""
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_an_interrupted_run_resumes_exactly(
    small_capture, tmp_path, whole, default_signals, number, raised
):
    folder = RunFolder.create(tmp_path / "run")

    def interrupt(progress):
        if progress.iteration == 17:
            os.kill(os.getpid(), number)  # arrives as Ctrl-C does

    with pytest.raises(raised) as stop:
        train(small_capture, TrainConfig(**CONFIG), folder, report=interrupt)
    assert raised is not SystemExit or stop.value.code == 143
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    saved = load_checkpoint(checkpoints(folder.checkpoints)[-1])
    assert saved.values["iteration"] == 17
    assert not folder.point_cloud.exists()
    train(small_capture, TrainConfig(**CONFIG), folder, resume=True)
    assert losses(folder) == losses(whole)
    assert folder.point_cloud.read_bytes() == whole.point_cloud.read_bytes()
    seconds = [r["seconds"] for r in folder.read_metrics()]
    assert seconds == sorted(seconds)


def test_a_crash_loses_only_what_came_after_the_checkpoint(small_capture, tmp_path, whole):
    folder = RunFolder.create(tmp_path / "run")

    def crash(progress):
        if progress.iteration == 27:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train(small_capture, TrainConfig(**CONFIG), folder, report=crash)
    assert [i for i, _ in losses(folder)] == [10, 20]
    train(small_capture, TrainConfig(**CONFIG), folder, resume=True)
    assert losses(folder) == losses(whole)


def test_resuming_before_the_first_checkpoint_starts_anew(small_capture, tmp_path, whole):
    folder = RunFolder.create(tmp_path / "run")

    def crash(progress):
        if progress.iteration == 5:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train(small_capture, TrainConfig(**CONFIG), folder, report=crash)
    train(small_capture, TrainConfig(**CONFIG), folder, resume=True)
    assert losses(folder) == losses(whole)


def test_resuming_a_finished_run_changes_nothing(small_capture, whole):
    before = losses(whole), whole.point_cloud.read_bytes()
    train(small_capture, TrainConfig(**CONFIG), whole, resume=True)
    assert (losses(whole), whole.point_cloud.read_bytes()) == before


def test_a_folder_that_cannot_be_written_is_one_sentence(small_capture, tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "save_ply", full)
    with pytest.raises(
        GartError, match=rf"^run folder {folder.path} cannot be written .*--resume$"
    ):
        train(small_capture, TrainConfig(**CONFIG), folder)
    assert checkpoints(folder.checkpoints)


def test_a_checkpoint_that_lacks_something_is_one_sentence(small_capture, whole):
    checkpoints(whole.checkpoints)[-1].write_text('{"format": 1, "iteration": 30}')
    with pytest.raises(GartError, match=r"^the checkpoint lacks 'config'; delete it .*overwrite$"):
        train(small_capture, TrainConfig(**CONFIG), whole, resume=True)


def test_a_second_training_is_kept_out(small_capture, tmp_path, whole):
    before = losses(whole)
    with whole.locked(), pytest.raises(GartError, match="another gart is training into"):
        train(small_capture, TrainConfig(**CONFIG), whole, resume=True)
    assert losses(whole) == before
