"""The CUDA rasterizer against the CPU's and against the specification."""

from math import inf, nan

import pytest
import torch
from scenes import HARD_SCENES, camera, gaussian, join, random_gaussians, random_pose
from torch import Tensor

from gart.cameras import Camera
from gart.reference import splatting
from gart.rendering import Rendering
from gart.scene import Gaussians
from gart.stages import Stages
from gart.tilegs import RasterSettings, rasterization, rasterize

pytestmark = pytest.mark.cuda

PINHOLE = [name for name, make in HARD_SCENES.items() if make()[1].model == "pinhole"]


def assert_images_close(actual: Rendering, expected: Rendering, rare: float = 2e-3) -> None:
    """A response within rounding of alpha_min is a hit on one side alone: rare pixels differ."""
    pairs = {
        "color": (actual.color, expected.color, 3e-5),
        "opacity": (actual.opacity, expected.opacity, 3e-5),
        "depth": (actual.depth, expected.depth, 1e-3),
    }
    for name, (a, b, limit) in pairs.items():
        assert a.shape == b.shape
        assert a.isfinite().all(), name
        difference = (a.cpu().double() - b.double()).abs()
        assert float((difference > limit).double().mean()) <= rare, name
        if name != "depth":
            assert float(difference.max()) < 0.02, name
            assert float(difference.mean()) < 1e-5, name


def assert_backends_agree(
    scene: Gaussians, view: Camera, settings: RasterSettings | None = None, rare: float = 2e-3
) -> Rendering:
    """The CUDA image, once it equals the CPU's."""
    image = rasterize(scene.to("cuda"), view, settings)
    assert_images_close(image, rasterize(scene, view, settings), rare)
    return image


def specks(
    n: int, *, depths: tuple[float, float] = (2, 6), seed: int = 0, logit: float = -3.0
) -> Gaussians:
    """N faint specks before a narrow camera."""
    return random_gaussians(
        n,
        seed=seed,
        degree=0,
        low=(-0.5, -0.5, depths[0]),
        high=(0.5, 0.5, depths[1]),
        scales=(0.001, 0.01),
        logit=logit,
    )


ONE_TILE = camera(16, 16, fov=40)


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_random_scenes_match_the_specification(degree, mode):
    scene, view = random_gaussians(300, degree=degree), camera(70, 45)
    image = rasterize(scene.to("cuda"), view, RasterSettings(mode=mode))
    assert_images_close(image, splatting.rasterize(scene, view, mode=mode))


@pytest.mark.parametrize("name", PINHOLE)
def test_hard_scenes(name):
    assert_backends_agree(
        *HARD_SCENES[name](), rare=0.02 if name in ("needles", "layers") else 2e-3
    )


@pytest.mark.parametrize("seed", range(8))
def test_scales_from_specks_to_sheets(seed):
    scene = random_gaussians(200, seed=seed, scales=(10 ** (-seed / 2 - 0.5), 10 ** (seed / 3)))
    assert_backends_agree(scene, camera(113, 71, pose=random_pose(seed, 1)), rare=5e-3)


@pytest.mark.parametrize(
    "n", [1, 64, 65, 512, 600, 2100, 5000, 18_000], ids=lambda n: f"{n} in a tile"
)
def test_lists_of_every_length(n):
    assert_backends_agree(specks(n), ONE_TILE, rare=0.01)


@pytest.mark.parametrize("n", [300, 1500, 5000, 18_000])
def test_equal_depths_keep_the_gaussians_order(n):
    assert_backends_agree(specks(n, depths=(3, 3)), ONE_TILE, rare=0.01)


def test_bimodal_depths():
    near, far = specks(1000, depths=(3, 3.001)), specks(1000, depths=(500, 501), seed=1)
    far.means[:, :2] *= 100
    far.log_scales += 4.6
    assert_backends_agree(join(near, far), ONE_TILE, rare=0.01)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (16, 16), (17, 33), (300, 7)])
def test_image_sizes(size):
    assert_backends_agree(random_gaussians(200), camera(*size))


def test_no_gaussians_show_the_background():
    scene = random_gaussians(0).to("cuda")
    eye, K = torch.eye(4)[None], camera(20, 10).K[None]
    background = torch.tensor([[0.2, 0.4, 0.6]])
    colors, alphas, depths = rasterization(
        scene.means,
        scene.quats,
        scene.log_scales,
        scene.opacity_logits,
        scene.sh,
        eye,
        K,
        20,
        10,
        backgrounds=background,
    )
    assert torch.equal(colors.cpu(), background.expand(1, 10, 20, 3))
    assert not alphas.any()
    assert not depths.any()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("means", nan),
        ("means", inf),
        ("means", 3e38),
        ("quats", nan),
        ("quats", 0.0),
        ("log_scales", inf),
        ("log_scales", 60.0),
        ("log_scales", 88.0),
        ("opacity_logits", nan),
        ("opacity_logits", -inf),
        ("sh", nan),
        ("sh", inf),
    ],
)
def test_a_gaussian_that_is_not_finite_is_not_drawn(name, value):
    good, view = random_gaussians(50), camera()
    bad = good.map(torch.clone)
    getattr(bad, name)[7] = value
    others = good.map(lambda t: torch.cat([t[:7], t[8:]]))
    image, expected = (rasterize(s.to("cuda"), view) for s in (bad, others))
    assert torch.equal(image.color, expected.color)
    assert torch.equal(image.depth, expected.depth)


def test_repaired_images_are_the_same_bits_whatever_the_run_the_bins_and_the_packing():
    scene, view = random_gaussians(4000, scales=(0.02, 0.2)).to("cuda"), camera(96, 64)
    expected = rasterize(scene, view).color
    variants = [{}, {}, {"bins": 16}, {"bins": 128}, {"packed": True}]
    for options in variants:
        assert torch.equal(rasterize(scene, view, RasterSettings(**options)).color, expected)


def test_without_repair_the_order_is_wrong_and_the_opacity_right():
    scene, view = random_gaussians(4000, logit=-2), camera(96, 64)
    settings = RasterSettings(repair=False, bins=16)
    exact, coarse = (rasterize(scene.to("cuda"), view, s) for s in (None, settings))
    assert float((exact.color - coarse.color).abs().max()) > 1e-3
    seen = exact.opacity < 0.99
    assert float((exact.opacity - coarse.opacity)[seen].abs().max()) < 1e-3


def test_counts_agree_with_the_cpus():
    scene, view = random_gaussians(3000, scales=(0.01, 0.2)), camera(150, 90)
    found = {}
    for device in ("cpu", "cuda"):
        with Stages() as stages:
            rasterize(scene.to(device), view)
        found[device] = {name: values[0] for name, values in stages.counts.items()}
    for name in ("splats", "entries"):
        assert found["cuda"][name] == pytest.approx(found["cpu"][name], rel=1e-3)
    for name in ("bin segments", "segments repaired", "entries repaired"):
        assert found["cuda"][name] == pytest.approx(found["cpu"][name], rel=0.05)
    assert 0 < found["cuda"]["tests"] < 256 * found["cuda"]["entries"]


def test_frames_larger_than_any_before_are_drawn_whole():
    # Room is taken for what recent frames needed; this one needs far more spans, entries and longer
    # lists than the first guess.
    rasterize(specks(10).to("cuda"), ONE_TILE)
    scene = random_gaussians(60_000, degree=0, scales=(0.3, 0.4), logit=-4)
    scene = join(scene, gaussian((0, 0, 8), scales=(3, 3, 3), logit=5))
    view = camera(640, 480)
    scene = scene.to("cuda")
    with Stages() as stages:
        first = rasterize(scene, view)
    assert stages.counts["entries"][0] > 2**21
    assert torch.equal(first.color, rasterize(scene, view).color)
    small = camera(64, 48)  # a tenth as wide: lists of ten thousand
    assert_backends_agree(scene.to("cpu"), small, rare=0.01)


def test_a_batch_is_its_cameras():
    scene = random_gaussians(3000, scales=(0.01, 0.2)).to("cuda")
    views = [camera(70, 50), camera(70, 50, shift=(3, 2)), camera(70, 50, pose=random_pose(1, 1))]
    parameters = (
        scene.means,
        scene.quats,
        scene.log_scales.exp(),
        scene.opacity_logits.sigmoid(),
        scene.sh,
    )

    def render(*chosen: Camera) -> tuple[Tensor, Tensor, Tensor]:
        viewmats = torch.stack([view.viewmat for view in chosen])
        Ks = torch.stack([view.K for view in chosen])
        backgrounds = torch.full((len(chosen), 3), 0.3)
        return rasterization(*parameters, viewmats, Ks, 70, 50, backgrounds=backgrounds)

    batch = render(*views)
    for i, view in enumerate(views):
        for together, alone in zip(batch, render(view), strict=True):
            assert torch.equal(together[i], alone[0])


def test_works_on_the_callers_stream():
    scene, view = random_gaussians(3000).to("cuda"), camera(96, 64)
    expected = rasterize(scene, view).color
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        image = rasterize(scene, view).color
    stream.synchronize()
    assert torch.equal(image, expected)


def test_wrong_arguments_are_refused():
    scene, view = random_gaussians(20).to("cuda"), camera()
    good = {
        "means": scene.means,
        "quats": scene.quats,
        "scales": scene.log_scales.exp(),
        "opacities": scene.opacity_logits.sigmoid(),
        "sh": scene.sh,
        "viewmats": torch.eye(4)[None],
        "Ks": view.K[None],
        "width": view.width,
        "height": view.height,
    }
    shifted = torch.zeros(81, device=scene.means.device)[1:].view(20, 4)
    for wrong, message in (
        ({"quats": shifted}, "quats does not begin at a multiple of 16 bytes"),
        ({"sh": scene.sh[:, :3]}, "expected 1, 4, 9 or 16"),
        ({"width": 0}, "image size is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            rasterization(**{**good, **wrong})
