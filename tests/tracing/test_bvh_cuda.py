"""The CUDA tree and its rays against the oracle and against the CPU's."""

from dataclasses import replace

import pytest
import torch
from oracle import OUTPUTS, STRICT, Limits
from ray_oracle import (
    DEFAULT,
    assert_ray_gradients_agree,
    assert_ray_orders_agree,
    assert_rays_agree,
    random_rays,
)
from scenes import HARD_LIMITS, HARD_SCENES, camera, gaussian, join, layers, random_gaussians

from gart.tracing import Bvh, TraceSettings, camera_rays, rays, trace, trace_rays
from gart.tracing.rays import ray_hit_order

pytestmark = pytest.mark.cuda


def limits(name: str = "", **more: float) -> Limits:
    return replace(STRICT, **{**HARD_LIMITS.get(name, {}), **more})


@pytest.mark.parametrize("sh", ["ray", "center"])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_incoherent_rays(degree, sh):
    scene, rays = random_gaussians(400, degree=degree), random_rays(2000, seed=degree)
    settings, allowed = TraceSettings(tracer="bvh", sh=sh), limits(doubtful=0.02)
    assert_rays_agree(scene, rays, settings, allowed, "cuda")
    assert_ray_orders_agree(scene, rays, settings, allowed, "cuda")
    assert_ray_gradients_agree(scene, rays, settings, limits=allowed, device="cuda")


@pytest.mark.parametrize("name", HARD_SCENES)
def test_hard_scenes(name):
    scene, view = HARD_SCENES[name]()
    rays = tuple(t.reshape(-1, 3) for t in camera_rays(view))
    assert_rays_agree(scene, rays, DEFAULT, limits(name), "cuda")
    assert_ray_orders_agree(scene, rays, DEFAULT, limits(name), "cuda")
    assert_ray_gradients_agree(scene, rays, DEFAULT, limits=limits(name), device="cuda")


@pytest.mark.parametrize("loss", OUTPUTS)
def test_gradients_of_each_output(loss):
    scene, rays = random_gaussians(100, seed=3), random_rays(500)
    allowed = limits(doubtful=0.02)
    assert_ray_gradients_agree(scene, rays, DEFAULT, (loss,), allowed, "cuda")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 33, 1000, 20_000])
def test_the_tree_is_the_cpus(count):
    scene = random_gaussians(count, degree=0, scales=(0.01, 0.05))
    trees = [Bvh(scene.to(device)) for device in ("cpu", "cuda")]
    order, other_order = (tree.native()[0].cpu() for tree in trees)
    assert torch.equal(order, other_order)
    # Boxes differ by rounding, and with them now and then whom a treelet joins.
    assert trees[0].cost == pytest.approx(trees[1].cost, rel=1e-3)


def test_refit_traces_as_a_new_tree():
    scene, (origins, directions) = random_gaussians(3000).to("cuda"), random_rays(2000)
    origins, directions = origins.cuda(), directions.cuda()
    bvh = Bvh(scene)
    scene.means += 0.1 * torch.randn_like(scene.means)
    scene.means[7] = float("nan")
    bvh.refit(scene)
    refitted = trace_rays(scene, origins, directions, bvh=bvh)
    built = trace_rays(scene, origins, directions)
    for output in OUTPUTS:
        assert torch.equal(getattr(refitted, output), getattr(built, output)), output


def test_images_are_those_of_the_cpu():
    scene, view = random_gaussians(3000), camera(101, 75)
    settings = TraceSettings(tracer="bvh")
    images = [trace(scene.to(device), view, settings) for device in ("cpu", "cuda")]
    difference = (images[0].color - images[1].color.cpu()).abs().amax(-1)
    assert float((difference > 1e-5).double().mean()) < 1e-3
    assert float((images[0].opacity - images[1].opacity.cpu()).abs().max()) < 1e-4


@pytest.mark.parametrize("make", [layers, random_gaussians])
def test_rays_together_find_what_they_find_alone(make):
    scene, view = make(3000).to("cuda"), camera(101, 75, fov=20)
    origins, directions = (t.clone() for t in camera_rays(view, "cuda"))
    origins[62:] += 100.0  # far from the others of a warp
    directions[10:13, 20:50] = float("nan")
    bvh = Bvh(scene)
    image = trace_rays(scene, origins, directions, bvh=bvh)
    offsets, hits = ray_hit_order(scene, origins.view(-1, 3), directions.view(-1, 3), bvh=bvh)
    assert offsets.diff().max() > 24  # more than one walk

    mixed = torch.randperm(101 * 75, generator=torch.Generator().manual_seed(0)).cuda()
    back = mixed.argsort()
    rays = (origins.view(-1, 3)[mixed], directions.view(-1, 3)[mixed])
    alone = trace_rays(scene, *rays, bvh=bvh)
    for output in OUTPUTS:
        together = getattr(image, output).flatten(0, 1)
        assert torch.allclose(getattr(alone, output)[back], together, rtol=1e-5, atol=1e-6), output
    other_offsets, other_hits = ray_hit_order(scene, *rays, bvh=bvh)
    counts = other_offsets.diff()
    assert torch.equal(counts[back], offsets.diff())
    owners = torch.repeat_interleave(mixed, counts)
    assert torch.equal(other_hits[owners.argsort(stable=True)], hits)


def test_hits_that_do_not_fit_are_traced_again(monkeypatch):
    scene, view = layers(200).to("cuda"), camera(64, 48, fov=40)
    origins, directions = camera_rays(view, "cuda")

    def gradient(recent):
        monkeypatch.setattr(rays, "_chunks_a_ray", recent)
        leaves = scene.map(lambda t: t.clone().requires_grad_())
        trace_rays(leaves, origins, directions).color.square().sum().backward()
        return leaves.means.grad

    enough = {}
    expected = gradient(enough)
    assert enough[origins.device] > 3
    assert torch.equal(gradient({origins.device: 0.0}), expected)


def test_one_gaussian_with_more_hits_than_a_piece_and_more_rays_than_a_slice():
    scene = join(random_gaussians(50, degree=0), gaussian((0, 0, 4), scales=(9, 9, 9), logit=-1))
    view = camera(640, 480)
    gradients = []
    for device in ("cpu", "cuda"):
        leaves = scene.map(lambda t, d=device: t.to(d).clone().requires_grad_())
        image = trace(leaves, view, TraceSettings(tracer="bvh"))
        (image.color.sum() + image.depth.sum()).backward()
        gradients.append([t.grad.cpu().double() for t in leaves.tensors().values()])
    for cpu, cuda in zip(*gradients, strict=True):
        assert float((cpu - cuda).norm()) <= 1e-3 * float(cpu.norm())


def test_empty_scene_and_no_rays():
    scene = random_gaussians(0).map(lambda t: t.cuda().requires_grad_())
    origins, directions = (t.cuda() for t in random_rays(9))
    image = trace_rays(scene, origins, directions)
    assert not image.color.any()
    image.color.sum().backward()
    assert scene.means.grad is not None
    scene = random_gaussians(9).to("cuda")
    assert trace_rays(scene, origins[:0], directions[:0]).color.shape == (0, 3)


def test_works_on_the_callers_stream():
    scene, (origins, directions) = random_gaussians(3000).to("cuda"), random_rays(500)
    origins, directions = origins.cuda(), directions.cuda()
    expected = trace_rays(scene, origins, directions).color
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        color = trace_rays(scene, origins, directions).color
    stream.synchronize()
    assert torch.equal(color, expected)


def test_mixed_devices_are_named():
    scene, (origins, directions) = random_gaussians(10).to("cuda"), random_rays(5)
    with pytest.raises(ValueError, match="origins is on device type 1"):
        trace_rays(scene, origins, directions)
