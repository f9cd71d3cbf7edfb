"""Panoramas and wide fisheyes through tile lists: against the oracle, the tree and themselves."""

import math

import pytest
import torch
from oracle import OUTPUTS, Limits, assert_gradients_agree, assert_images_agree, assert_orders_agree
from scenes import FAR, FISHEYE, camera, gaussian, join, panorama, random_pose, shell

from gart.cameras import Camera
from gart.errors import GartError
from gart.tracing import BACKWARD_MODES, LT_LAYOUTS, SH_MODES, TraceSettings, hit_order, trace
from gart.tracing.ray_grid import fits_tiles, ray_grid

HALF_A_PERCENT = Limits(doubtful=0.005)
"""Many rays: a few stand within rounding of a decision."""
VIEWS = {
    "64 rows": lambda pose: panorama(64, pose=pose),
    "19 rows": lambda pose: panorama(19, pose=pose),
    "one pixel": lambda pose: panorama(1, 1, pose=pose),
    "columns no multiple of tiles": lambda pose: panorama(66, 126, pose=pose),
    "one row": lambda pose: panorama(1, 70, pose=pose),
    "one column": lambda pose: panorama(90, 1, pose=pose),
    "a part": lambda pose: Camera(pose, 30, 28, 60, 10, 100, 40, "equirectangular"),
    "fisheye of 200 degrees": lambda pose: camera(
        48, 48, fov=200, pose=pose, model="opencv_fisheye"
    ),
    "distorted fisheye of 200 degrees": lambda pose: camera(
        48, 40, fov=200, shift=(2, -1), pose=pose, model="opencv_fisheye", distortion=FISHEYE
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_images_orders_and_gradients(name):
    pose = random_pose(8, 2)
    view, scene = VIEWS[name](pose), shell(100, seed=1, pose=pose)
    assert fits_tiles(view, "cpu")
    image = assert_images_agree(scene, view, limits=HALF_A_PERCENT)
    assert image.opacity.max() > 0.01
    assert_orders_agree(scene, view, limits=HALF_A_PERCENT)
    assert_gradients_agree(scene, view, limits=HALF_A_PERCENT)


@pytest.mark.parametrize("sh", SH_MODES)
def test_tiles_and_tree_see_the_same(sh):
    pose = random_pose(4, 3)
    scene, view = shell(300, seed=2, pose=pose), panorama(96, pose=pose)
    found = []
    for tracer in ("tiles", "bvh"):
        leaves = scene.map(lambda t: t.clone().requires_grad_())
        image = trace(leaves, view, TraceSettings(tracer=tracer, sh=sh))
        (image.color.square().sum() + image.opacity.sum() + 0.1 * image.depth.sum()).backward()
        found.append((image, [t.grad.double() for t in leaves.tensors().values()]))
    for output in OUTPUTS:
        difference = (getattr(found[0][0], output) - getattr(found[1][0], output)).abs()
        assert difference.flatten().quantile(0.999) < 2e-5, output  # but for hits at alpha_min
        assert difference.max() < 0.02
    for ours, theirs in zip(found[0][1], found[1][1], strict=True):
        assert (ours - theirs).norm() < 1e-3 * theirs.norm()


def test_the_seam_is_none():
    # A ball behind the camera: its image goes on from the last column to the first.
    ball = gaussian((0.0, 0.2, -3), scales=(0.5, 0.5, 0.5), logit=2)
    image = trace(ball, panorama(128))
    assert image.opacity[:, 0].max() > 0.5
    mirrored = image.opacity.flip(1)
    torch.testing.assert_close(image.opacity, mirrored, rtol=0, atol=1e-5)


def test_a_turn_of_the_camera_moves_the_columns():
    # The faces take other columns: a turn by an eighth brings the corners to the middle.
    scene, view = shell(150, seed=3), panorama(64)
    whole = trace(scene, view)
    angle = math.pi / 4
    turned = torch.tensor(
        [[math.cos(angle), 0, math.sin(angle), 0], [0, 1, 0, 0],
         [-math.sin(angle), 0, math.cos(angle), 0]]
    )  # fmt: skip
    image = trace(scene, panorama(64, pose=turned))
    for output in OUTPUTS:
        moved = getattr(whole, output).roll(-16, 1)
        difference = (getattr(image, output) - moved).abs().flatten()
        assert difference.quantile(0.999) < 2e-5, output


@pytest.mark.parametrize("up", [-1.0, 1.0])
def test_poles(up):
    ball = gaussian((0, 2 * up, 0), scales=(0.2, 0.2, 0.2), logit=2)
    image = trace(ball, panorama(128))
    rows = image.opacity if up < 0 else image.opacity.flip(0)
    assert rows[0].min() > 0.8
    # The same all the way round, however thin the tiles are there.
    spread = image.opacity.amax(1) - image.opacity.amin(1)
    assert spread.max() < 1e-5
    assert float(image.depth[image.opacity > 0.5].mean()) == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("backward", BACKWARD_MODES)
@pytest.mark.parametrize("lt_layout", LT_LAYOUTS)
def test_all_ways_to_gradients(backward, lt_layout):
    settings = TraceSettings(backward=backward, lt_layout=lt_layout)
    assert_gradients_agree(shell(60, seed=8), panorama(40), settings, limits=HALF_A_PERCENT)


def test_far_from_the_origin():
    pose = random_pose(5, FAR)
    scene, view = shell(100, seed=4, pose=pose), panorama(64, pose=pose)
    assert_images_agree(scene, view, limits=HALF_A_PERCENT)
    assert_gradients_agree(scene, view, limits=HALF_A_PERCENT)


def test_gaussians_around_the_camera():
    scene = join(
        shell(60, seed=5), gaussian((0.1, 0.2, -0.3), scales=(1, 2, 1.5), quat=(2, 1, 0, 1)).map(
            lambda t: t if t.ndim < 3 else torch.nn.functional.pad(t, (0, 0, 0, 15))
        ),
    )  # fmt: skip
    settings = TraceSettings(near=1e-5)  # which tiles count along the axis of their face
    assert_images_agree(scene, panorama(64), settings, HALF_A_PERCENT)
    assert_gradients_agree(scene, panorama(64), settings, limits=HALF_A_PERCENT)


@pytest.mark.parametrize("size", [(8, 4), (36, 18), (16, 1)])
def test_panoramas_too_small_for_tiles_go_through_the_tree(size):
    view, scene = panorama(size[1], size[0]), shell(100, seed=6)
    assert not fits_tiles(view, "cpu")
    assert_images_agree(scene, view)
    assert_gradients_agree(scene, view)
    with pytest.raises(GartError, match=rf"equirectangular image of {size[0]} x {size[1]} pixels"):
        hit_order(scene, view)


def test_all_larger_panoramas_fit_tiles():
    for height in (*range(19, 80), 101, 150, 333):
        assert fits_tiles(panorama(height), "cpu"), height


def test_strips_change_no_bit():
    scene, view = shell(150, seed=7), panorama(136)
    whole = trace(scene, view)
    strips = trace(scene, view, TraceSettings(memory_limit=0))
    for output in OUTPUTS:
        assert torch.equal(getattr(whole, output), getattr(strips, output))


def test_a_small_support_has_few_tiles_to_be_tested_against():
    # What the GPU finds by bisection (csrc/cuda/project.cu): of 64 x 128 tiles.
    grid = ray_grid(panorama(512), "cpu")
    faces = grid.tile_face.bincount()
    assert faces.sum() == 64 * 128
    random = torch.Generator().manual_seed(0)
    away = torch.nn.functional.normalize(torch.randn(500, 3, generator=random), dim=1)
    tested = []
    for face, axes in enumerate(grid.face_axes):
        local = away @ axes.T
        for x, y in (local[:, :2] / local[:, 2:])[local[:, 2] > 0.1].tolist():
            columns = (grid.columns[face, 1] >= x) & (grid.columns[face, 0] <= x)
            rows = (grid.rows[face, 1] >= y) & (grid.rows[face, 0] <= y)
            tested.append(int(columns.sum() * rows.sum()))
    # 27 tiles on average; the faces of a cube that is not turned would make it 334.
    assert sum(tested) / len(away) < 40
