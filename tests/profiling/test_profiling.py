import math
from dataclasses import replace

import pytest
import torch
from scenes import camera as view_of_size
from scenes import random_gaussians

from gart import stages
from gart.capture import Capture, View
from gart.errors import GartError
from gart.memory import format_size
from gart.profiling import orbit, profile_rendering, profile_training, tables
from gart.profiling.measure import WARM_UP
from gart.tracing import LT_LAYOUTS
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


def test_a_densification_is_measured_where_none_is_due(capture):
    config = TrainConfig(iterations=30, budget=100, growth=0.5)
    trainer = Trainer(capture, config)
    for _ in range(30):
        trainer.step()
    assert not any(trainer.schedule.densifies(iteration) for iteration in range(31, 60))
    result = profile_training(
        capture, config, iterations=1, backward=["primitive"], state=trainer.state()
    )
    assert result["columns"]["primitive"]["densification_ms"] > 0
    times = tables(result)[0]
    assert list(times.columns[0].cells)[-1] == "densify, when it is due"


def test_a_run_without_densifications_has_none(capture):
    config = TrainConfig(iterations=30, budget=100, densify_until=0)
    result = profile_training(capture, config, iterations=1, backward=["primitive"])
    assert result["columns"]["primitive"]["densification_ms"] is None
    assert list(tables(result)[0].columns[0].cells)[-1] == "total"


def test_layouts_side_by_side(capture):
    config = TrainConfig(budget=100)
    result = profile_training(
        capture, config, iterations=1, backward=["primitive", "pixel"], lt_layouts=LT_LAYOUTS
    )
    columns = result["columns"]
    assert list(columns) == ["primitive", "pixel", "primitive aabb", "pixel aabb"]
    counts = {name: column["counts"] for name, column in columns.items()}
    for name in columns:
        assert counts[name]["pairs with hits"] == counts["primitive"]["pairs with hits"]
    hits, pairs = (counts["primitive"][key] for key in ("hits", "pairs with hits"))
    # Degree 0: a colour of three, 10 moments against 11 parameters.
    additions = {name: column["additions to memory"] for name, column in counts.items()}
    assert additions == {
        "primitive": 13 * pairs,
        "pixel": 13 * hits,
        "primitive aabb": 14 * pairs,
        "pixel aabb": 14 * hits,
    }
    assert "LT buffer" in columns["primitive aabb"]["stages_ms"]
    assert columns["primitive aabb"]["lt_buffer_bytes"] % 16 == 0
    assert columns["pixel aabb"]["lt_buffer_bytes"] == columns["pixel"]["lt_buffer_bytes"]


def test_a_buffer_that_does_not_fit_is_said_to_need_so_much(capture, monkeypatch):
    def profiled():
        modes = {"backward": ["primitive"], "lt_layouts": LT_LAYOUTS}
        return profile_training(tall, TrainConfig(budget=100), iterations=3, **modes)

    # More than a strip high: the buffers of strips would fit.
    cameras = orbit(random_gaussians(50), count=1, width=24, height=200)
    view = View("tall", cameras[0], torch.zeros(200, 24, 3, dtype=torch.uint8))
    tall = replace(capture, train=[view])
    needed = profiled()["columns"]["primitive aabb"]["lt_buffer_bytes"]
    monkeypatch.setattr("gart.tracing.boxes.free_memory", lambda device: needed // 2)
    result = profiled()
    column = result["columns"]["primitive aabb"]
    assert column == {"repetitions": 3, "needs_bytes": pytest.approx(needed, rel=0.1)}
    times, amounts = ([list(c.cells) for c in table.columns] for table in tables(result))
    assert times[2][times[0].index("total")] == f"needs {format_size(column['needs_bytes'])}"
    assert times[2][times[0].index("backward")] == ""
    assert amounts[2][amounts[0].index("LT buffer, MiB")] == ""


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


def test_the_rasterizer_shows_its_stages_and_tests_per_pixel():
    result = profile_rendering(random_gaussians(20), [view_of_size()], mode="tilegs", iterations=2)
    column = result["columns"]["tilegs"]
    assert list(column["stages_ms"])[:-1] == ["project", "intersect", "bins", "repair", "raster"]
    counts = column["counts"]
    assert counts["tests per pixel"] == counts["tests"] / (37 * 23) > 1
    rows = [list(table.columns[0].cells) for table in tables(result)]
    assert rows[1][-3:] == ["tests per pixel", "tile stream, MiB", "peak memory, MiB"]


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
