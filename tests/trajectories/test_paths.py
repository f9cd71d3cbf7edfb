import math

import numpy as np
import pytest
import torch
from scenes import camera

from gart.errors import GartError, UsageError
from gart.trajectories import make_path

UP = np.array([0.0, 0.0, 1.0])


def looking(position, target=(0.0, 0.0, 0.0)):
    """A camera at `position` that looks at `target`, z up."""
    position, target = np.array(position, float), np.array(target, float)
    forward = (target - position) / np.linalg.norm(target - position)
    right = np.cross(forward, UP)
    right /= np.linalg.norm(right)
    pose = np.stack([right, np.cross(forward, right), forward, position], 1)
    return camera(pose=torch.from_numpy(pose).float())


@pytest.fixture
def ring():
    """Twelve cameras on a circle of radius 3, at height 1, looking at (1, 2, 0)."""
    angles = [2 * math.pi * i / 12 for i in range(12)]
    places = [(1 + 3 * math.cos(a), 2 + 3 * math.sin(a), 1.0) for a in angles]
    return [looking(place, (1, 2, 0)) for place in places]


@pytest.fixture
def wall():
    """Nine cameras in a plane, all facing +y."""
    return [looking((x, 0, z), (x, 9, z)) for x in (-1, 0, 1) for z in (-0.5, 0, 0.5)]


def centers(path):
    return torch.stack([c.center for c in path]).double().numpy()


def assert_rigid_and_upright(path):
    for c in path:
        rotation = c.c2w[:, :3].double()
        assert torch.allclose(rotation @ rotation.T, torch.eye(3).double(), atol=1e-5)
        assert rotation.det() > 0
        assert -rotation[2, 1] > 0  # up is up
        assert abs(rotation[2, 0]) < 1e-5  # the horizon is level


def test_orbit_circles_what_the_cameras_look_at(ring):
    path = make_path("orbit", ring, 8)
    offsets = centers(path) - [1, 2, 0]
    assert np.allclose(np.hypot(offsets[:, 0], offsets[:, 1]), 3, atol=1e-4)
    assert np.allclose(offsets[:, 2], 1, atol=1e-4)
    for c in path:
        seen = c.project(torch.tensor([1.0, 2.0, 0.0]))
        assert torch.allclose(seen, torch.tensor([c.cx, c.cy]).double(), atol=1e-3)
    steps = np.linalg.norm(np.diff(offsets, axis=0, append=offsets[:1]), axis=1)
    assert np.allclose(steps, steps[0], atol=1e-4)  # the last frame leads to the first
    assert_rigid_and_upright(path)


def test_paths_take_the_lens_of_the_first_camera(ring):
    ring[0] = camera(50, 30, fov=40, pose=ring[0].c2w)
    for name in ("orbit", "spiral", "interpolate"):
        assert {c.lens for c in make_path(name, ring, 5)} == {ring[0].lens}


def test_spiral_stays_within_the_cameras_and_looks_ahead(wall):
    path = make_path("spiral", wall, 40)
    places = centers(path)
    assert np.abs(places[:, 0]).max() == pytest.approx(1, abs=0.01)
    assert np.abs(places[:, 2]).max() == pytest.approx(0.5, abs=0.01)
    assert np.abs(places[:, 1]).max() < 1e-5
    for c in path:
        assert c.c2w[1, 2] > 0.9
    steps = np.linalg.norm(np.diff(places, axis=0, append=places[:1]), axis=1)
    assert steps[-1] == pytest.approx(steps[0], rel=0.5)
    assert_rigid_and_upright(path)


def test_spiral_of_a_ring_stays_outside_of_what_it_looks_at(ring):
    for c in make_path("spiral", ring, 20):
        seen = c.project(torch.tensor([1.0, 2.0, 0.0]))
        assert torch.allclose(seen, torch.tensor([c.cx, c.cy]).double(), atol=1e-3)
        assert (c.center - torch.tensor([1.0, 2.0, 0.0])).norm() > 2


def test_orbit_of_a_capture_that_faces_one_way(wall):
    # Parallel axes meet nowhere; the orbit stays in front of the cameras' plane.
    path = make_path("orbit", wall, 6)
    assert_rigid_and_upright(path)
    assert np.abs(centers(path)).max() < 10


def test_interpolation_passes_through_every_camera(ring):
    path = make_path("interpolate", ring, 11 * 20 + 1)
    for i, c in enumerate(ring):
        # Steps are equal on a regular ring.
        assert torch.allclose(path[20 * i].c2w, c.c2w, atol=1e-5)
    steps = np.linalg.norm(np.diff(centers(path), axis=0), axis=1)
    assert steps.max() < 2.5 * steps.min()
    assert len(make_path("interpolate", ring, 1)) == 1


def test_interpolation_skips_a_view_that_is_there_twice(ring):
    doubled = [*ring[:4], ring[3], *ring[4:]]
    for a, b in zip(
        make_path("interpolate", doubled, 30), make_path("interpolate", ring, 30), strict=True
    ):
        assert torch.allclose(a.c2w, b.c2w, atol=0.05)


def test_what_makes_no_path(ring):
    with pytest.raises(UsageError, match=r"path is 'zoom'; expected orbit, spiral, interpolate"):
        make_path("zoom", ring, 5)
    with pytest.raises(UsageError, match=r"--frames is 0; expected 1 to 100000"):
        make_path("orbit", ring, 0)
    for few in ([], ring[:1], [ring[0], ring[0]]):
        with pytest.raises(GartError, match=r"needs cameras at two places"):
            make_path("orbit", few, 5)
