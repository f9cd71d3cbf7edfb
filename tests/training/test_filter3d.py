from dataclasses import replace

import pytest
import torch

from gart.cameras import Camera
from gart.training.filter3d import SamplingFilter, smooth


def forward_camera(z: float, f: float, model: str = "pinhole") -> Camera:
    """At (0, 0, z), looking along +z, 100 x 80 pixels."""
    c2w = torch.eye(4)[:3].clone()
    c2w[2, 3] = z
    return Camera(c2w, f, f, 50, 40, 100, 80, model)


def test_interval_is_the_finest_that_sees_the_place():
    cameras = [forward_camera(0, 100), forward_camera(-10, 400)]
    means = torch.tensor([[0.0, 0, 5], [0, 0, -4], [3, 0, 5]])
    # 5 / 100 against 15 / 400; only the second sees z = -4; the third is left of neither's border
    intervals = SamplingFilter(cameras, 0.1, "cpu").intervals(means)
    torch.testing.assert_close(
        intervals, torch.tensor([15 / 400, 6 / 400, 5 / 100]), rtol=1e-5, atol=0
    )


def test_unseen_places_take_the_coarsest_seen_interval():
    one = SamplingFilter([forward_camera(0, 100)], 0.1, "cpu")
    means = torch.tensor([[0.0, 0, 2], [0, 0, 8], [0, 0, -3], [9, 0, 1], [0, 0, 0.05]])
    expected = torch.tensor([0.02, 0.08, 0.08, 0.08, 0.08])
    torch.testing.assert_close(one.intervals(means), expected)
    assert (one.intervals(means[2:]) == 0).all()
    assert one.intervals(means[:0]).shape == (0,)


def test_the_border_of_the_image_counts():
    one = SamplingFilter([forward_camera(0, 100)], 0.1, "cpu")
    edge = 0.495 + 0.15 * 0.99  # outermost pixel centres, and 15 % of the distance between them
    means = torch.tensor([[edge - 1e-3, 0, 1.0], [edge + 1e-3, 0, 1.0], [0, 0, 4.0]])
    torch.testing.assert_close(one.intervals(means), torch.tensor([0.01, 0.04, 0.04]))


def test_fisheye_counts_distance_within_its_angle():
    one = SamplingFilter([forward_camera(0, 30, "opencv_fisheye")], 0.1, "cpu")
    means = torch.tensor([[3.0, 0, 4.0], [0, 0, -1.0]])
    torch.testing.assert_close(one.intervals(means), torch.tensor([5 / 30, 5 / 30]))


def test_no_filter_changes_nothing(make_gaussians):
    scene = make_gaussians(20)
    same = smooth(scene, torch.zeros(20))
    torch.testing.assert_close(same.log_scales, scene.log_scales)
    torch.testing.assert_close(same.opacity_logits, scene.opacity_logits)
    large = smooth(scene, torch.full((20,), 1e-6))
    torch.testing.assert_close(large.log_scales, scene.log_scales)


def test_scale_and_opacity_follow_the_formula(make_gaussians):
    scene = make_gaussians(20).map(lambda t: t.double())
    sizes = torch.rand(20, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    result = smooth(scene, sizes)
    variance = scene.log_scales.exp() ** 2
    wider = variance + sizes[:, None] ** 2
    torch.testing.assert_close(result.log_scales.exp() ** 2, wider)
    opacity = scene.opacity_logits.sigmoid() * (variance.prod(-1) / wider.prod(-1)).sqrt()
    torch.testing.assert_close(result.opacity_logits.sigmoid(), opacity)
    assert result.means is scene.means
    assert result.sh is scene.sh


def test_a_needle_becomes_the_filter_with_its_opacity_spread(make_gaussians):
    scene = make_gaussians(1)
    scene.log_scales[:] = torch.tensor([-40.0, -40.0, 0.0])
    result = smooth(scene, torch.tensor([0.1]))
    torch.testing.assert_close(result.log_scales[0, :2].exp(), torch.full((2,), 0.1))
    assert result.opacity_logits.isfinite().all()
    assert result.opacity_logits.sigmoid() < 1e-20


@pytest.mark.parametrize("logit", [-70.0, 90.0, float("inf")])
def test_extreme_opacities(make_gaussians, logit):
    scene = replace(make_gaussians(1), opacity_logits=torch.tensor([logit]))
    assert float(smooth(scene, torch.zeros(1)).opacity_logits) == pytest.approx(logit, rel=0.25)
    widened = smooth(scene, torch.full((1,), 0.1))
    assert not widened.opacity_logits.isnan().any()
    assert widened.opacity_logits < logit


def test_gradients(make_gaussians):
    scene = make_gaussians(4).map(lambda t: t.double())
    sizes = torch.tensor([0.0, 0.01, 0.2, 3.0], dtype=torch.float64)

    def run(log_scales, logits):
        result = smooth(replace(scene, log_scales=log_scales, opacity_logits=logits), sizes)
        return result.log_scales, result.opacity_logits

    inputs = (scene.log_scales.requires_grad_(), scene.opacity_logits.requires_grad_())
    assert torch.autograd.gradcheck(run, inputs)
