"""The oracle against numbers worked out by hand."""

import math

import pytest
import torch
from scenes import camera, gaussian, join, random_gaussians

from gart.native import constants
from gart.reference import render, sh_basis, trace_rays

FORWARD = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
ORIGIN = torch.zeros(1, 3, dtype=torch.float64)


def close(actual, expected, tolerance=1e-7):
    """Within float32 rounding of the scene's tensors."""
    expected = torch.as_tensor(expected, dtype=torch.float64).expand_as(actual)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def look(direction):
    return torch.tensor([direction], dtype=torch.float64)


def test_one_sphere():
    sphere = gaussian((0, 0, 5), scales=(0.5, 0.5, 0.5), logit=math.log(3))
    traced = trace_rays(sphere, ORIGIN, look((0.1, 0, 1)))
    tau = 5 / 1.01
    alpha = 0.75 * math.exp(-0.5 * (25 - 25 / 1.01) / 0.25)
    close(traced.opacity, [alpha])
    close(traced.depth, [tau])
    close(traced.color, [[0.8 * alpha, 0.4 * alpha, 0.1 * alpha]])
    assert traced.order.tolist() == [[0]]


def test_rotation_and_scales():
    # 120 degrees about (1, 1, 1) takes local x to world y, y to z, z to x; any quaternion length.
    turned = gaussian((0, 0, 4), scales=(0.5, 0.25, 1), quat=(2, 2, 2, 2), logit=math.inf)
    origins = torch.tensor([[0.8, 0, 0], [0, 0.8, 0], [0.8, 0.4, 0]], dtype=torch.float64)
    traced = trace_rays(turned, origins, FORWARD.expand(3, 3), alpha_max=1)
    rho2 = torch.tensor([0.8**2, 1.6**2, 0.8**2 + 0.8**2], dtype=torch.float64)
    close(traced.opacity, torch.exp(-rho2 / 2))
    close(traced.depth, 4)


def test_peak_leans_towards_a_slanted_flat_gaussian():
    # A thin disc through (0, 0, 4) with normal (1, 0, 1): rays peak where they pierce its plane.
    half = math.radians(45) / 2
    disc = gaussian(
        (0, 0, 4), scales=(1, 1, 1e-6), quat=(math.cos(half), 0, math.sin(half), 0), logit=0
    )
    traced = trace_rays(disc, torch.tensor([[0.3, 0.2, 0.0]]), FORWARD)
    close(traced.depth, [3.7])
    close(traced.opacity, [0.5 * math.exp(-0.5 * (2 * 0.3**2 + 0.2**2))], 1e-6)


def test_two_are_composited_front_to_back_and_depth_is_expected_depth():
    far = gaussian((0, 0, 6), logit=math.log(1.5), color=(0, 1, 0))
    near = gaussian((0, 0, 2), logit=math.log(0.25), color=(1, 0.5, 0))
    traced = trace_rays(join(far, near), ORIGIN, FORWARD)
    close(traced.color, [[0.2, 0.2 * 0.5 + 0.8 * 0.6, 0]])
    close(traced.opacity, [0.2 + 0.8 * 0.6])
    close(traced.depth, [(0.2 * 2 + 0.48 * 6) / 0.68])
    assert traced.order.tolist() == [[1, 0]]


def test_ties_go_by_index():
    twin = gaussian((0, 0, 3), logit=0, color=(1, 0, 0))
    other = gaussian((0, 0, 3), logit=0, color=(0, 1, 0))
    traced = trace_rays(join(twin, other, twin), ORIGIN, look((0.01, 0.02, 1)))
    assert traced.order.tolist() == [[0, 1, 2]]
    swapped = trace_rays(join(other, twin), ORIGIN, FORWARD)
    close(swapped.color, [[0.25, 0.5, 0]])


def test_near_counts_in_lengths_of_the_direction():
    sphere = gaussian((0, 0, 2), logit=0)
    just, above = 2.0, math.nextafter(2.0, 3)
    assert trace_rays(sphere, ORIGIN, FORWARD, near=just).opacity.item() == 0.5
    assert trace_rays(sphere, ORIGIN, FORWARD, near=above).opacity.item() == 0
    assert trace_rays(sphere, ORIGIN, 2 * FORWARD, near=1.0).depth.item() == 1
    assert trace_rays(sphere, ORIGIN, 2 * FORWARD, near=1.01).opacity.item() == 0
    assert trace_rays(sphere, ORIGIN, -FORWARD).opacity.item() == 0


def test_a_response_of_exactly_alpha_min_is_a_hit():
    half = gaussian((0, 0, 2), logit=0)
    assert trace_rays(half, ORIGIN, FORWARD, alpha_min=0.5).opacity.item() == 0.5
    above = math.nextafter(0.5, 1)
    assert trace_rays(half, ORIGIN, FORWARD, alpha_min=above).opacity.item() == 0


def test_alpha_max_clamps_value_and_gradient():
    opaque = gaussian((0.1, 0, 2), logit=10).map(lambda t: t.double().requires_grad_())
    traced = trace_rays(opaque, ORIGIN, FORWARD, alpha_max=0.75)
    close(traced.opacity, [0.75])
    (traced.color.sum() + traced.opacity.sum()).backward()
    assert opaque.opacity_logits.grad.item() == 0
    assert opaque.means.grad.abs().max() == 0
    assert opaque.log_scales.grad.abs().max() == 0
    close(opaque.sh.grad[0, 0], [0.75 * 0.28209479177387814] * 3, 1e-12)


def test_the_hit_that_ends_the_ray_is_blended():
    # Transmittance 0.1, 0.01, 0.001: the third falls below 0.005, the fourth is never seen.
    stack = join(*(gaussian((0, 0, z), logit=math.log(9)) for z in (5, 4, 3, 2)))
    traced = trace_rays(stack, ORIGIN, FORWARD, transmittance_min=0.005)
    assert traced.order.tolist() == [[3, 2, 1]]
    close(traced.opacity, [0.999])
    on_the_limit = join(*(gaussian((0, 0, z), logit=0) for z in (2, 3, 4, 5)))
    traced = trace_rays(on_the_limit, ORIGIN, FORWARD, transmittance_min=0.25)
    assert traced.order.tolist() == [[0, 1, 2]]  # T = 0.25 is not below


def test_color_is_clamped_at_zero_not_at_one():
    bright = gaussian((0, 0, 2), logit=0, color=(3, -1, 0.5))
    close(trace_rays(bright, ORIGIN, FORWARD).color, [[1.5, 0, 0.25]])


def test_sh_at_the_ray_or_at_the_mean():
    scene = random_gaussians(1, degree=3).map(lambda t: t.double())
    scene.means = torch.tensor([[0.3, -0.2, 3.0]], dtype=torch.float64)
    eye, ray = torch.tensor([[0.5, 0.1, -1.0]], dtype=torch.float64), look((-0.05, -0.05, 1))
    center = torch.tensor([0.25, 0.0, -0.5], dtype=torch.float64)
    for sh, view in (("ray", ray[0]), ("center", scene.means[0] - center)):
        traced = trace_rays(scene, eye, ray, sh=sh, center=center)
        basis = sh_basis(view / view.norm(), 3)
        color = (0.5 + basis @ scene.sh[0]).clamp_min(0)
        assert traced.opacity.item() > 0.1
        close(traced.color[0] / traced.opacity, color, 1e-12)


def test_sh_to_first_order_at_the_mean():
    # Y_12 = 0.373 z (2 zz - 3 xx - 3 yy) at d0 = (0, 0, 1): value 0.746, gradient (0, 0, 6) 0.373.
    k = 0.3731763325901154
    scene = gaussian((0, 0, 3), scales=(2, 2, 2), color=(0.5, 0.5, 0.5)).map(lambda t: t.double())
    scene.sh = torch.zeros(1, 16, 3, dtype=torch.float64)
    scene.sh[0, 12] = torch.tensor([0.4, -0.1, -2])
    ray = look((0.6, 0, 0.8))
    traced = trace_rays(scene, ORIGIN, ray, sh="linear", center=ORIGIN[0])
    basis = k * (2 + 6 * (0.8 - 1))
    expected = [[0.5 + 0.4 * basis, 0.5 - 0.1 * basis, max(0, 0.5 - 2 * basis)]]
    close(traced.color / traced.opacity, expected)


@pytest.mark.parametrize("degree", [0, 1])
def test_up_to_degree_one_the_first_order_is_all(degree):
    scene = random_gaussians(40, degree=degree, low=(-2, -2, -2), scales=(0.2, 1))
    images = [render(scene, camera(), sh=sh).color for sh in ("ray", "linear")]
    close(images[0], images[1], 1e-14)


def test_sh_center_needs_a_center_and_sh_a_known_name():
    with pytest.raises(ValueError, match="needs the camera centre"):
        trace_rays(gaussian((0, 0, 2)), ORIGIN, FORWARD, sh="center")
    with pytest.raises(ValueError, match="sh='linear' needs the camera centre"):
        trace_rays(gaussian((0, 0, 2)), ORIGIN, FORWARD, sh="linear")
    with pytest.raises(ValueError, match="sh is 'mean'; expected 'ray', 'center' or 'linear'"):
        trace_rays(gaussian((0, 0, 2)), ORIGIN, FORWARD, sh="mean")


@pytest.mark.parametrize("name", ["means", "quats", "log_scales", "opacity_logits"])
def test_non_finite_gaussians_are_never_hit_and_leave_gradients_finite(name):
    scene = random_gaussians(20).map(lambda t: t.double())
    expected = render(scene.map(lambda t: t[1:]), camera())
    getattr(scene, name)[0] = torch.nan
    scene = scene.map(lambda t: t.requires_grad_())
    image = render(scene, camera())
    torch.testing.assert_close(image.color, expected.color, rtol=0, atol=1e-14)
    (image.color.sum() + image.depth.sum()).backward()
    assert all(t.grad.isfinite().all() for t in scene.tensors().values())


def test_nothing_to_hit():
    image = render(random_gaussians(0), camera(5, 3))
    assert image.color.shape == (3, 5, 3)
    assert image.opacity.shape == image.depth.shape == (3, 5)
    assert image.color.abs().max() == image.opacity.max() == image.depth.max() == 0


def test_pixels_of_a_posed_camera():
    # The camera stands at (1, 2, 3) and looks along world x, its x axis along world -y.
    pose = torch.tensor([[0.0, 0, 1, 1], [-1, 0, 0, 2], [0, -1, 0, 3]])
    view = camera(4, 2, fov=90, pose=pose)
    x, y = (3.5 - 2) / 2, (0.5 - 1) / 2
    target = gaussian((1 + 5, 2 - 5 * x, 3 - 5 * y), scales=(0.01, 0.01, 0.01), logit=math.inf)
    image = render(target, view)
    assert image.opacity.nonzero().tolist() == [[0, 3]]
    close(image.opacity[0, 3], 0.99, 1e-6)
    close(image.depth[0, 3], 5, 1e-6)


def test_fisheye_depth_is_distance_and_pixels_without_ray_are_zero():
    around = gaussian((0, 0, 0.5), scales=(50, 50, 50), logit=0)
    behind = gaussian((3, 0, -3), scales=(0.5, 0.5, 0.5), logit=math.inf)
    view = camera(31, 31, fov=300, model="opencv_fisheye")
    image = render(join(around, behind), view)
    assert image.opacity[0, 0] == 0  # the corner lies beyond 180 degrees off axis
    row = render(behind, view).depth[15]
    close(row[row > 0].max(), math.sqrt(18), 1e-2)
    assert row.argmax() > 25


def test_defaults_are_the_native_constants():
    defaults = trace_rays.__kwdefaults__
    for name in ("alpha_min", "alpha_max", "transmittance_min", "near"):
        native = constants()["alpha_max_trace" if name == "alpha_max" else name]
        assert native == pytest.approx(defaults[name], rel=1e-7), name
