"""sh=linear: colours to first order around the directions of the means."""

import math

import pytest
import torch
from oracle import (
    Limits,
    assert_gradients_close,
    assert_images_agree,
    native_gradients,
    oracle_gradients,
)
from scenes import (
    HARD_LIMITS,
    HARD_SCENES,
    camera,
    gaussian,
    join,
    random_gaussians,
    random_pose,
    shell,
)

from gart.reference import sh_basis
from gart.tracing import BACKWARD_MODES, TraceSettings, trace
from gart.tracing.linear_color import linear_color

LINEAR = TraceSettings(sh="linear")


def with_degree(scene, degree=3):
    """`scene` with random harmonics: colours that change much over a wide Gaussian."""
    random = torch.Generator().manual_seed(9)
    scene.sh = 0.3 * torch.randn(len(scene), (degree + 1) ** 2, 3, generator=random)
    return scene


def around(degree=3):
    """Gaussians on all sides of the camera, some wide, some with the camera plane through them."""
    pose = random_pose(6, 2)
    wide = random_gaussians(
        60, low=(-2, -2, -2), high=(2, 2, 2), scales=(0.2, 1), logit=-1, pose=pose
    )
    return with_degree(wide, degree), camera(pose=pose)


NASTY = {
    "all around": around,
    "degree 2": lambda: around(2),
    "behind": lambda: (
        # Both means lie behind the camera, their supports reach in front of it.
        with_degree(
            join(
                gaussian((0.3, 0.1, -0.4), scales=(0.5, 0.6, 1), quat=(3, 1, 0, 1)),
                gaussian((-0.4, 0.2, -0.1), scales=(1, 0.4, 0.7), quat=(3, 0, 1, 1)),
            )
        ),
        camera(),
    ),
    "beside": lambda: (with_degree(gaussian((0.7, -0.3, 0), scales=(0.6, 0.5, 2))), camera()),
    "far from the origin": lambda: (
        random_gaussians(80, pose=random_pose(5, 1000)),
        camera(pose=random_pose(5, 1000)),
    ),
    "all faces": lambda: (
        shell(150),
        camera(53, 45, fov=260, model="opencv_fisheye"),
    ),
}


@pytest.mark.parametrize("name", NASTY)
def test_image_and_gradients_in_every_mode(name):
    scene, view = NASTY[name]()
    assert_images_agree(scene, view, LINEAR)
    weights, expected = oracle_gradients(scene, view, LINEAR)
    assert expected["sh"][:, -1].abs().max() > 0
    for backward in BACKWARD_MODES:
        settings = TraceSettings(sh="linear", backward=backward)
        assert_gradients_close(native_gradients(scene, view, settings, weights), expected, 2e-4)


@pytest.mark.parametrize("name", HARD_SCENES)
def test_hard_scenes(name):
    scene, view = HARD_SCENES[name]()
    limits = Limits(**HARD_LIMITS.get(name, {}))
    assert_images_agree(scene, view, LINEAR, limits)
    weights, expected = oracle_gradients(scene, view, LINEAR, limits=limits)
    actual = native_gradients(scene, view, LINEAR, weights)
    assert_gradients_close(actual, expected, limits.gradient)


@pytest.mark.parametrize("degree", [2, 3])
def test_value_and_slope_agree_with_the_harmonics_at_the_mean(degree):
    random = torch.Generator().manual_seed(0)
    means = torch.randn(50, 3, generator=random)
    sh = torch.randn(50, (degree + 1) ** 2, 3, generator=random)
    pose = random_pose(2, 1)
    linear = linear_color(means, sh, pose).double()
    at = torch.nn.functional.normalize((means - pose[:, 3]).double(), dim=1)
    aside = torch.nn.functional.normalize(
        torch.linalg.cross(at, torch.randn(50, 3, generator=random).double()), dim=1
    )

    def difference(angle):
        ray = math.cos(angle) * at + math.sin(angle) * aside
        full = (sh_basis(ray, degree)[..., None] * sh).sum(1)
        return float(((sh_basis(ray, 1)[..., None] * linear).sum(1) - full).abs().max())

    assert difference(0.0) < 1e-5
    # Second order: a quarter of the angle leaves a sixteenth of the error.
    assert difference(0.01) == pytest.approx(16 * difference(0.0025), rel=0.1)
    assert difference(0.01) < 3e-3


def test_degree_one_is_left_alone():
    scene, view = random_gaussians(40, degree=1), camera()
    image, expected = trace(scene, view, LINEAR), trace(scene, view, TraceSettings(sh="ray"))
    assert torch.equal(image.color, expected.color)


def test_gradients_of_the_coefficients_equal_finite_differences():
    # In float32, so by large steps; the coefficients are linear in sh and smooth in the mean.
    random = torch.Generator().manual_seed(1)
    means = torch.randn(20, 3, generator=random) * 2 + torch.tensor([0.0, 0, 4])
    sh = torch.randn(20, 16, 3, generator=random)
    weights = torch.randn(20, 4, 3, generator=random)
    pose = random_pose(2, 1)

    def loss(means, sh):
        return (linear_color(means, sh, pose) * weights).double().sum((1, 2))

    leaves = [means.clone().requires_grad_(), sh.clone().requires_grad_()]
    loss(*leaves).sum().backward()
    h = 2e-2
    for axis in range(3):
        step = h * torch.eye(3)[axis]
        found = (loss(means + step, sh) - loss(means - step, sh)) / (2 * h)
        torch.testing.assert_close(leaves[0].grad[:, axis].double(), found, rtol=2e-2, atol=1e-2)
    for k in (0, 2, 6, 13):
        step = torch.zeros(16, 3)
        step[k, 1] = 1
        found = (loss(means, sh + step) - loss(means, sh - step)) / 2
        torch.testing.assert_close(leaves[1].grad[:, k, 1].double(), found, rtol=1e-4, atol=1e-4)


def test_a_mean_at_the_camera_leaves_gradients_finite():
    scene = join(random_gaussians(20), with_degree(gaussian((0, 0, 0)))).map(
        lambda t: t.requires_grad_()
    )
    image = trace(scene, camera(), LINEAR)
    image.color.sum().backward()
    assert image.color.isfinite().all()
    assert all(t.grad.isfinite().all() for t in scene.tensors().values())
    assert all(t.grad[-1].abs().max() == 0 for t in scene.tensors().values())
