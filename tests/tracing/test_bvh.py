"""The tree over the Gaussians: what is in it, refits and when it is built again."""

import math

import pytest
import torch
from oracle import OUTPUTS
from ray_oracle import random_rays
from scenes import gaussian, join, random_gaussians

from gart.reference import whitening
from gart.tracing import Bvh, trace_rays

WIDTH = 4
NO_CHILD = -(2**31)


def nodes(bvh):
    """Reachable nodes: number -> list of (child, low [3], high [3])."""
    rows = bvh.native()[2]
    found, waiting = {}, [0]
    while waiting:
        number = waiting.pop()
        children = rows[number].reshape(WIDTH, 8)
        names = children[:, 6].contiguous().view(torch.int32).tolist()
        planes = children[:, :6].reshape(WIDTH, 3, 2)
        found[number] = [
            (name, planes[k, :, 0], planes[k, :, 1])
            for k, name in enumerate(names)
            if name != NO_CHILD
        ]
        waiting += [name for name, _, _ in found[number] if name >= 0]
    return found


def assert_sound(bvh, scene):
    """Every Gaussian is in one leaf, in a box that holds its support, in boxes that hold that."""
    order = bvh.native()[0]
    assert sorted(order.tolist()) == list(range(len(scene)))
    support = whitening(scene.quats.double(), scene.log_scales.double()).inverse()
    radius = (2 * (scene.opacity_logits.double().sigmoid() / bvh.alpha_min).log()).sqrt()
    half = radius[:, None] * support.norm(dim=-1)
    seen, tree = [], nodes(bvh)
    for children in tree.values():
        assert 1 <= len(children) <= WIDTH
        for name, low, high in children:
            if name < 0:
                i = int(order[~name])
                seen.append(i)
                if radius[i].isfinite():
                    assert (low <= scene.means[i] - half[i]).all()
                    assert (high >= scene.means[i] + half[i]).all()
                    rounding = 1e-5 + 4e-6 * scene.means[i].abs()
                    assert (high - low <= 2.1 * half[i] + rounding).all()
                else:
                    assert (low > high).all()
            else:
                below = tree[name]
                assert torch.equal(torch.stack([b for _, b, _ in below]).amin(0), low)
                assert torch.equal(torch.stack([b for _, _, b in below]).amax(0), high)
    assert sorted(seen) == list(range(len(scene)))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 17, 500])
def test_every_gaussian_is_in_its_boxes(count):
    scene = random_gaussians(count, degree=0)
    assert_sound(Bvh(scene), scene)


def test_equal_places_and_outliers():
    clump = random_gaussians(40, degree=0, low=(1, 1, 1), high=(1, 1, 1))
    scene = join(clump, gaussian((1e6, 0, 0)), gaussian((0, -1e5, 1)))
    assert_sound(Bvh(scene), scene)


def test_faint_and_broken_gaussians_have_no_box():
    scene = random_gaussians(30, degree=0)
    scene.opacity_logits[3] = -9
    scene.opacity_logits[4] = math.inf
    bvh = Bvh(scene)
    assert_sound(bvh, scene)
    scene.means[5] = math.nan
    scene.quats[6] = 0
    scene.log_scales[7, 0] = math.inf
    boxes = {name: low for rows in nodes(Bvh(scene)).values() for name, low, _ in rows}
    order = Bvh(scene).native()[0].tolist()
    for i in (3, 5, 6, 7):
        assert (boxes[~order.index(i)] == math.inf).all()


def test_no_gaussians():
    bvh = Bvh(random_gaussians(0))
    assert len(bvh) == 0
    assert bvh.cost == 0
    assert nodes(bvh) == {0: []}


def test_it_is_shallow():
    bvh = Bvh(random_gaussians(4000, degree=0))
    tree = nodes(bvh)

    def depth(number):
        return 1 + max((depth(name) for name, _, _ in tree[number] if name >= 0), default=0)

    assert depth(0) <= 16
    assert len(tree) < 4000 / 2


@pytest.mark.parametrize("moved", [0.0, 0.05, 3.0])
def test_refit_traces_as_a_new_tree(moved):
    scene, rays = random_gaussians(300, degree=1), random_rays(200)
    bvh = Bvh(scene)
    random = torch.Generator().manual_seed(1)
    scene.means += moved * torch.randn(300, 3, generator=random)
    scene.log_scales += moved / 3 * torch.randn(300, 3, generator=random)
    scene.opacity_logits += moved * torch.randn(300, generator=random)
    bvh.refit(scene)
    assert_sound(bvh, scene)
    refitted, built = trace_rays(scene, *rays, bvh=bvh), trace_rays(scene, *rays)
    for output in OUTPUTS:
        assert torch.equal(getattr(refitted, output), getattr(built, output)), output


def test_cost_grows_with_disorder_and_update_builds_then():
    scene = random_gaussians(500, degree=0, scales=(0.01, 0.03))
    bvh = Bvh(scene)
    before = bvh.cost
    assert 2 < before < 200
    assert not bvh.update(scene)
    assert bvh.cost == pytest.approx(before, rel=1e-6)
    scene.means = scene.means + 0.001
    assert not bvh.update(scene)
    scene.means = scene.means[torch.randperm(500, generator=torch.Generator().manual_seed(0))]
    shuffled = Bvh(random_gaussians(500, degree=0, scales=(0.01, 0.03)))
    shuffled.refit(scene)
    assert shuffled.cost > 1.3 * before
    assert bvh.update(scene)
    assert bvh.cost < 1.1 * before


def test_update_builds_for_another_number_of_gaussians():
    bvh = Bvh(random_gaussians(50, degree=0))
    assert bvh.update(random_gaussians(60, degree=0))
    assert len(bvh) == 60
    with pytest.raises(ValueError, match="the bvh has 60 Gaussians and the scene 50"):
        bvh.refit(random_gaussians(50, degree=0))


def test_tensors_of_a_wrong_kind_are_named():
    scene = random_gaussians(5)
    scene.means = scene.means.double()
    with pytest.raises(ValueError, match="means has dtype code 2 with 64 bits"):
        Bvh(scene)
