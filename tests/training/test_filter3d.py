from dataclasses import replace

import pytest
import torch
import training_oracle

from gart.cameras import Camera
from gart.scene import Gaussians
from gart.training.filter3d import SamplingFilter, smooth, smooth_backward


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


def test_a_panorama_counts_distance_everywhere():
    view = replace(forward_camera(0, 30, "equirectangular"), fx=100 / 6.2832, fy=80 / 3.1416)
    means = torch.tensor([[3.0, 0, 4.0], [0, 0, -1.0], [0, 2.0, 0]])
    found = SamplingFilter([view], 0.1, "cpu").intervals(means)
    torch.testing.assert_close(found, torch.tensor([5.0, 1, 2]) * 3.1416 / 80)


def test_parallel_rays_are_a_pixel_apart_at_all_depths():
    one = SamplingFilter([forward_camera(0, 20, "orthographic")], 0.1, "cpu")
    means = torch.tensor([[0.0, 0, 1], [2.0, -1.5, 90.0], [4.0, 0, 1]])
    found = one.intervals(means)
    torch.testing.assert_close(found[:2], torch.full((2,), 1 / 20), rtol=0.01, atol=0)
    assert found[2] == found.max()  # seen by nobody


def test_no_filter_changes_nothing(make_gaussians):
    scene = make_gaussians(20)
    same = smooth(scene, torch.zeros(20))
    torch.testing.assert_close(same.log_scales, scene.log_scales)
    torch.testing.assert_close(same.opacity_logits, scene.opacity_logits)
    large = smooth(scene, torch.full((20,), 1e-6))
    torch.testing.assert_close(large.log_scales, scene.log_scales)


def test_scale_and_opacity_follow_the_formula(make_gaussians):
    scene = make_gaussians(20)
    sizes = torch.rand(20, generator=torch.Generator().manual_seed(3))
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


def test_the_oracle_has_the_same_filter(make_gaussians):
    scene = make_gaussians(50)
    scene.log_scales[:] *= 3
    scene.opacity_logits[:] *= 5
    sizes = torch.rand(50, generator=torch.Generator().manual_seed(3))
    expected = training_oracle.smooth(scene.map(lambda t: t.double()), sizes.double())
    result = smooth(scene, sizes)
    for name in ("log_scales", "opacity_logits"):
        torch.testing.assert_close(
            getattr(result, name).double(), getattr(expected, name), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("logit", [-70.0, 90.0, float("inf")])
def test_extreme_opacities(make_gaussians, logit):
    scene = replace(make_gaussians(1), opacity_logits=torch.tensor([logit]))
    assert float(smooth(scene, torch.zeros(1)).opacity_logits) == pytest.approx(logit, rel=0.25)
    widened = smooth(scene, torch.full((1,), 0.1))
    assert not widened.opacity_logits.isnan().any()
    assert widened.opacity_logits < logit


def backward(scene: Gaussians, sizes: torch.Tensor, grads: Gaussians, **weights: float):
    """Gradients by the scene, and the fault."""
    grads, fault = grads.map(torch.clone), torch.zeros(2, dtype=torch.int32)
    smooth_backward(scene, sizes, grads, fault, 9, **weights)
    return grads, fault.tolist()


@pytest.mark.parametrize("weights", [{}, {"opacity_reg": 0.3, "scale_reg": 0.7}])
def test_gradients(make_gaussians, weights):
    scene, grads = make_gaussians(200), make_gaussians(200, seed=4)
    sizes = torch.rand(200, generator=torch.Generator().manual_seed(1)) ** 4
    sizes[:20] = 0
    found, fault = backward(scene, sizes, grads, **weights)
    assert fault == [0, 0]
    exact = scene.map(lambda t: t.double().requires_grad_())
    smoothed = training_oracle.smooth(exact, sizes.double())
    loss = (smoothed.log_scales * grads.log_scales).sum()
    loss = loss + (smoothed.opacity_logits * grads.opacity_logits).sum()
    loss = loss + weights.get("opacity_reg", 0) * exact.opacity_logits.sigmoid().mean()
    loss = loss + weights.get("scale_reg", 0) * exact.log_scales.exp().mean()
    loss.backward()
    for name in ("log_scales", "opacity_logits"):
        torch.testing.assert_close(
            getattr(found, name).double(), getattr(exact, name).grad, rtol=1e-4, atol=1e-6
        )
    for name in ("means", "quats", "sh"):
        assert torch.equal(getattr(found, name), getattr(grads, name))


@pytest.mark.parametrize("logit", [-100.0, 90.0, float("inf")])
@pytest.mark.parametrize("size", [0.0, 1e-12, 10.0])
def test_gradients_of_extreme_gaussians_are_finite(make_gaussians, logit, size):
    scene = replace(make_gaussians(1), opacity_logits=torch.tensor([logit]))
    scene.log_scales[:] = torch.tensor([-40.0, 0.0, 12.0])
    grads, fault = backward(scene, torch.tensor([size]), make_gaussians(1, seed=4))
    assert fault == [0, 0]
    assert all(t.isfinite().all() for t in grads.tensors().values())


BITS = {"means": 2, "quats": 4, "log_scales": 8, "opacity_logits": 16, "sh": 32}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", BITS)
def test_gradients_that_are_not_finite_are_named(make_gaussians, name, value):
    scene, grads = make_gaussians(5000), make_gaussians(5000, seed=4)
    getattr(grads, name).view(-1)[-1] = value
    _, fault = backward(scene, torch.full((5000,), 0.1), grads)
    found, bits = fault
    assert found == 9
    # What is not finite in the smoothed opacity is not finite in the scales behind it.
    assert bits == BITS[name] + (BITS["log_scales"] if name == "opacity_logits" else 0)


def test_the_first_fault_stays(make_gaussians):
    grads = make_gaussians(3, seed=4)
    grads.sh[0] = torch.nan
    fault = torch.tensor([5, 1], dtype=torch.int32)
    smooth_backward(make_gaussians(3), torch.zeros(3), grads, fault, 9)
    assert fault.tolist() == [5, 1]
    smooth_backward(make_gaussians(3), torch.zeros(3), grads, fault, 5)
    assert fault.tolist() == [5, 33]
