"""Median depth, normals and hit counts against the oracle, and what they mean."""

import math
from dataclasses import replace

import pytest
import torch
from oracle import Limits
from ray_oracle import random_rays
from scenes import (
    FISHEYE,
    HARD_LIMITS,
    HARD_SCENES,
    camera,
    gaussian,
    join,
    random_gaussians,
    random_pose,
    shell,
)
from surface_oracle import assert_gradients_agree, assert_image_agrees, assert_rays_agree

from gart import reference
from gart.optics import ThinLens
from gart.tracing import (
    TRACERS,
    TraceSettings,
    camera_rays,
    hit_order,
    ray_hit_order,
    surface,
    trace,
    trace_ray_surface,
    trace_surface,
)

DEFAULT = TraceSettings()
DOUBTS = Limits(doubtful=0.02)
OUTPUTS = ("median_depth", "normals")
AHEAD = torch.tensor([0.0, 0, 1])
START = torch.zeros(3)


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", sorted(set(HARD_SCENES) - {"ten thousand"}))
def test_images_of_hard_scenes(name, tracer):
    limits = Limits(**HARD_LIMITS.get(name, {}))
    expected = assert_image_agrees(*HARD_SCENES[name](), TraceSettings(tracer=tracer), limits)
    assert expected.hit_count.any()


def test_rays_in_all_directions():
    scene, rays = random_gaussians(400, degree=0), random_rays(400)
    assert_rays_agree(scene, rays, DEFAULT, DOUBTS)
    assert_rays_agree(
        scene, rays, TraceSettings(alpha_max=0.4, alpha_min=0.05, transmittance_min=0.3), DOUBTS
    )


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", ["posed", "full_opencv", "fisheye", "flat", "all around"])
def test_gradients_of_images(name, output):
    scene, view = HARD_SCENES[name]()
    rays = reference.camera_rays(view)
    assert_gradients_agree(scene, rays, DEFAULT, output, camera=view)


@pytest.mark.parametrize("output", OUTPUTS)
def test_gradients_of_rays(output):
    scene, rays = random_gaussians(300, degree=0, seed=2), random_rays(200, seed=1)
    assert_gradients_agree(scene, rays, DEFAULT, output, limits=DOUBTS)
    inside = scene.means[:60] + 0.1, torch.roll(scene.means, 1, 0)[:60] - scene.means[:60]
    assert_gradients_agree(scene, inside, DEFAULT, output, limits=DOUBTS)


@pytest.mark.parametrize("output", OUTPUTS)
def test_gradients_are_those_of_finite_differences(output, monkeypatch):
    monkeypatch.setitem(surface.HITS_AT_ONCE, "cpu", 7)
    scene, (origins, directions) = (
        random_gaussians(40, degree=0, scales=(0.4, 1), logit=0),
        random_rays(8),
    )
    hits = ray_hit_order(scene, origins, directions)
    assert int(hits[0].diff().max()) > 3

    def traced(means, quats, log_scales, opacity_logits, origins, directions):
        exact = replace(
            scene, means=means, quats=quats, log_scales=log_scales, opacity_logits=opacity_logits
        )
        found = surface.surface_of_hits(exact, origins, directions, *hits, DEFAULT.alpha_max)
        return getattr(found, output)

    tensors = [*list(scene.tensors().values())[:4], origins, directions]
    assert torch.autograd.gradcheck(traced, [t.double().requires_grad_() for t in tensors])


def test_the_median_is_the_hit_that_takes_half():
    sheets = [gaussian((0, 0, z), logit=math.log(a / (1 - a))) for z, a in ((2, 0.2), (3, 0.3))]
    scene = join(*sheets, gaussian((0, 0, 5), logit=0.0), gaussian((0, 0, 7), logit=0.0))
    assert trace_ray_surface(scene, START, AHEAD).median_depth == 5  # 0.8, 0.56, 0.28
    assert trace_ray_surface(join(*sheets), START, AHEAD).median_depth == 0
    twice = trace_ray_surface(scene, START, 2 * AHEAD)
    assert twice.median_depth == 2.5
    assert twice.hit_count == 4


@pytest.mark.parametrize("tracer", TRACERS)
def test_exactly_half_is_half(tracer):
    scene = join(gaussian((0, 0, 3), logit=0.0), gaussian((0, 0, 4), logit=0.0))
    view = camera(1, 1)
    assert trace_surface(scene, view, TraceSettings(tracer=tracer)).median_depth == 3
    assert reference.trace_rays(scene, *reference.camera_rays(view)).median_depth == 3


@pytest.mark.parametrize("tracer", TRACERS)
def test_no_hits(tracer):
    settings = TraceSettings(tracer=tracer)
    for scene in (random_gaussians(0), gaussian((0, 0, -5))):
        leaves = scene.map(lambda t: t.clone().requires_grad_())
        found = trace_surface(leaves, camera(), settings)
        assert not found.hit_count.any()
        assert not found.median_depth.any()
        assert not found.normals.any()
        (found.median_depth.sum() + found.normals.sum()).backward()
        assert not leaves.means.grad.any()


@pytest.mark.parametrize("thickness", [1e-1, 1e-6])
@pytest.mark.parametrize("side", [1, -1])
def test_the_normal_of_a_flat_gaussian_is_its_axis_towards_the_camera(side, thickness):
    half = math.radians(side * 40) / 2
    sheet = gaussian(
        (0, 0, 3), scales=(1, 1, thickness), quat=(math.cos(half), math.sin(half), 0, 0), logit=9
    )
    normal = trace_ray_surface(sheet, START, AHEAD).normals / DEFAULT.alpha_max
    axis = torch.tensor([0, side * math.sin(math.radians(40)), -math.cos(math.radians(40))])
    torch.testing.assert_close(normal, axis, atol=2 * thickness**2 + 1e-6, rtol=0)


def test_the_normal_of_a_round_gaussian_faces_the_ray():
    direction = torch.tensor([0.3, -0.2, 1.0])
    normal = trace_ray_surface(gaussian(tuple(3 * direction), logit=9), START, direction).normals
    torch.testing.assert_close(normal / DEFAULT.alpha_max, -direction / direction.norm())


def test_peaks_of_parallel_rays_lie_across_the_normal():
    one = gaussian((0.3, -0.3, 3), scales=(0.5, 0.3, 0.2), quat=(3, 1, -2, 1), logit=3)
    direction = torch.tensor([0.1, -0.1, 1.0])
    origins = torch.tensor([[0.0, 0, 0], [0.1, 0, 0], [0, 0.1, 0]])
    depth = trace_ray_surface(one, origins, direction).median_depth
    assert (depth > 0).all()
    peaks = origins + depth[:, None] * direction
    normal = torch.linalg.cross(peaks[1] - peaks[0], peaks[2] - peaks[0])
    normal = -normal / normal.norm()
    blended = trace_ray_surface(one, origins[0], direction).normals
    torch.testing.assert_close(blended / blended.norm(), normal, atol=1e-5, rtol=0)
    assert blended @ direction < 0


def test_normals_are_at_most_as_long_as_opacity():
    scene, view = random_gaussians(100), camera()
    lengths = trace_surface(scene, view).normals.norm(dim=-1)
    assert (lengths <= trace(scene, view).opacity + 1e-5).all()


def test_opaque_gaussians_have_no_gradient_in_opacity():
    scene = gaussian((0, 0, 3), logit=math.inf).map(lambda t: t.requires_grad_())
    found = trace_ray_surface(scene, START, AHEAD)
    assert found.median_depth == 3
    (found.normals.sum() + found.median_depth).backward()
    assert scene.opacity_logits.grad == 0
    torch.testing.assert_close(scene.means.grad, torch.tensor([[0.0, 0, 1]]))


@pytest.mark.parametrize("tracer", TRACERS)
def test_gaussians_that_are_not_finite_take_no_part(tracer):
    scene = random_gaussians(40)
    scene.means[7, 1], scene.quats[9, 0], scene.log_scales[11, 2] = math.nan, math.inf, math.nan
    leaves = scene.map(lambda t: t.requires_grad_())
    found = trace_surface(leaves, camera(), TraceSettings(tracer=tracer))
    (found.normals.sum() + found.median_depth.sum()).backward()
    for tensor in (leaves.means, leaves.quats, leaves.log_scales, leaves.opacity_logits):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.any()
        assert not tensor.grad[[7, 9, 11]].any()


@pytest.mark.parametrize("tracer", TRACERS)
def test_counts_are_those_of_the_hits_blended(tracer):
    scene, view = random_gaussians(100), camera(70, 70)
    offsets, _, _ = hit_order(scene, view)
    count = trace_surface(scene, view, TraceSettings(tracer=tracer)).hit_count
    assert torch.equal(count.flatten().long(), offsets.diff())


def test_strips_and_pieces_change_nothing(monkeypatch):
    scene, view = random_gaussians(60), camera(20, 150)
    whole = trace_surface(scene, view)
    monkeypatch.setitem(surface.HITS_AT_ONCE, "cpu", 50)
    parts = trace_surface(scene, view, TraceSettings(memory_limit=0))
    for name in ("median_depth", "normals", "hit_count"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_a_pose_that_no_ray_of_a_fisheyes_corners_makes_nan():
    pose = random_pose(8, 2).requires_grad_()
    view = camera(53, 45, fov=260, model="opencv_fisheye", distortion=FISHEYE, pose=pose)
    surface_of = trace_surface(shell(150, pose=pose.detach()), view)
    surface_of.normals.sum().backward()
    assert pose.grad.isfinite().all()
    assert pose.grad.any()


def test_behind_an_aperture_samples_are_averaged():
    scene, view = random_gaussians(60, logit=1), camera(9, 7)
    lens = replace(view, aperture=ThinLens(radius=0.1, focus=4.0, samples=3))
    found = trace_surface(scene, lens)
    each = trace_ray_surface(scene, *camera_rays(lens))
    assert torch.equal(found.hit_count, each.hit_count.sum(0, dtype=torch.int32))
    torch.testing.assert_close(found.normals, each.normals.mean(0))
    there = each.median_depth > 0
    depth = each.median_depth.sum(0) / there.sum(0).clamp_min(1)
    torch.testing.assert_close(found.median_depth, depth)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (3, 0)])
def test_axes_of_rays_are_kept(shape):
    origins, directions = random_rays(math.prod(shape))
    found = trace_ray_surface(
        random_gaussians(50), origins.reshape(*shape, 3), directions.reshape(*shape, 3)
    )
    assert found.normals.shape == (*shape, 3)
    assert found.median_depth.shape == found.hit_count.shape == shape


def test_t_min_of_each_ray():
    scene = join(gaussian((0, 0, 3), logit=3), gaussian((0, 0, 5), logit=3))
    rays = START.expand(2, 3), AHEAD.expand(2, 3)
    found = trace_ray_surface(scene, *rays, t_min=torch.tensor([0.0, 4.0]))
    assert found.median_depth.tolist() == [3, 5]
    assert trace_ray_surface(scene, *rays, t_min=6.0).hit_count.tolist() == [0, 0]


def test_what_it_cannot_use_is_named():
    with pytest.raises(ValueError, match=r"directions has shape \[2\]; expected \[\.\.\., 3\]"):
        trace_ray_surface(random_gaussians(3), START, AHEAD[:2])
