import math

import pytest
import torch
from scenes import random_gaussians

from gart import stages
from gart.capture import Capture, View
from gart.errors import GartError
from gart.profiling import orbit, profile_rendering, profile_training, tables
from gart.profiling.measure import WARM_UP
from gart.training import TrainConfig, Trainer


@pytest.fixture
def capture():
    cameras = orbit(random_gaussians(50), count=3, width=24, height=16)
    random = torch.Generator().manual_seed(0)
    views = [
        View(f"{i}", c, torch.randint(0, 256, (16, 24, 3), generator=random, dtype=torch.uint8))
        for i, c in enumerate(cameras)
    ]
    points = random_gaussians(60).means
    return Capture("noise", views, [], points, torch.full((60, 3), 128, dtype=torch.uint8))


def test_orbit_sees_the_scene():
    gaussians = random_gaussians(200)
    for camera in orbit(gaussians, count=5):
        rotation = camera.c2w[:, :3]
        assert torch.allclose(rotation @ rotation.T, torch.eye(3), atol=1e-6)
        assert math.isclose(float(rotation.det()), 1, abs_tol=1e-5)
        pixels = camera.project(gaussians.means)
        size = torch.tensor([camera.width, camera.height])
        inside = ((pixels > 0) & (pixels < size)).all(-1)
        assert inside.float().mean() > 0.5
        middle = camera.project(gaussians.means.median(0).values)
        assert torch.allclose(middle, size.double() / 2, atol=1e-2)


def test_orbit_of_nothing():
    with pytest.raises(GartError, match="holds no Gaussian"):
        orbit(random_gaussians(0))


def test_training_modes_start_from_one_state(capture):
    config = TrainConfig(iterations=20, budget=100)
    trainer = Trainer(capture, config)
    for _ in range(3):
        trainer.step()
    state = trainer.state()
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    calls = []
    result = profile_training(
        capture, config, iterations=2, state=state, report=lambda *args: calls.append(args)
    )
    assert list(result["columns"]) == ["primitive", "hybrid", "pixel"]
    assert [done for done, _, _ in calls] == [1, 2, 3, 4, 5, 6]
    assert {total for _, total, _ in calls} == {6}
    assert all(torch.equal(before[name], tensor) for name, tensor in state.tensors.items())
    counts = [column["counts"] for column in result["columns"].values()]
    assert counts[0]["hits"] > 0
    # Equal states and views: only rounding may differ between the modes.
    for other in counts[1:]:
        assert other["hits"] == pytest.approx(counts[0]["hits"], rel=1e-3)
        assert other["pairs"] == pytest.approx(counts[0]["pairs"], rel=1e-3)
    assert counts[0]["hits per pixel"] == pytest.approx(counts[0]["hits"] / (16 * 24))


def test_stages_sum_to_the_total(capture):
    result = profile_training(capture, TrainConfig(budget=100), iterations=3, backward=["pixel"])
    column = result["columns"]["pixel"]
    assert sum(column["stages_ms"].values()) == pytest.approx(column["total_ms"])
    assert column["lt_buffer_bytes"] > 0
    assert column["peak_bytes"] > 10 * 2**20


def test_warm_up_is_not_recorded(monkeypatch):
    calls = []

    def render_view(gaussians, camera, mode, settings):
        calls.append(camera)
        stages.add("forward", 5.0)
        stages.count("hits", 7)
        stages.count("pixels", 2)

    monkeypatch.setattr("gart.profiling.measure.render_view", render_view)
    result = profile_rendering(random_gaussians(5), ["a", "b"], iterations=4)
    column = result["columns"]["rt"]
    assert calls == (["a", "b"] * 3)[: WARM_UP + 4]
    assert column["stages_ms"]["forward"] == 5.0
    assert column["counts"] == {"hits": 7, "pixels": 2, "hits per pixel": 3.5}


def test_no_camera():
    with pytest.raises(GartError, match="no view to profile"):
        profile_rendering(random_gaussians(5), [])


def test_tables_hold_every_stage_and_column():
    def column(factor):
        return {
            "repetitions": 4,
            "total_ms": 10.0 * factor,
            "stages_ms": {"other": 1.0, "forward": 9.0 * factor},
            "counts": {"hits": 1234.4, "hits per pixel": 2.345, "LT buffer bytes": 5.0},
            "peak_bytes": 3 * 2**20,
            "lt_buffer_bytes": 2**19,
        }

    profile = {"kind": "training", "columns": {"primitive": column(1), "pixel": column(2)}}
    times, amounts = ([list(c.cells) for c in table.columns] for table in tables(profile))
    assert times == [
        ["forward", "other", "total"],
        ["9.00", "1.00", "10.00"],
        ["18.00", "1.00", "20.00"],
    ]
    assert amounts[0] == ["hits", "hits per pixel", "LT buffer, MiB", "peak memory, MiB"]
    assert amounts[1] == ["1,234", "2.35", "0.5", "3"]
