"""Depth bins and their repair: no choice of them shows in the image; leaving them out does."""

import pytest
import torch
from scenes import camera, gaussian, join, random_gaussians, random_pose

from gart.cameras import Camera
from gart.native import library
from gart.reference import splatting
from gart.scene import Gaussians
from gart.stages import Stages
from gart.tilegs import RasterSettings, rasterize

ONE_TILE = camera(16, 16, fov=40)


def specks(count: int, near: float, far: float, seed: int = 0, logit: float = -2.0) -> Gaussians:
    """Faint specks that fill the view of `ONE_TILE` from depth `near` to `far`."""
    scene = random_gaussians(
        count,
        seed=seed,
        degree=0,
        low=(-0.4, -0.4, 0),
        high=(0.4, 0.4, 1),
        scales=(0.05, 0.1),
        logit=logit,
    )
    depth = near + (far - near) * scene.means[:, 2:]
    scene.means = torch.cat([scene.means[:, :2] * depth, depth], 1)
    scene.log_scales = scene.log_scales + depth.log()
    return scene


def one_outlier_each_way(count: int) -> Gaussians:
    """A crowd within a hundredth of a unit, something far nearer, something far behind."""
    crowd = specks(count, 5, 5.01)
    return join(crowd, gaussian((0, 0, 0.02), scales=(0.01,) * 3, logit=-2.0), specks(1, 1e5, 1e5))


def bimodal(count: int) -> Gaussians:
    return join(specks(count, 1, 1.01), specks(count, 500, 510, seed=1))


SCENES = {
    "sparse": lambda: specks(3, 2, 9),
    "dense": lambda: specks(2000, 2, 2.1, logit=-4),
    "wide": lambda: specks(500, 0.1, 1000),
    "bimodal": lambda: bimodal(200),
    "one depth": lambda: specks(600, 3, 3, logit=-3),
    "outliers": lambda: one_outlier_each_way(300),
    "at the near plane": lambda: specks(200, 0.01, 0.0101),
    "a tile of 20,000": lambda: specks(20_000, 2, 40, logit=-4),
}


@pytest.mark.parametrize("name", SCENES)
def test_any_distribution_of_depths_equals_the_oracle(name):
    scene = SCENES[name]()
    view = camera(4, 4, fov=40) if len(scene) > 5000 else ONE_TILE
    result, oracle = rasterize(scene, view), splatting.rasterize(scene, view)
    assert oracle.opacity.mean() > 0.005
    for image in ("color", "opacity"):
        difference = (getattr(result, image) - getattr(oracle, image)).abs()
        # A response within rounding of 1/255 may fall on either side.
        assert (difference > 2e-5).double().mean() < 0.02, image
        assert difference.max() < 0.01, image


@pytest.mark.parametrize("name", SCENES)
def test_bins_and_packing_do_not_show(name):
    scene = SCENES[name]()
    expected = rasterize(scene, ONE_TILE)
    for options in ({"bins": 16}, {"bins": 32}, {"bins": 128}, {"packed": True}):
        image = rasterize(scene, ONE_TILE, RasterSettings(**options))
        assert torch.equal(image.color, expected.color), options
        assert torch.equal(image.opacity, expected.opacity), options
        assert torch.equal(image.depth, expected.depth), options


def test_without_repair_near_and_far_still_separate_but_each_crowd_is_out_of_order():
    scene = bimodal(400)
    exact, coarse = (rasterize(scene, ONE_TILE, RasterSettings(repair=r)) for r in (True, False))
    assert (exact.color - coarse.color).abs().max() > 1e-3
    torch.testing.assert_close(exact.opacity, coarse.opacity, rtol=0, atol=2e-3)
    assert (exact.depth - coarse.depth).abs().mean() < 0.01 * exact.depth.mean()
    # Two that lie in different bins need no repair.
    pair = join(specks(1, 1, 1), specks(1, 500, 500, seed=1))
    exact, coarse = (rasterize(pair, ONE_TILE, RasterSettings(repair=r)) for r in (True, False))
    assert torch.equal(exact.color, coarse.color)


def test_more_bins_leave_a_smaller_error_without_repair():
    scene = specks(3000, 1, 30, logit=-3)
    exact = rasterize(scene, ONE_TILE).color
    errors = [
        (rasterize(scene, ONE_TILE, RasterSettings(repair=False, bins=bins)).color - exact)
        .abs()
        .mean()
        for bins in (16, 32, 64, 128)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.5 * errors[0]


def counts(scene: Gaussians, view: Camera, **options: object) -> dict[str, float]:
    with Stages() as stages:
        rasterize(scene, view, RasterSettings(**options))
    assert list(stages.ms) == ["project", "intersect", "bins", "repair", "raster"]
    return {name: values[0] for name, values in stages.counts.items()}


def test_counts():
    scene = specks(40, 1, 30)
    found = counts(scene, ONE_TILE)
    assert found["splats"] == found["entries"] == 40
    assert found["pixels"] == 256
    assert 2 <= found["segments repaired"] <= found["bin segments"] <= 40
    alone = found["bin segments"] - found["segments repaired"]
    assert found["entries repaired"] == 40 - alone
    assert 0 < found["tests"] <= 40 * 256
    # One tile: two offsets of 8 B, 65 of 4 B, 8 B an entry; packed, 64 B more.
    assert found["tile stream bytes"] == 2 * 8 + 65 * 4 + 40 * 8
    assert counts(scene, ONE_TILE, packed=True)["tile stream bytes"] == 2 * 8 + 65 * 4 + 40 * 72
    coarse = counts(scene, ONE_TILE, repair=False, bins=16)
    assert coarse["segments repaired"] == coarse["entries repaired"] == 0
    assert coarse["bin segments"] <= 16


def test_one_depth_fills_one_bin_a_tile():
    found = counts(specks(50, 3, 3), ONE_TILE)
    assert found["bin segments"] == found["segments repaired"] == 1
    assert found["entries repaired"] == found["entries"] > 40


def test_hidden_entries_are_not_tested():
    # A wall in front ends every pixel after a few splats.
    walls = join(*(gaussian((0, 0, 1 + 0.1 * i), scales=(9, 9, 0.01), logit=9) for i in range(4)))
    alone, hiding = counts(walls, ONE_TILE), counts(join(specks(300, 5, 9), walls), ONE_TILE)
    assert hiding["entries"] > 250 + alone["entries"]
    assert hiding["tests"] == alone["tests"]


def test_counts_and_image_do_not_depend_on_threads():
    scene, view = random_gaussians(6000, scales=(0.01, 0.2)), camera(90, 70, pose=random_pose(1, 1))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            found.append((rasterize(scene, view).color, counts(scene, view)))
    finally:
        torch.set_num_threads(before)
    for color, numbers in found[1:]:
        assert torch.equal(color, found[0][0])
        assert numbers == found[0][1]


def test_the_native_call_names_a_wrong_number_of_bins():
    one = torch.ones(1, 3)
    view = (torch.eye(4)[None], ONE_TILE.K[None], torch.empty(0), 16, 16)
    with pytest.raises(ValueError, match="bins is 48; expected 16, 32, 64 or 128"):
        library("cpu").tilegs_render(
            *(one, torch.ones(1, 4), one, torch.ones(1), torch.ones(1, 1, 3)),
            *view,
            *(0.004, 0.999, 1e-4, 0.01, 0.3, False, 48, True, False, False, 1),
        )
