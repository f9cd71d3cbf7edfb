from dataclasses import replace

import pytest
import torch

from gart.capture import View
from gart.errors import GartError
from gart.training.config import TrainConfig
from gart.training.initialization import (
    SH_C0,
    focus_point,
    initial_gaussians,
    neighbor_scales,
    random_points,
    scene_extent,
)

FAR = torch.tensor([[1000.0, 0, 0]])


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_scales_on_a_grid_are_its_spacing():
    axis = torch.arange(4.0)
    grid = torch.cartesian_prod(axis, axis, axis) * 0.25
    torch.testing.assert_close(neighbor_scales(grid, FAR), torch.full((64,), 0.25))


def test_scales_are_the_root_mean_square_of_three_distances():
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3], [50, 0, 0]])
    assert float(neighbor_scales(points, FAR)[0]) == pytest.approx(((1 + 4 + 9) / 3) ** 0.5)


def test_duplicates_and_strays_are_clamped():
    points = torch.randn(200, 3, generator=rng())
    points[:10] = points[0]
    points[-1] = torch.tensor([500.0, 0, 0])
    camera = torch.tensor([[510.0, 0, 0]])
    scales = neighbor_scales(points, camera)
    usual = scales[20:-1].median()
    assert float(scales[5]) == pytest.approx(1e-3 * float(usual), rel=0.1)
    assert float(scales[-1]) == pytest.approx(1.0)  # a tenth of the way to the camera
    assert float(neighbor_scales(points, points[50:51])[50]) > 0


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_points_and_only_duplicates(n):
    scales = neighbor_scales(torch.arange(3.0)[:n, None].repeat(1, 3), FAR)
    assert scales.shape == (n,)
    assert (scales > 0).all()
    assert (neighbor_scales(torch.zeros(n, 3), FAR) > 0).all()


def test_points_become_gaussians(small_capture):
    small_capture.points[3, 1] = torch.nan
    scene = initial_gaussians(small_capture, TrainConfig(sh_degree=2), rng())
    assert len(scene) == 39
    assert scene.sh.shape == (39, 9, 3)
    kept = [i for i in range(40) if i != 3]
    assert torch.equal(scene.means, small_capture.points[kept])
    colors = 0.5 + SH_C0 * scene.sh[:, 0]
    torch.testing.assert_close(colors, small_capture.point_colors[kept].float() / 255)
    assert (scene.sh[:, 1:] == 0).all()
    torch.testing.assert_close(scene.opacity_logits.sigmoid(), torch.full((39,), 0.5))
    assert torch.equal(scene.log_scales, scene.log_scales[:, :1].expand(-1, 3))


def test_more_points_than_the_budget_are_thinned(small_capture):
    scene = initial_gaussians(small_capture, TrainConfig(budget=15), rng())
    assert len(scene) == 15
    rows = torch.cdist(scene.means, small_capture.points).argmin(1)
    assert rows.tolist() == sorted(set(rows.tolist()))


def test_without_points_gaussians_lie_where_cameras_look(small_capture):
    empty = replace(
        small_capture, points=torch.zeros(0, 3), point_colors=torch.zeros(0, 3, dtype=torch.uint8)
    )
    scene = initial_gaussians(empty, TrainConfig(init_random=500), rng())
    assert len(scene) == 500
    seen = torch.zeros(500, dtype=torch.bool)
    for view in empty.train:
        x, y = view.camera.project(scene.means).unbind(-1)
        seen |= (x > 0) & (x < view.camera.width) & (y > 0) & (y < view.camera.height)
    assert seen.all()
    assert len(initial_gaussians(empty, TrainConfig(init_random=500, budget=70), rng())) == 70


def test_random_points_take_content_pixels_and_their_colours(small_capture):
    camera = small_capture.train[0].camera
    image = torch.zeros(20, 24, 4, dtype=torch.uint8)
    image[4:6, 10:12] = torch.tensor([200, 10, 30, 255], dtype=torch.uint8)
    points, colors = random_points([View("a", camera, image)], 100, rng())
    x, y = camera.project(points).unbind(-1)
    assert ((x > 10) & (x < 12) & (y > 4) & (y < 6)).all()
    assert (colors == torch.tensor([200, 10, 30])).all()
    mask = torch.zeros(20, 24, dtype=torch.bool)
    mask[0, 0] = True
    points, _ = random_points([View("a", camera, image[..., :3], mask)], 50, rng())
    torch.testing.assert_close(
        camera.project(points), torch.full((50, 2), 0.5, dtype=torch.float64), atol=1e-3, rtol=0
    )


def test_focus_of_converging_and_of_parallel_cameras(small_capture, camera_at):
    cameras = [view.camera for view in small_capture.train]
    torch.testing.assert_close(
        focus_point(cameras), torch.zeros(3, dtype=torch.float64), atol=1e-5, rtol=0
    )
    one = camera_at(0.3)
    other = replace(one, c2w=one.c2w + torch.tensor([0, 0, 0, 1.0]))
    assert focus_point([one, other]).isfinite().all()


def test_extent_is_of_the_cameras(small_capture, camera_at):
    cameras = [view.camera for view in small_capture.train]
    centers = torch.stack([c.center for c in cameras])
    expected = 1.1 * (centers - centers.mean(0)).norm(dim=-1).max()
    assert scene_extent(cameras) == pytest.approx(float(expected))
    assert scene_extent([camera_at(0.0)]) == 1.0


def test_no_training_view_is_refused(small_capture):
    with pytest.raises(GartError, match=r"^capture small has no training views; check its split$"):
        initial_gaussians(replace(small_capture, train=[]), TrainConfig(), rng())
