import math

import pytest
import torch
from oracle import assert_images_agree
from scenes import camera, random_gaussians, random_pose

from gart.cameras import Camera, has_ray, panorama_intrinsics
from gart.lenses import FISHEYES, PARAMETERS, distort, undistort

LENSES = {
    "pinhole": (),
    "opencv": (-0.15, 0.04, 0.003, -0.002),
    "full_opencv": (0.2, -0.1, 0.003, -0.002, 0.02, 0.3, -0.04, 0.01),
    "fov": (0.9,),
    "opencv_fisheye": (0.04, -0.01, 0.004, -0.001),
    "thin_prism_fisheye": (0.04, -0.01, 0.003, -0.002, 0.004, -0.001, 0.005, -0.004),
    "equirectangular": (),
    "orthographic": (),
}


def grid(reach):
    steps = torch.linspace(-reach, reach, 41, dtype=torch.float64)
    return torch.meshgrid(steps, steps, indexing="ij")


@pytest.mark.parametrize("model", PARAMETERS)
def test_undistort_inverts_distort(model):
    reach = 1.2 if model in FISHEYES else 0.7  # 97 degrees off axis, and 45
    x, y = grid(reach)
    u, v = distort(model, LENSES[model], x, y)
    if PARAMETERS[model]:
        assert (u - x).abs().max() > 0.01
    back_x, back_y = undistort(model, LENSES[model], u, v)
    torch.testing.assert_close((back_x, back_y), (x, y), rtol=0, atol=1e-9)


@pytest.mark.parametrize("model", PARAMETERS)
def test_a_lens_without_distortion_is_ideal(model):
    x, y = grid(1.0)
    zeros = (0.0,) * len(PARAMETERS[model])
    for image in (distort(model, zeros, x, y), undistort(model, zeros, x, y)):
        torch.testing.assert_close(image, (x, y), rtol=0, atol=1e-12)


def test_models_agree_where_they_are_the_same_lens():
    x, y = grid(0.7)
    k1, k2, p1, p2 = LENSES["opencv"]
    torch.testing.assert_close(
        distort("opencv", (k1, k2, p1, p2), x, y),
        distort("full_opencv", (k1, k2, p1, p2, 0, 0, 0, 0), x, y),
    )
    k = LENSES["opencv_fisheye"]
    torch.testing.assert_close(
        distort("opencv_fisheye", k, x, y),
        distort("thin_prism_fisheye", (*k[:2], 0, 0, *k[2:], 0, 0), x, y),
    )


def test_beyond_a_lens_there_is_nothing():
    one = torch.ones(1, dtype=torch.float64)
    # r (1 - r^2 / 3) turns at r = 1, where it is 2/3; radius 2 of the image is beyond.
    for model, zeros in (("opencv", 3), ("opencv_fisheye", 3), ("thin_prism_fisheye", 7)):
        x, y = undistort(model, (-1 / 3, *[0.0] * zeros), 2 * one, 0 * one)
        assert x.isnan().all()
        assert y.isnan().all()
    # A field-of-view lens images 90 degrees off axis at pi / (2 omega).
    edge = math.pi / 2 / 0.9
    assert undistort("fov", (0.9,), 1.001 * edge * one, 0 * one)[0].isnan().all()
    assert undistort("fov", (0.9,), 0.999 * edge * one, 0 * one)[0].isfinite().all()


def test_the_field_of_view_lens_is_smooth_at_its_middle():
    x = torch.tensor([0.0, 1e-12, 1e-9, 1e-6], dtype=torch.float64)
    slope = 2 * math.tan(0.45) / 0.9
    u, _ = distort("fov", (0.9,), x, torch.zeros_like(x))
    torch.testing.assert_close(u, slope * x, rtol=1e-10, atol=0)
    back, _ = undistort("fov", (0.9,), u, torch.zeros_like(x))
    torch.testing.assert_close(back, x, rtol=1e-10, atol=0)


@pytest.mark.parametrize("model", PARAMETERS)
def test_pixels_project_back_to_themselves(model):
    width, height = 64, 48
    middle = (width / 2, height / 2)
    focal = (panorama_intrinsics(width, height) if model == "equirectangular" else (40.0, 42.0))[:2]
    view = Camera(random_pose(2, 3), *focal, *middle, width, height, model, LENSES[model])
    points = view.origins() + 2.5 * view.directions()
    world = points @ view.c2w[:, :3].T.double() + view.center.double()
    x, y = torch.arange(width) + 0.5, torch.arange(height) + 0.5
    pixels = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).double()
    seen = points.isfinite().all(-1)
    assert seen.double().mean() > 0.8
    torch.testing.assert_close(view.project(world)[seen], pixels[seen], rtol=0, atol=1e-4)


def test_a_panorama_is_longitude_and_latitude():
    view = Camera(torch.eye(3, 4), *panorama_intrinsics(200, 100), 200, 100, "equirectangular")
    for point, pixel in (
        ((0, 0, 5), (100, 50)),  # ahead, in the middle
        ((3, 0, 0), (150, 50)),  # to the right
        ((-1, 0, -1), (25, 50)),  # behind to the left
        ((0, 2, 2), (100, 75)),  # below
        ((0, -4, 0), (100, 0)),  # straight up
        ((0, 0, -1), (200, 50)),  # behind: the seam
    ):
        got = view.project(torch.tensor(point, dtype=torch.float32)).tolist()
        assert got == pytest.approx(pixel, abs=1e-12)
    lengths = view.directions().norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=0, atol=1e-15)


def test_a_panorama_ends_at_the_seam_and_the_poles():
    fx, fy, *_ = panorama_intrinsics(200, 100)
    wide = Camera(torch.eye(3, 4), fx, fy, 110, 55, 220, 110, "equirectangular")
    seen = wide.directions().isfinite().all(-1)
    assert torch.equal(seen, has_ray(wide.lens))
    rows, columns = seen.any(1).nonzero()[:, 0], seen.any(0).nonzero()[:, 0]
    assert (columns[0], columns[-1], rows[0], rows[-1]) == (10, 209, 5, 104)
    assert seen[5:105, 10:210].all()


def test_parallel_rays_start_on_the_plane_of_the_camera():
    view = Camera(torch.eye(3, 4), 10, 20, 4, 3, 8, 6, "orthographic")
    assert torch.equal(view.directions(), torch.tensor([0, 0, 1.0]).double().expand(6, 8, 3))
    assert view.origins()[0, 0].tolist() == [-0.35, -0.125, 0]
    assert view.project(torch.tensor([0.1, 0.1, 7.0])).tolist() == pytest.approx([5, 5], abs=1e-6)
    assert view.project(torch.tensor([0.1, 0.1, -7.0])).isnan().all()


@pytest.mark.parametrize("model", ["fov", "thin_prism_fisheye"])
def test_the_tracer_follows_every_lens(model):
    view = camera(41, 29, fov=70, model=model, distortion=LENSES[model])
    assert_images_agree(random_gaussians(40), view)
