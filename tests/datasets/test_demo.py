import numpy as np
import pytest
import torch

from gart.datasets import demo, load
from gart.datasets.demo_world import SOLIDS, Box, Cylinder, Sphere, cast, unit, vector


@pytest.fixture(scope="module")
def capture():
    return load("demo")


def test_views_and_split(capture):
    assert capture.name == "demo"
    assert [v.name for v in capture.test] == [f"{i:03d}.png" for i in (0, 8, 16, 24, 32)]
    assert [v.name for v in capture.train] == [f"{i:03d}.png" for i in range(40) if i % 8]
    assert capture.background == (0.0, 0.0, 0.0)
    assert capture.metadata == {
        "source": "demo",
        "loader": "demo",
        "downscale": 1,
        "split": "every 8th by name",
    }
    for view in [*capture.train, *capture.test]:
        assert view.image.dtype == torch.uint8
        assert tuple(view.image.shape) == (144, 192, 3)
        assert (view.camera.width, view.camera.height) == (192, 144)
        assert view.image.is_contiguous()
        shown = (view.image > 0).any(-1).float().mean()
        assert 0.3 < shown < 0.9
        rotation = view.camera.c2w[:, :3]
        torch.testing.assert_close(rotation @ rotation.T, torch.eye(3), atol=1e-6, rtol=0)
        assert torch.linalg.det(rotation) > 0
        assert view.camera.center[2] > 0.5
        target = view.camera.project(torch.tensor([demo._TARGET]))
        torch.testing.assert_close(
            target[0], torch.tensor([96.0, 72.0]).double(), atol=0.01, rtol=0
        )


def test_it_is_the_same_every_time(capture):
    again = load("demo", downscale=2)
    assert torch.equal(again.points, capture.points)
    assert torch.equal(again.point_colors, capture.point_colors)
    view, small = capture.test[2], again.test[2]
    assert tuple(small.image.shape) == (72, 96, 3)
    assert small.camera.fx == view.camera.fx / 2
    blocks = view.image.double().reshape(72, 2, 96, 2, 3).mean((1, 3))
    torch.testing.assert_close(small.image.double(), blocks, atol=0.51, rtol=0)
    assert again.metadata["downscale"] == 2


def test_points_are_seen_on_the_solids_with_their_colours(capture):
    assert 2500 < len(capture.points) <= 3000
    assert capture.points.dtype == torch.float32
    off = np.full(len(capture.points), np.inf)
    for solid in SOLIDS:
        p = solid.local(capture.points.numpy().T, points=True)
        if isinstance(solid, Sphere):
            distance = np.abs(np.linalg.norm(p, axis=0) - solid.radius)
        elif isinstance(solid, Box):
            distance = np.abs((np.abs(p) - vector(*solid.half)).max(0))
        else:
            assert isinstance(solid, Cylinder)
            wall = np.hypot(p[0], p[1]) - solid.radius
            middle = np.abs(p[2] - solid.height / 2) - solid.height / 2
            distance = np.abs(np.maximum(wall, middle))
        off = np.minimum(off, distance)
    assert off.max() < 6 * 0.004
    assert 0.001 < np.median(off) < 0.004
    wanted = 3000 // 35
    for index in (0, 17):  # the first views' points come first
        view = capture.train[index]
        points = capture.points[index * wanted : (index + 1) * wanted]
        pixels = view.camera.project(points).long().clamp_min(0)
        x, y = pixels[:, 0].clamp_max(191), pixels[:, 1].clamp_max(143)
        colors = capture.point_colors[index * wanted : (index + 1) * wanted]
        difference = (view.image[y, x].float() - colors.float()).abs().mean(-1)
        assert difference.median() < 4


@pytest.mark.parametrize("solid", SOLIDS, ids=lambda solid: type(solid).__name__)
def test_hits_lie_on_surfaces_whose_normals_face_the_ray(solid):
    random = np.random.default_rng(0)
    center = vector(*solid.center)
    origins = center + 4 * unit(random.standard_normal((3, 2000))).astype(np.float32)
    aims = center + 0.3 * random.standard_normal((3, 2000)).astype(np.float32)
    directions = unit(aims - origins)
    distance = solid.hit(origins, directions)
    found = np.isfinite(distance)
    assert 0.1 < found.mean() <= 1
    origins, directions, distance = origins[:, found], directions[:, found], distance[found]
    points = solid.local(origins + directions * distance, points=True)
    toward = solid.local(directions, points=False)
    normals = solid.normal(points)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=0), 1, atol=1e-3)
    assert ((normals * toward).sum(0) < 0.01).all()
    enter, leave = solid.span(points - 1e-3 * normals, toward)  # just inside
    assert ((enter < 0) & (leave > 0)).mean() > 0.99


def test_shading_and_shadow():
    origin = vector(0, 0, 3)
    directions = unit(np.concatenate([vector(0.9, 0.0, 0) - origin, vector(0.1, 0.1, 1)], 1))
    above, low = unit(vector(0.01, 0.01, 1)), unit(vector(-1, 0.24, 0.4))
    lit, distance = cast(origin, directions, np.repeat(above, 2, 1))
    shaded, _ = cast(origin, directions, np.repeat(low, 2, 1))  # the marble stands in between
    assert distance[0] == pytest.approx(np.hypot(3, 0.9), abs=1e-4)
    assert np.isinf(distance[1])
    assert (lit[:, 1] == 0).all()
    assert (shaded[:, 0] < 0.6 * lit[:, 0]).all()
