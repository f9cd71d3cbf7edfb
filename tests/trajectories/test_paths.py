import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scenes import camera
from scipy.spatial.transform import Rotation

from gart.errors import GartError, UsageError
from gart.trajectories import make_path
from gart.trajectories.paths import up_direction

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


def survey(headings, noise=0.0, z=60.0):
    """40 cameras of a drone in five rows that looks straight down, but for `noise` radians."""
    random = np.random.default_rng(0)
    cameras = []
    for i in range(40):
        heading = headings(i)
        right = np.array([math.cos(heading), math.sin(heading), 0])
        level = np.stack([right, np.cross([0, 0, -1], right), [0, 0, -1]], 1)
        turn = Rotation.from_rotvec(random.normal(0, noise, 3)).as_matrix()
        center = [[10 * (i // 8)], [8 * (i % 8)], [z + random.normal(0, 10 * noise)]]
        pose = np.concatenate([turn @ level, center], 1)
        cameras.append(camera(pose=torch.from_numpy(pose).float()))
    return cameras


HEADINGS = {
    "rows": lambda i: math.pi * (i // 8 % 2),
    "any": lambda i: 2.4 * i,
    "one": lambda i: 0.0,
}


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.08])
@pytest.mark.parametrize("headings", HEADINGS)
def test_paths_over_a_survey_stay_above_the_ground(headings, noise):
    cameras = survey(HEADINGS[headings], noise)
    for name in ("orbit", "spiral"):
        path = make_path(name, cameras, 60)
        places, poses = centers(path), [c.c2w.double().numpy() for c in path]
        # The spiral also rises and sinks, by no more than a third of the way to what it looks at.
        assert np.abs(places[:, 2] - 60).max() < (2 if name == "orbit" else 12)
        assert np.abs(places[:, :2] - [20, 28]).max() < 45
        assert min(-pose[2, 2] for pose in poses) > 0.9  # they look down
        for a, b in pairwise([*poses, poses[0]]):  # without sudden turns
            assert np.trace(a[:, :3].T @ b[:, :3]) > 1 + 2 * math.cos(math.radians(10))


def test_up_of_a_survey_of_all_headings_is_up():
    for headings in ("rows", "any"):
        poses = np.stack([c.c2w.double().numpy() for c in survey(HEADINGS[headings], 0.05)])
        assert up_direction(poses)[2] > 0.99


def test_cameras_above_each_other_make_no_orbit():
    stack = [looking((1e-9, 0, z), (0, 0, 0)) for z in (3, 4)]
    with pytest.raises(GartError, match=r"needs cameras beside what they look at"):
        make_path("orbit", stack, 5)


def test_a_wall_is_circled_in_front(wall):
    path = make_path("orbit", wall, 12)
    assert centers(path)[:, 1].max() < 0.1
    for c in path:
        assert c.c2w[1, 2] > 0.9
    assert_rigid_and_upright(path)
