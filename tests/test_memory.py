"""Free memory, sizes, forecasts, and what is said when memory runs out."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gart import memory
from gart.cameras import Camera
from gart.capture import Capture, View
from gart.cli.app import run
from gart.errors import UsageError
from gart.evaluation import plan_rendering
from gart.forecast import Load, Plan, Tracing, Training, fewest
from gart.scene import Gaussians
from gart.training import TrainConfig, Trainer, plan_training, train
from gart.training.plan import training_size

GB = 10**9


def capture(width=64, height=48, views=3):
    cameras = []
    for i in range(views):
        c2w = torch.eye(3, 4)
        c2w[0, 3] = 0.1 * i
        cameras.append(Camera(c2w, width, width, width / 2, height / 2, width, height))
    image = torch.full((height, width, 3), 120, dtype=torch.uint8)
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(0)) + torch.tensor([0, 0, 2])
    colors = torch.full((50, 3), 90, dtype=torch.uint8)
    return Capture(
        "c", [View(f"{i}.png", c, image) for i, c in enumerate(cameras)], [], points, colors
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8 * GB),
        ("8 GiB", 8 * 2**30),
        ("1.5mb", 1_500_000),
        ("2TB", 2 * 10**12),
        ("512 KiB", 2**19),
        ("1e9", GB),
        ("0", 0),
    ],
)
def test_sizes_are_read(text, size):
    assert memory.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "8XB", "1.2.3GB", "-1GB", "8 GB of it"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is no size; write for example 8GB or 500MB"):
        memory.parse_size(text)


def test_sizes_are_written():
    sizes = [3.14e9, 141e9, 812.4e9, 56.78e6, 5432]
    assert [memory.format_size(s) for s in sizes] == [
        *("3.1 GB", "141 GB", "812 GB", "56.8 MB", "5 kB")
    ]


def test_free_memory_is_what_the_system_has():
    free = memory.free_memory("cpu")
    assert 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def group(folder, limit, used, stat, version):
    folder.mkdir(parents=True, exist_ok=True)
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        2: ("memory.max", "memory.current"),
    }[version]
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(stat)


def test_control_groups_of_version_2(tmp_path):
    own = tmp_path / "cgroup"
    own.write_text("0::/jobs/mine\n")
    group(tmp_path / "jobs", 8 * GB, 5 * GB, "anon 1\ninactive_file 1000000000\n", 2)
    group(tmp_path / "jobs/mine", "max", GB, "", 2)
    assert min(memory.group_memory(tmp_path, own)) == 4 * GB  # of the parent, with its cache
    group(tmp_path / "jobs/mine", 2 * GB, GB, "", 2)
    assert min(memory.group_memory(tmp_path, own)) == GB


def test_control_groups_of_version_1_in_a_container(tmp_path):
    own = tmp_path / "cgroup"
    own.write_text("5:cpu:/\n4:cpuset,memory:/docker/abc\n")
    group(tmp_path / "memory", 6 * GB, GB, "inactive_file 7\ntotal_inactive_file 500000000\n", 1)
    assert min(memory.group_memory(tmp_path, own)) == 5.5 * GB


def test_no_control_groups(tmp_path):
    assert min(memory.group_memory(tmp_path, tmp_path / "none")) > 2**60


def allocate():
    torch.empty(10**15)


def test_running_out_is_recognised_and_its_size_read():
    with pytest.raises(RuntimeError) as caught:
        allocate()
    assert memory.is_out_of_memory(caught.value)
    assert memory.explain(caught.value, "the test", "take less") == (
        "out of memory: the test asked for 4,000,000 GB more than is free; take less"
    )
    gpu = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...")
    assert "asked for 21.0 MB more" in memory.explain(gpu, "it", "")
    for error in (MemoryError(), RuntimeError("std::bad_alloc"), gpu):
        assert memory.is_out_of_memory(error)
    assert "it asked for more than is free" in memory.explain(MemoryError(), "it", "")
    assert not memory.is_out_of_memory(ValueError("out of memory"))
    assert not memory.is_out_of_memory(RuntimeError("device-side assert"))


def test_allocating_names_what_ran_out():
    with (
        pytest.raises(
            memory.OutOfMemoryError, match=r"^out of memory: the loss asked for 4,0.*; x$"
        ),
        memory.allocating("the loss", "x"),
    ):
        allocate()
    with pytest.raises(RuntimeError, match=r"^other$"), memory.allocating("the loss", "x"):
        raise RuntimeError("other")


def test_fewest_strips():
    assert fewest(lambda n: 12 / n, 5, 4) == 3
    assert fewest(lambda n: 12 / n, 5, 1) == 5
    assert fewest(lambda n: 12 + abs(n - 2), 5, 1) == 2


@pytest.mark.parametrize("on_gpu", [False, True])
def test_more_of_anything_needs_more(on_gpu):
    base = Training(Tracing(2_000_000, 16, 1280, 960, on_gpu=on_gpu))
    for change in (
        {"gaussians": 3_000_000},
        {"width": 4000, "height": 3000},
        {"faces": 6},
        {"load": Load(200, 20)},
    ):
        assert replace(base, tracing=replace(base.tracing, **change)).needed() > base.needed(), (
            change
        )
    for change in ({"coefficients": 1}, {"sh": "center"}):
        assert replace(base, tracing=replace(base.tracing, **change)).needed() < base.needed(), (
            change
        )
    assert replace(base, photographs=10**10).needed() > 10**10


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("keep_hits", [False, True])
def test_strips_need_less(on_gpu, keep_hits):
    image = Tracing(100_000, 16, 6000, 4000, on_gpu=on_gpu)
    assert image.needed(8, keep_hits) < 0.7 * image.needed(1, keep_hits)
    assert image.strips(image.needed(8, keep_hits), keep_hits) <= 8


MEASURE = """
import sys, torch
from gart.forecast import Load, Tracing, Training
from gart.profiling.memory import peak_memory, reset_peak_memory
from gart.stages import Stages
from gart.training import TrainConfig, Trainer
sys.path.insert(0, sys.argv[1])
from test_memory import capture
n, width, height = map(int, sys.argv[2:])
scene = capture(width, height)
scene.points = 4 * torch.rand(n, 3) + torch.tensor([-2, -2, 2])
scene.point_colors = torch.zeros(n, 3, dtype=torch.uint8)
reset_peak_memory("cpu")
before = peak_memory("cpu")
trainer = Trainer(scene, TrainConfig(budget=n, sh_degree=1), "cpu")
trainer.gaussians.log_scales.fill_(-3.0)
trainer.gaussians.opacity_logits.fill_(0.5)
with Stages() as stages:
    for _ in range(2):
        trainer.step(densify=True)
pixels = width * height
load = Load(max(stages.counts["hits"]) / pixels, max(stages.counts["pairs"]) / pixels)
forecast = Training(Tracing(n, 4, width, height, load=load)).needed()
assert "sympy" not in sys.modules, "RUNTIME in gart/forecast.py does not count it"
print(peak_memory("cpu") - before, forecast)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are Linux's")
@pytest.mark.parametrize("size", [("100000", "320", "240"), ("10000", "640", "480")], ids="-".join)
def test_the_forecast_agrees_with_the_measured_peak(size):
    command = [sys.executable, "-c", MEASURE, str(Path(__file__).parent), *size]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    measured, forecast = map(int, done.stdout.split())
    assert 0.65 < forecast / measured < 1.5


@pytest.fixture
def limited(monkeypatch):
    """Sets the free memory that plans see."""

    def set_free(size):
        for module in ("gart.training.plan", "gart.evaluation.plan"):
            monkeypatch.setattr(f"{module}.free_memory", lambda device: size)

    return set_free


def test_a_plan_says_what_is_needed_and_there(limited):
    limited(141 * GB)
    plan = plan_training(capture(1297, 840), TrainConfig(), "cpu")
    assert str(plan) == f"needs about {plan.needed / GB:.1f} GB of 141 GB"
    assert 1 < plan.needed / GB < 4
    limited(plan.needed / 0.89 - 2e8)
    assert str(plan_training(capture(1297, 840), TrainConfig(), "cpu")).endswith(" strips")


def test_photographs_count_where_they_are_copied(limited):
    scene = capture(100, 50)
    scene.train[0] = replace(scene.train[0], mask=torch.ones(50, 100, dtype=torch.bool))
    on_cpu, on_gpu = (training_size(scene, TrainConfig(), d) for d in ("cpu", "cuda"))
    assert on_cpu.photographs == 8 * 100 * 50  # one ray grid
    assert on_gpu.photographs - on_cpu.photographs == 3 * 3 * 100 * 50 + 100 * 50


def test_the_largest_budget_fits_and_is_not_far_from_the_next_that_does_not(limited):
    limited(2 * GB)
    config = TrainConfig(budget=400_000_000)
    with pytest.raises(UsageError) as caught:
        plan_training(capture(), config, "cpu")
    message = str(caught.value)
    assert message.startswith("budget 400,000,000 needs about ")
    assert "this machine has 2.0 GB free; the largest that fits is" in message
    largest = int(message.split("--budget ")[1].split()[0])
    assert plan_training(capture(), replace(config, budget=largest), "cpu").fits
    with pytest.raises(UsageError):
        plan_training(capture(), replace(config, budget=int(1.2 * largest)), "cpu")
    with pytest.raises(UsageError, match=r"memory_limit allows 1.0 GB"):
        plan_training(capture(), replace(config, memory_limit=GB), "cpu")


def test_photographs_that_do_not_fit(limited):
    limited(10**8)
    with pytest.raises(UsageError, match=r"1000 x 1000 pixels need .* with --downscale"):
        plan_training(capture(1000, 1000), TrainConfig(), "cpu")


def test_a_budget_is_refused_before_anything_is_touched(limited, tmp_path):
    from gart.io import RunFolder

    limited(GB)
    with pytest.raises(UsageError, match="budget 400,000,000"):
        train(capture(), TrainConfig(budget=400_000_000), RunFolder(tmp_path / "run"), "cpu")
    assert not (tmp_path / "run").exists()


def test_a_memory_limit_leaves_the_tracer_the_rest():
    config = TrainConfig(budget=100, memory_limit="200MB")
    assert config.memory_limit == 200_000_000
    trainer = Trainer(capture(), config, "cpu")
    limit = trainer._settings.memory_limit
    size = training_size(capture(), config, "cpu")
    assert 0.5 * 200_000_000 < limit < 200_000_000
    assert limit + size.phases()["backward pass"] - size.tracing.backward_pass(1) == pytest.approx(
        200_000_000, abs=1
    )
    assert Trainer(capture(), TrainConfig(budget=100), "cpu")._settings.memory_limit is None


def test_a_memory_limit_that_is_no_size():
    with pytest.raises(UsageError, match="memory_limit is 'lots'; allowed is a size such as 8GB"):
        TrainConfig(memory_limit="lots")


def test_training_in_strips_goes_the_same_way():
    states = []
    for limit in (0, 1):  # a byte: as many strips as there can be
        trainer = Trainer(capture(64, 150), TrainConfig(budget=100, memory_limit=limit), "cpu")
        loss = [trainer.step()["loss"] for _ in range(3)][-1]
        states.append((loss, trainer.gaussians.means))
    assert states[0][0] == pytest.approx(states[1][0], rel=1e-5)
    torch.testing.assert_close(states[0][1], states[1][1])


def test_rendering_plan(limited):
    scene = Gaussians(*(torch.zeros(1000, *s) for s in ((3,), (4,), (3,), (), (16, 3))))
    limited(10 * GB)
    cameras = [view.camera for view in capture(2000, 1500).train]
    plan = plan_rendering(scene, cameras, "cpu")
    assert plan.strips == 1
    assert str(plan).endswith(" of 10.0 GB")
    measured = plan_rendering(scene, cameras, "cpu", metrics=["psnr", "lpips"])
    assert measured.needed > 1500 * 2000 * 1500
    on_gpu = plan_rendering(scene, cameras, "cuda")
    assert on_gpu.needed > plan.needed + 59 * 4 * 1000  # the scene is not there yet
    limited(plan.needed)
    assert plan_rendering(scene, cameras, "cpu").strips > 1


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ("gart.training.trainer.photometric_loss", "the loss of view"),
        ("gart.training.optimizer.Adam.step", "Adam in iteration 1, with 50 Gaussians,"),
        ("gart.training.strategies.mcmc.relocate", "densification in iteration 1"),
        ("gart.training.trainer.smooth", "the forward pass of view"),
    ],
)
def test_a_step_names_what_ran_out(monkeypatch, part, what):
    trainer = Trainer(capture(), TrainConfig(budget=100), "cpu")
    monkeypatch.setattr(part, lambda *arguments, **keywords: allocate())
    with pytest.raises(memory.OutOfMemoryError) as caught:
        trainer.step(densify=True)
    message = str(caught.value)
    assert message.startswith(f"out of memory: {what}")
    assert "asked for 4,000,000 GB more than is free" in message
    assert message.endswith("with a lower --budget or a higher --downscale")


def test_out_of_memory_leaves_the_last_checkpoint(monkeypatch, tmp_path):
    from gart.io import RunFolder
    from gart.training.checkpoint import checkpoints

    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    config = TrainConfig(budget=100, iterations=5, checkpoint_every=2)
    advance = Trainer.advance

    def fails(trainer):
        if trainer.iteration == 3:
            with trainer._naming("the loss"):
                allocate()
        return advance(trainer)

    monkeypatch.setattr(Trainer, "advance", fails)
    with pytest.raises(memory.OutOfMemoryError, match="the loss in iteration 4"):
        train(capture(), config, folder, "cpu")
    assert [path.stem for path in checkpoints(folder.checkpoints)] == ["iteration_0000002"]
    monkeypatch.setattr(Trainer, "advance", advance)
    train(capture(), replace(config, memory_limit=10**9), folder, "cpu", resume=True)
    assert folder.point_cloud.exists()


def test_the_command_line_explains(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(["train", "demo", "--budget", "400000000", "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: budget 400,000,000 needs about ")
    assert error.count("\n") == 1
    assert not any(tmp_path.iterdir())
    monkeypatch.setattr("gart.datasets.load", lambda *a, **k: allocate())
    assert run(["train", "demo", "--device", "cpu"]) == 1
    assert capsys.readouterr().err == (
        "error: out of memory: this command asked for 4,000,000 GB more than is free; take fewer "
        "Gaussians or smaller images, or free memory that others use\n"
    )


def test_plan_of_what_does_not_fit():
    plan = Plan.of(lambda n: 100 + n, 3, 50)
    assert (plan.fits, plan.strips, plan.needed, plan.usable) == (False, 1, 101, 45)
    assert Plan.of(lambda n: 100 / n, 3, 1000, 60) == Plan(50, 60, 60, 2)
