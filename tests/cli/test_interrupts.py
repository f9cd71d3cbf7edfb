"""Signals to a `gart train` of its own, as a shell or a container sends them."""

import os
import signal
import subprocess
import sys
import time

import pytest

from gart.training.checkpoint import checkpoints, load_checkpoint

GART = "from gart.cli import main; main()"
OPTIONS = "--out r --downscale 8 --budget 300 --iterations 100000 --set log_every=1 --device cpu"
SECONDS = 120


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_saves_and_ends_with_its_exit_code(tmp_path, number, code, word):
    process = subprocess.Popen(
        [sys.executable, "-c", GART, "train", "demo", *OPTIONS.split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        metrics = tmp_path / "r" / "metrics.jsonl"
        deadline = time.monotonic() + SECONDS
        while not metrics.exists() or not metrics.read_text():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == code
    assert err == (f"error: {word}; continue with: gart train demo --out r --device cpu --resume\n")
    (saved,) = checkpoints(tmp_path / "r" / "checkpoints")
    trained = len(metrics.read_text().splitlines())
    assert load_checkpoint(saved).values["iteration"] == trained


def test_sigterm_before_training_is_an_end_too(tmp_path):
    program = (
        "import os, signal\n"
        "from gart.cli.app import app, main\n"
        "app.command('wait')(lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "wait"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (143, "error: terminated\n")
