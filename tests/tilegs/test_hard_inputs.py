"""Hard scenes and wrong arguments: a correct image or a clear ValueError, never NaN or a crash."""

from dataclasses import replace
from math import inf, nan

import pytest
import torch

from gart.cameras import Camera
from gart.reference import splatting
from gart.scene import Gaussians
from gart.tilegs import RasterSettings, rasterization, rasterize

CAMERA = Camera(torch.eye(4)[:3], 20.0, 20.0, 10.0, 8.0, 21, 17)


def scene(count: int = 20, seed: int = 0) -> Gaussians:
    rng = torch.Generator().manual_seed(seed)
    return Gaussians(
        means=torch.randn(count, 3, generator=rng) * 0.5 + torch.tensor([0.0, 0, 3]),
        quats=torch.randn(count, 4, generator=rng),
        log_scales=torch.randn(count, 3, generator=rng) * 0.3 - 1,
        opacity_logits=torch.randn(count, generator=rng),
        sh=torch.randn(count, 4, 3, generator=rng) * 0.3,
    )


def test_no_gaussians_give_an_empty_image():
    result = rasterize(scene(0), CAMERA)
    assert result.color.shape == (17, 21, 3)
    for image in (result.color, result.opacity, result.depth):
        assert (image == 0).all()


def test_no_cameras_give_no_images():
    g = scene(3)
    colors, alphas, depths = rasterization(
        g.means,
        g.quats,
        g.log_scales.exp(),
        g.opacity_logits.sigmoid(),
        g.sh,
        torch.zeros(0, 4, 4),
        torch.zeros(0, 3, 3),
        8,
        6,
    )
    assert colors.shape == (0, 6, 8, 3)
    assert alphas.shape == depths.shape == (0, 6, 8, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("means", nan),
        ("means", inf),
        ("means", 3e38),
        ("quats", nan),
        ("quats", inf),
        ("quats", 0.0),
        ("log_scales", nan),
        ("log_scales", inf),
        ("log_scales", 25.0),
        ("log_scales", 60.0),
        ("log_scales", 88.0),
        ("opacity_logits", nan),
        ("opacity_logits", -inf),
        ("sh", nan),
        ("sh", inf),
        ("sh", -inf),
    ],
)
@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_a_gaussian_that_is_not_finite_is_not_drawn(name, value, mode):
    settings = RasterSettings(mode=mode)
    good = scene()
    bad = good.map(torch.clone)
    getattr(bad, name)[4] = value
    others = good.map(lambda t: torch.cat([t[:4], t[5:]]))
    result, expected = rasterize(bad, CAMERA, settings), rasterize(others, CAMERA, settings)
    assert expected.opacity.max() > 0.5
    for image in ("color", "opacity", "depth"):
        assert torch.equal(getattr(result, image), getattr(expected, image))


def test_flat_gaussians_of_no_thickness_are_drawn():
    flat = scene()
    flat.log_scales[:, 2] = -200.0  # the exponential underflows to zero
    expected = splatting.rasterize(flat, CAMERA)
    torch.testing.assert_close(
        rasterize(flat, CAMERA).color.double(), expected.color, rtol=0, atol=1e-4
    )


def test_infinite_logit_is_opaque():
    opaque = scene(1)
    opaque.means[0] = torch.tensor([0.05, 0.05, 2])  # on a pixel's centre
    opaque.opacity_logits[0] = inf
    result = rasterize(opaque, CAMERA)
    assert result.opacity.max().item() == pytest.approx(0.999, abs=1e-6)
    assert result.color.isfinite().all()


@pytest.mark.parametrize("z", [0.02, 0.5, -0.5])
def test_camera_inside_a_gaussian(z):
    inside = scene(1)
    inside.means[0] = torch.tensor([0.05, -0.02, z])
    inside.log_scales[:] = 1.0
    result, expected = rasterize(inside, CAMERA), splatting.rasterize(inside, CAMERA)
    torch.testing.assert_close(result.color.double(), expected.color, rtol=0, atol=1e-5)
    assert (result.opacity.min() > 0.1) == (z > 0)  # splatting leaves out means behind the camera


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (16, 16), (17, 15)])
def test_any_image_size(size):
    camera = replace(CAMERA, width=size[0], height=size[1], cx=size[0] / 2, cy=size[1] / 2)
    result, expected = rasterize(scene(), camera), splatting.rasterize(scene(), camera)
    assert result.color.shape == (size[1], size[0], 3)
    assert expected.opacity.max() > 0.1
    torch.testing.assert_close(result.color.double(), expected.color, rtol=0, atol=1e-4)


def test_one_gaussian_far_outside_the_image_is_culled():
    far = scene(1)
    far.means[0] = torch.tensor([1e6, 0, 1])
    assert rasterize(far, CAMERA).opacity.max() == 0


def test_undistorted_opencv_camera_is_a_pinhole():
    lens = replace(CAMERA, model="opencv", distortion=())
    assert torch.equal(rasterize(scene(), lens).color, rasterize(scene(), CAMERA).color)


@pytest.mark.parametrize(
    ("model", "distortion"), [("opencv", (0.1,)), ("opencv_fisheye", ()), ("full_opencv", (0, 0.1))]
)
def test_distorted_camera_is_refused(model, distortion):
    camera = replace(CAMERA, model=model, distortion=distortion)
    with pytest.raises(ValueError, match=rf"{model}; pass camera\.undistorted\(\)"):
        rasterize(scene(), camera)


def test_pose_that_is_not_finite_is_refused():
    camera = replace(CAMERA, c2w=torch.full((3, 4), nan))
    with pytest.raises(ValueError, match="camera's pose is"):
        rasterize(scene(), camera)


def arguments(**changes: object) -> dict[str, object]:
    g = scene(5)
    return {
        "means": g.means,
        "quats": g.quats,
        "scales": g.log_scales.exp(),
        "opacities": g.opacity_logits.sigmoid(),
        "sh": g.sh,
        "viewmats": torch.eye(4)[None],
        "Ks": CAMERA.K[None],
        "width": 8,
        "height": 6,
    } | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"means": torch.zeros(5, 2)}, r"means has shape \[5, 2\]; expected \[N, 3\]"),
        ({"quats": torch.zeros(4, 4)}, r"quats has shape \[4, 4\]; expected \[5, 4\]"),
        ({"scales": torch.zeros(5)}, r"scales has shape \[5\]; expected \[5, 3\]"),
        ({"opacities": torch.zeros(5, 1)}, r"opacities has shape \[5, 1\]; expected \[5\]"),
        ({"opacities": torch.full((5,), 1.5)}, "opacities reach 1.5; expected at most 1"),
        ({"sh": torch.zeros(5, 3)}, r"sh has shape \[5, 3\]; expected \[5, K, 3\]"),
        ({"sh": torch.zeros(5, 5, 3)}, "sh has 5 coefficients; expected 1, 4, 9 or 16"),
        ({"sh_degree": 2}, r"sh_degree is 2, which needs 9 coefficients; sh has shape \[5, 4, 3\]"),
        ({"sh": torch.zeros(5), "sh_degree": 1}, r"sh has shape \[5\]; expected \[N, K, 3\]"),
        ({"sh_degree": -1}, "sh_degree is -1"),
        ({"viewmats": torch.eye(4)}, r"viewmats has shape \[4, 4\]; expected \[C, 4, 4\]"),
        ({"viewmats": torch.zeros(1, 4, 4)}, r"viewmats\[0\] is .* last row 0 0 0 1"),
        (
            {
                "viewmats": torch.stack([torch.eye(4), torch.full((4, 4), nan)]),
                "Ks": CAMERA.K.expand(2, 3, 3),
            },
            r"viewmats\[1\] is \[\[nan",
        ),
        ({"viewmats": torch.diag(torch.tensor([1.0, 1, 0, 1]))[None]}, "has no inverse"),
        ({"Ks": torch.eye(3)[None].expand(2, 3, 3)}, r"Ks has shape \[2, 3, 3\]; expected \[1"),
        ({"Ks": -torch.eye(3)[None]}, "positive focal lengths"),
        ({"Ks": torch.full((1, 3, 3), inf)}, r"Ks\[0\] is .* expected finite numbers"),
        ({"width": 0}, "image size is 0 x 6; expected 1 to 65536 pixels a side"),
        ({"height": 65537}, "image size is 8 x 65537"),
        ({"backgrounds": torch.zeros(3)}, r"backgrounds has shape \[3\]; expected \[1, 3\]"),
        (
            {"means": torch.zeros(5, 3, device="meta")},
            "tensors are on device meta; gart works on cpu and cuda",
        ),
        (
            {"quats": torch.zeros(5, 4, device="meta")},
            "quats is on meta and means on cpu",
        ),
    ],
)
def test_wrong_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        rasterization(**arguments(**changes))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha_min", 0.0),
        ("alpha_min", nan),
        ("alpha_max", 1.0),
        ("alpha_max", 0.001),
        ("transmittance_min", 1.0),
        ("transmittance_min", -1e-3),
        ("near", 0.0),
        ("near", inf),
        ("eps2d", -0.1),
        ("bins", 48),
        ("mode", "'sharp'"),
    ],
)
def test_settings_outside_their_range_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}; expected"):
        RasterSettings(**{name: value.strip("'") if isinstance(value, str) else value})
