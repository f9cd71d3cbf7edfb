"""The rasterizer's values: closed forms, the float64 oracle, order, batches."""

from math import exp, log, pi

import pytest
import torch

from gart.cameras import Camera
from gart.reference import splatting
from gart.scene import Gaussians
from gart.stages import Stages
from gart.tilegs import RasterSettings, rasterization, rasterize

IDENTITY = torch.eye(4)[:3]
Y0 = 0.28209479177387814


def logit(p: float) -> float:
    return log(p / (1 - p))


def random_scene(seed: int, count: int = 150, degree: int = 2) -> Gaussians:
    """Anisotropic Gaussians before, around and behind a camera at the origin."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    return Gaussians(
        means=normal(count, 3) * torch.tensor([1.5, 1.2, 1.0]) + torch.tensor([0.0, 0.0, 2.0]),
        quats=normal(count, 4),
        log_scales=0.7 * normal(count, 3) - 2,
        opacity_logits=2 * normal(count),
        sh=0.4 * normal(count, (degree + 1) ** 2, 3),
    )


def random_camera(seed: int, width: int = 45, height: int = 37) -> Camera:
    rng = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.eye(3) + 0.2 * torch.randn(3, 3, generator=rng))[0]
    rotation = rotation * rotation.diagonal().sign()
    center = 0.3 * torch.randn(3, 1, generator=rng)
    return Camera(torch.cat([rotation, center], 1), 40.0, 36.0, 20.5, 17.25, width, height)


def balls(
    means: list[list[float]],
    opacities: list[float],
    colors: list[list[float]],
    scale: float = 0.1,
) -> Gaussians:
    """Round Gaussians of one size with plain colours."""
    n = len(means)
    return Gaussians(
        means=torch.tensor(means),
        quats=torch.tensor([[1.0, 0, 0, 0]]).expand(n, 4),
        log_scales=torch.full((n, 3), log(scale)),
        opacity_logits=torch.tensor([logit(p) for p in opacities]),
        sh=((torch.tensor(colors) - 0.5) / Y0)[:, None],
    )


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_one_ball_has_the_closed_form_image(mode):
    camera = Camera(IDENTITY, 20.0, 20.0, 8.5, 8.5, 17, 17)
    scene = balls([[0.0, 0, 2]], [0.8], [[0.2, 0.5, 0.9]], scale=0.05)
    result = rasterize(scene, camera, RasterSettings(mode=mode))
    sharp = (20 * 0.05 / 2) ** 2  # square pixels
    peak = 0.8 * (sharp / (sharp + 0.3) if mode == "antialiased" else 1)
    for row, column in [(8, 8), (8, 9), (7, 7), (8, 10)]:
        squared = (row - 8) ** 2 + (column - 8) ** 2
        alpha = peak * exp(-0.5 * squared / (sharp + 0.3))
        assert alpha > 1 / 255
        assert result.opacity[row, column].item() == pytest.approx(alpha, abs=1e-6)
        assert result.depth[row, column].item() == pytest.approx(2, abs=1e-5)
        assert result.color[row, column].tolist() == pytest.approx(
            [0.2 * alpha, 0.5 * alpha, 0.9 * alpha], abs=1e-6
        )
    assert result.opacity[0, 0] == 0  # too weak to count
    assert result.depth[0, 0] == 0


def test_nearer_hides_farther_whatever_the_index():
    camera = Camera(IDENTITY, 20.0, 20.0, 4.5, 4.5, 9, 9)
    red, green = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    for near_first in (True, False):
        means = [[0.0, 0, 1], [0.0, 0, 2]]
        colors = [red, green]
        if not near_first:
            means, colors = means[::-1], colors[::-1]
        result = rasterize(balls(means, [0.5, 0.5], colors), camera)
        assert result.color[4, 4].tolist() == pytest.approx([0.5, 0.25, 0], abs=1e-6)
        assert result.opacity[4, 4].item() == pytest.approx(0.75, abs=1e-6)
        assert result.depth[4, 4].item() == pytest.approx((0.5 * 1 + 0.25 * 2) / 0.75, abs=1e-6)


def test_equal_depths_blend_in_index_order():
    camera = Camera(IDENTITY, 20.0, 20.0, 4.5, 4.5, 9, 9)
    colors = torch.eye(3).tolist()
    result = rasterize(balls([[0.0, 0, 1]] * 3, [0.5] * 3, colors), camera)
    assert result.color[4, 4].tolist() == pytest.approx([0.5, 0.25, 0.125], abs=1e-6)


def test_the_splat_that_would_end_the_pixel_is_left_out():
    camera = Camera(IDENTITY, 20.0, 20.0, 4.5, 4.5, 9, 9)
    means = [[0.0, 0, 1], [0.0, 0, 2], [0.0, 0, 3]]
    scene = balls(means, [1 - 1e-6, 0.99, 0.5], torch.eye(3).tolist())
    result = rasterize(scene, camera)
    # alpha is clamped to 0.999; the second would leave 1e-5 of the light; the third lies behind.
    assert result.color[4, 4].tolist() == pytest.approx([0.999, 0, 0], abs=1e-6)
    assert result.opacity[4, 4].item() == pytest.approx(0.999, abs=1e-6)
    further = rasterize(scene, camera, RasterSettings(transmittance_min=1e-7))
    assert further.color[4, 4, 2].item() == pytest.approx(0.5e-5, rel=1e-2)


def test_alpha_min_alpha_max_near_and_eps2d_act():
    camera = Camera(IDENTITY, 20.0, 20.0, 4.5, 4.5, 9, 9)
    weak = balls([[0.0, 0, 1]], [0.0039], [[1.0, 1, 1]])
    assert rasterize(weak, camera).opacity.max() == 0
    shown = rasterize(weak, camera, RasterSettings(alpha_min=0.001))
    assert shown.opacity[4, 4].item() == pytest.approx(0.0039, abs=1e-6)
    strong = balls([[0.0, 0, 1]], [0.95], [[1.0, 1, 1]])
    clamped = rasterize(strong, camera, RasterSettings(alpha_max=0.6))
    assert clamped.opacity[4, 4].item() == pytest.approx(0.6, abs=1e-6)
    assert rasterize(strong, camera, RasterSettings(near=1.01)).opacity.max() == 0
    assert rasterize(strong, camera, RasterSettings(near=0.99)).opacity.max() > 0.9
    wide = rasterize(strong, camera, RasterSettings(eps2d=5.0))
    assert wide.opacity[4, 6].item() == pytest.approx(0.95 * exp(-0.5 * 4 / (4 + 5)), abs=1e-5)


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_equals_the_oracle_on_random_scenes(mode, degree):
    scene = random_scene(seed=degree, degree=degree)
    width, height = [(45, 37), (32, 16), (17, 50), (64, 33)][degree]
    camera = random_camera(degree, width, height)
    result = rasterize(scene, camera, RasterSettings(mode=mode))
    oracle = splatting.rasterize(scene, camera, mode=mode)
    assert 0.3 < oracle.opacity.mean() < 1
    for name in ("color", "opacity", "depth"):
        difference = (getattr(result, name) - getattr(oracle, name)).abs()
        # A response within rounding of 1/255 may fall on either side.
        assert difference.mean() < 2e-6, name
        assert (difference > 2e-5).double().mean() < 0.01, name
        assert difference.max() < 0.02, name


@pytest.mark.parametrize("scale", [1.0, 50.0, 1e4])
def test_equals_the_oracle_among_huge_gaussians(scale):
    scene = random_scene(seed=7, count=60)
    scene.log_scales += log(scale)
    camera = random_camera(7)
    difference = (rasterize(scene, camera).color - splatting.rasterize(scene, camera).color).abs()
    assert difference.mean() < 2e-6
    assert (difference > 2e-5).double().mean() < 0.01


def test_needles_keep_their_width():
    # 1000 : 1 needles, where a c - b b loses all digits in float32.
    scene = random_scene(seed=3, count=40)
    scene.log_scales[:] = torch.tensor([log(20.0), log(0.02), log(0.02)])
    camera = random_camera(3)
    difference = (rasterize(scene, camera).color - splatting.rasterize(scene, camera).color).abs()
    assert (difference > 1e-3).double().mean() < 0.01


@pytest.mark.parametrize("scene", ["random", "needles"])
def test_entries_are_the_tiles_that_hold_a_response(scene):
    gaussians, camera = random_scene(seed=5), random_camera(5, 150, 130)
    if scene == "needles":
        gaussians.log_scales[:] = torch.tensor([log(2.0), log(0.01), log(0.01)])
    with Stages() as stages:
        rasterize(gaussians, camera)
    splats = splatting.project(gaussians, camera)
    x, y = (torch.arange(size, dtype=torch.float64) + 0.5 for size in (150, 130))
    tile = (torch.arange(130)[:, None] // 16) * 10 + torch.arange(150) // 16
    reached = boxed = 0
    for center, covariance, opacity in zip(
        splats.centers, splats.covariances, splats.opacities, strict=True
    ):
        offsets = torch.stack(torch.meshgrid(y - center[1], x - center[0], indexing="ij"), -1)
        offsets = offsets.flip(-1)
        squared = (offsets @ torch.linalg.inv(covariance) * offsets).sum(-1)
        reached += len(tile[opacity * (-squared / 2).exp() >= 1 / 255].unique())
        radii = (2 * (opacity * 255).log().clamp_min(0) * covariance.diagonal()).sqrt()
        boxed += len(tile[(offsets.abs() <= radii).all(-1) & (opacity >= 1 / 255)].unique())
    entries = stages.counts["entries"][0]
    assert reached > 300
    # An ellipse may pass between the centres of a tile's pixels.
    assert reached <= entries <= 1.03 * reached + 3
    assert boxed > 1.05 * entries


def test_result_does_not_depend_on_threads():
    scene, camera = random_scene(seed=11, count=9000), random_camera(11, 100, 90)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = rasterize(scene, camera)
        torch.set_num_threads(5)
        many = rasterize(scene, camera)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one.color, many.color)
    assert torch.equal(one.depth, many.depth)


def test_rasterization_is_rasterize_over_a_batch_of_cameras():
    scene = random_scene(seed=2, degree=3)
    cameras = [random_camera(seed) for seed in range(3)]
    backgrounds = torch.tensor([[1.0, 1, 1], [0.0, 0, 0], [0.2, 0.4, 0.6]])
    colors, alphas, depths = rasterization(
        scene.means,
        scene.quats,
        scene.log_scales.exp(),
        scene.opacity_logits.sigmoid(),
        scene.sh,
        torch.stack([c.viewmat for c in cameras]),
        torch.stack([c.K for c in cameras]),
        45,
        37,
        sh_degree=1,
        backgrounds=backgrounds,
        settings=RasterSettings(mode="antialiased"),
    )
    assert colors.shape == (3, 37, 45, 3)
    assert alphas.shape == depths.shape == (3, 37, 45, 1)
    scene.sh = scene.sh[:, :4]
    for i, camera in enumerate(cameras):
        expected = rasterize(scene, camera, RasterSettings(mode="antialiased"))
        torch.testing.assert_close(colors[i], expected.over(backgrounds[i]), rtol=0, atol=2e-6)
        torch.testing.assert_close(alphas[i, ..., 0], expected.opacity, rtol=0, atol=2e-6)
        torch.testing.assert_close(depths[i, ..., 0], expected.depth, rtol=0, atol=2e-5)


def test_scaled_quaternions_are_the_same_rotation():
    scene, camera = random_scene(seed=4), random_camera(4)
    expected = rasterize(scene, camera).color
    scene.quats = scene.quats * -3
    torch.testing.assert_close(rasterize(scene, camera).color, expected, rtol=0, atol=1e-5)


def test_no_gradients_flow():
    scene = random_scene(seed=6).map(lambda t: t.requires_grad_())
    assert not rasterize(scene, random_camera(6)).color.requires_grad


def test_oracle_sees_one_gaussian_off_axis_as_the_sampled_projection():
    # Where a Gaussian is far smaller than its distance its samples have the image covariance.
    camera = Camera(IDENTITY, 50.0, 60.0, 30.0, 20.0, 64, 48)
    scene = Gaussians(
        means=torch.tensor([[0.4, -0.2, 2.0]]),
        quats=torch.tensor([[0.8, 0.3, -0.4, 0.2]]),
        log_scales=torch.tensor([[0.01, 0.004, 0.02]]).log(),
        opacity_logits=torch.zeros(1),
        sh=torch.zeros(1, 1, 3),
    )
    splats = splatting.project(scene, camera, eps2d=0.0)
    w, x, y, z = (scene.quats[0] / scene.quats[0].norm()).double().tolist()
    turn = torch.tensor(  # from Hamilton's product q v q*
        [
            [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
        ],
        dtype=torch.float64,
    )
    local = torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0)).double()
    samples = camera.project(local * scene.log_scales.double().exp() @ turn.T + scene.means)
    torch.testing.assert_close(splats.centers[0], samples.mean(0), rtol=0, atol=5e-3)
    torch.testing.assert_close(splats.covariances[0], samples.T.cov(), rtol=0.02, atol=1e-3)


def test_antialiasing_keeps_the_light_of_a_speck():
    camera = Camera(IDENTITY, 20.0, 20.0, 8.0, 8.0, 16, 16)
    scene = balls([[0.0, 0, 1]], [0.999], [[1.0, 1, 1]], scale=0.002)
    light = {
        mode: rasterize(scene, camera, RasterSettings(mode=mode, alpha_min=1e-9))
        .opacity.sum()
        .item()
        for mode in ("classic", "antialiased")
    }
    sharp, blurred = (20 * 0.002) ** 2, (20 * 0.002) ** 2 + 0.3  # square pixels
    assert light["antialiased"] == pytest.approx(0.999 * 2 * pi * sharp, rel=0.05)
    assert light["classic"] == pytest.approx(0.999 * 2 * pi * blurred, rel=0.05)
