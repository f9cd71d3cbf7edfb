"""`trace_rays`: arbitrary rays against the oracle, images against the tile lists."""

import math

import pytest
import torch
from oracle import OUTPUTS, Limits
from ray_oracle import (
    DEFAULT,
    assert_ray_gradients_agree,
    assert_ray_orders_agree,
    assert_rays_agree,
    certain_rays,
    random_rays,
)
from scenes import (
    HARD_LIMITS,
    HARD_SCENES,
    camera,
    gaussian,
    join,
    layers,
    random_gaussians,
    random_pose,
)

from gart.tracing import (
    SH_MODES,
    Bvh,
    TraceSettings,
    camera_rays,
    ray_hit_order,
    trace,
    trace_rays,
)

DOUBTS = Limits(doubtful=0.02)
"""Many random rays: a few stand within rounding of a decision."""


@pytest.mark.parametrize("sh", ["ray", "center"])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_incoherent_rays(degree, sh):
    scene, rays = random_gaussians(400, degree=degree), random_rays(300, seed=degree)
    settings = TraceSettings(tracer="bvh", sh=sh)
    assert_rays_agree(scene, rays, settings, DOUBTS)
    assert_ray_orders_agree(scene, rays, settings, DOUBTS)
    assert_ray_gradients_agree(scene, rays, settings, limits=DOUBTS)


@pytest.mark.parametrize("name", HARD_SCENES)
def test_hard_scenes(name):
    scene, view = HARD_SCENES[name]()
    limits = Limits(**HARD_LIMITS.get(name, {}))
    rays = tuple(t.reshape(-1, 3) for t in camera_rays(view))
    assert_rays_agree(scene, rays, DEFAULT, limits)
    assert_ray_orders_agree(scene, rays, DEFAULT, limits)
    assert_ray_gradients_agree(scene, rays, DEFAULT, limits=limits)


@pytest.mark.parametrize("sh", SH_MODES)
@pytest.mark.parametrize("name", ["posed", "opencv", "full_opencv", "fisheye", "twins", "flat"])
def test_images_are_those_of_the_tiles(name, sh):
    scene, view = HARD_SCENES[name]()
    tiles = trace(scene, view, TraceSettings(sh=sh))
    image = trace(scene, view, TraceSettings(sh=sh, tracer="bvh"))
    assert image.color.shape == (view.height, view.width, 3)
    certain = certain_rays(scene, tuple(t.reshape(-1, 3) for t in camera_rays(view)), DEFAULT)
    certain = certain.unflatten(0, (view.height, view.width))
    for output in OUTPUTS:
        difference = (getattr(image, output) - getattr(tiles, output))[certain].abs().max()
        assert difference <= 2e-5, output


def test_rays_that_start_inside_gaussians():
    scene = random_gaussians(80, scales=(0.5, 2), logit=-2)
    rays = scene.means + 0.1, torch.roll(scene.means, 1, 0) - scene.means
    assert_rays_agree(scene, rays, DEFAULT, DOUBTS)
    assert_ray_gradients_agree(scene, rays, DEFAULT, limits=DOUBTS)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_rays_parallel_to_axes(axis, sign):
    scene = random_gaussians(300)
    direction = torch.zeros(200, 3)
    direction[:, axis] = sign
    direction[100:, (axis + 1) % 3] = -0.0
    rays = random_rays(200)[0] - 4 * direction, direction
    assert_rays_agree(scene, rays, DEFAULT, DOUBTS)
    assert_ray_orders_agree(scene, rays, DEFAULT, DOUBTS)


def test_a_ray_along_the_face_of_a_box_hits_nothing_there():
    ball = gaussian((0, 0, 0), scales=(1, 1, 1))
    opacity = 0.5
    edge = math.sqrt(2 * math.log(opacity / DEFAULT.alpha_min))
    y = torch.tensor([edge * 1.001, edge, edge * 0.999])
    origins = torch.stack([torch.full((3,), -5.0), y, torch.zeros(3)], -1)
    image = trace_rays(ball, origins, torch.tensor([1.0, 0, 0]))
    assert image.opacity[0] == 0
    assert image.opacity[2] == pytest.approx(DEFAULT.alpha_min, rel=0.02)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_directions_of_any_length(scale):
    scene, (origins, directions) = random_gaussians(100, degree=1), random_rays(100)
    unit = trace_rays(scene, origins, directions, t_min=0.5)
    other = trace_rays(scene, origins, directions * scale, t_min=0.5 / scale)
    torch.testing.assert_close(other.color, unit.color, atol=1e-5, rtol=0)
    torch.testing.assert_close(other.depth * scale, unit.depth, atol=1e-4, rtol=1e-5)


def test_t_min_of_each_ray():
    scene, rays = random_gaussians(200, degree=1), random_rays(200, seed=3)
    t_min = 3 * torch.rand(200, generator=torch.Generator().manual_seed(1))
    assert_rays_agree(scene, rays, DEFAULT, DOUBTS, t_min=t_min)
    assert_rays_agree(scene, rays, DEFAULT, DOUBTS, t_min=0.0)
    far = trace_rays(scene, *rays, t_min=torch.full((200,), 100.0))
    assert not far.opacity.any()


def test_a_second_bounce_goes_on_where_the_first_stopped():
    scene = random_gaussians(200, degree=1, logit=1)
    origins, directions = random_rays(64)
    first = trace_rays(scene, origins, directions)
    points = origins + first.depth[:, None] * directions
    normals = torch.nn.functional.normalize(torch.randn(64, 3), dim=1)
    mirrored = directions - 2 * (directions * normals).sum(-1, keepdim=True) * normals
    assert_rays_agree(scene, (points, mirrored), DEFAULT, DOUBTS, t_min=0.05)


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (2, 3, 4), (0,), (3, 0)])
def test_batch_shapes_are_kept(shape):
    scene = random_gaussians(50, degree=0)
    count = math.prod(shape)
    origins, directions = random_rays(count)
    image = trace_rays(scene, origins.reshape(*shape, 3), directions.reshape(*shape, 3))
    flat = trace_rays(scene, origins, directions)
    assert image.color.shape == (*shape, 3)
    assert image.opacity.shape == image.depth.shape == shape
    assert torch.equal(image.color.reshape(-1, 3), flat.color)


def test_one_origin_for_all_rays_takes_the_sum_of_their_gradients():
    scene, (origins, directions) = random_gaussians(100, degree=1), random_rays(20)
    shared = origins[0].clone().requires_grad_()
    each = origins[:1].expand(20, 3).clone().requires_grad_()
    for leaf in (shared, each):
        trace_rays(scene, leaf, directions).color.sum().backward()
    torch.testing.assert_close(shared.grad, each.grad.sum(0))


def test_no_rays_and_no_gaussians():
    scene = random_gaussians(0).map(lambda t: t.requires_grad_())
    origins, directions = (t.requires_grad_() for t in random_rays(5))
    image = trace_rays(scene, origins, directions)
    assert not image.color.any()
    image.color.sum().backward()
    assert scene.sh.grad.shape == (0, 16, 3)
    assert not origins.grad.any()
    scene = random_gaussians(3).map(lambda t: t.requires_grad_())
    trace_rays(scene, torch.zeros(0, 3), torch.zeros(0, 3)).color.sum().backward()
    assert not scene.means.grad.any()


def test_rays_that_are_none_hit_nothing():
    scene = random_gaussians(200, scales=(0.5, 2))
    origins, directions = random_rays(6)
    whole = trace_rays(scene, origins, directions)
    directions[0] = 0
    directions[1, 2] = math.nan
    origins[2, 0] = math.inf
    origins.requires_grad_()
    directions.requires_grad_()
    image = trace_rays(scene, origins, directions)
    assert not image.opacity[:3].any()
    assert torch.equal(image.color[3:], whole.color[3:])
    (image.color.sum() + image.depth.sum()).backward()
    assert origins.grad.isfinite().all()
    assert directions.grad.isfinite().all()
    assert not directions.grad[:3].any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["means", "quats", "log_scales"])
def test_non_finite_gaussians_are_never_hit(name, value):
    scene, rays = random_gaussians(40, degree=1), random_rays(100)
    getattr(scene, name)[7, 1] = value
    rest = scene.map(lambda t: torch.cat([t[:7], t[8:]]))
    leaves = scene.map(lambda t: t.clone().requires_grad_())
    image, without = trace_rays(leaves, *rays), trace_rays(rest, *rays)
    for output in OUTPUTS:
        assert torch.equal(getattr(image, output), getattr(without, output)), output
    (image.color.sum() + image.depth.sum()).backward()
    for name, tensor in leaves.tensors().items():
        assert tensor.grad.isfinite().all(), name
        assert not tensor.grad[7].any(), name


def test_all_gaussians_at_one_place():
    one = gaussian((0.3, -0.2, 4), scales=(0.4, 0.2, 0.3), quat=(3, 1, 2, -1), logit=-3)
    scene, rays = join(*[one] * 70), random_rays(100)
    orders = assert_ray_orders_agree(scene, rays, DEFAULT, Limits(doubtful=0.1))
    assert max(map(len, orders)) == 70
    assert_rays_agree(scene, rays, DEFAULT, Limits(doubtful=0.1))


def test_more_hits_than_the_buffer_holds():
    scene, rays = layers(200), random_rays(60, center=(0, 0, 0))
    orders = assert_ray_orders_agree(scene, rays, DEFAULT, Limits(doubtful=0.2))
    assert max(map(len, orders)) > 100
    scene.opacity_logits += 2.5  # rays go dark in the middle of a buffer
    assert_ray_orders_agree(scene, rays, DEFAULT, Limits(doubtful=0.2))
    assert_ray_gradients_agree(scene, rays, DEFAULT, limits=Limits(doubtful=0.2))


@pytest.mark.parametrize("loss", OUTPUTS)
@pytest.mark.parametrize("sh", ["ray", "center"])
def test_gradients_of_each_output(loss, sh):
    pose = random_pose(1, 3)
    scene = random_gaussians(60, seed=3, pose=pose)
    view = camera(pose=pose)
    rays = tuple(t.reshape(-1, 3) for t in camera_rays(view))
    settings = TraceSettings(tracer="bvh", sh=sh)
    limits = Limits(gradient=1e-4, doubtful=0.01)
    assert_ray_gradients_agree(scene, rays, settings, (loss,), limits)


@pytest.mark.parametrize(
    "settings",
    [{"alpha_max": 0.4}, {"alpha_min": 0.05}, {"transmittance_min": 0.3}, {"near": 3.5}],
    ids=str,
)
def test_settings(settings):
    scene, rays = random_gaussians(80, seed=2, logit=1), random_rays(200, seed=4)
    chosen = TraceSettings(tracer="bvh", **settings)
    assert_rays_agree(scene, rays, chosen, DOUBTS)
    assert_ray_gradients_agree(scene, rays, chosen, limits=DOUBTS)


def test_threads_change_no_bit():
    scene, (origins, directions) = random_gaussians(300), random_rays(500)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 3, 8):
        torch.set_num_threads(threads)
        leaves = scene.map(lambda t: t.clone().requires_grad_())
        start = origins.clone().requires_grad_()
        image = trace_rays(leaves, start, directions)
        (image.color.square().sum() + image.depth.sum()).backward()
        found.append([image.color, start.grad, *(t.grad for t in leaves.tensors().values())])
    torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_what_it_cannot_use_is_named():
    scene, (origins, directions) = random_gaussians(20), random_rays(4)
    with pytest.raises(ValueError, match=r"origins has shape \[4, 2\]; expected \[\.\.\., 3\]"):
        trace_rays(scene, origins[:, :2], directions)
    with pytest.raises(ValueError, match="directions has dtype code 2 with 64 bits"):
        trace_rays(scene, origins, directions.double())
    with pytest.raises(ValueError, match="trace rays with sh='ray' or sh='center'"):
        trace_rays(scene, origins, directions, TraceSettings(sh="linear"))
    with pytest.raises(ValueError, match="the bvh has 20 Gaussians and the scene 19"):
        trace_rays(scene.map(lambda t: t[1:]), origins, directions, bvh=Bvh(scene))
    with pytest.raises(ValueError, match=r"bvh is for alpha_min 0\.1 and above"):
        trace_rays(scene, origins, directions, bvh=Bvh(scene, 0.1))
    with pytest.raises(ValueError, match="tracer is 'optix'; expected one of tiles, bvh"):
        TraceSettings(tracer="optix")


def test_no_hit_is_lost_to_rounding():
    # Sheets closer to each other than float32 can tell their depths: their boxes and their hits are
    # rounded differently, and the buffer is filled again and again in between.
    n = 300
    sheets = gaussian((0, 0, 0), scales=(5, 5, 1e-6), logit=-4.5).map(
        lambda t: t.repeat_interleave(n, 0)
    )
    sheets.means[:, 2] = 100 + torch.arange(n) * 2e-6
    origins, directions = random_rays(50, center=(0, 0, 0))
    directions[:, 2] = directions[:, 2].abs() + 1
    directions[:, :2] *= 0.01
    offsets, ids = ray_hit_order(sheets, origins, directions)
    assert (offsets.diff() == n).all()
    assert (ids.reshape(50, n).sort(-1).values == torch.arange(n)).all()
