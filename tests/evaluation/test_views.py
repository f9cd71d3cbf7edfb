from dataclasses import replace

import pytest
import torch

from gart.capture import View
from gart.errors import GartError, UsageError
from gart.evaluation.views import photograph, render_image, render_view

OPENCV = (-0.25, 0.06, 0.004, -0.003)


def pattern(x, y):
    """A smooth image of the plane z = 1, RGB in [0, 1]."""
    return torch.stack(
        [0.5 + 0.4 * torch.sin(6 * x), 0.5 + 0.4 * torch.cos(5 * y), x * y + 0.5], -1
    )


def taken(camera):
    """What `camera` sees of the pattern, and where it sees."""
    x, y, _ = camera.directions().unbind(-1)
    return pattern(x, y).nan_to_num(0.0)


def test_modes_reach_their_renderer(gaussians, camera, rendered):
    render_view(gaussians, camera, "rt")
    render_view(gaussians, camera, "tilegs")
    assert [mode for mode, _ in rendered] == ["rt", "tilegs"]
    with pytest.raises(UsageError, match=r"--mode is 'raster'; expected rt or tilegs"):
        render_view(gaussians, camera, "raster")


def test_tilegs_takes_the_undistorted_camera(gaussians, camera, rendered):
    distorted = replace(camera, model="opencv", distortion=OPENCV)
    render_view(gaussians, distorted, "rt")
    render_view(gaussians, distorted, "tilegs")
    assert [c.model for _, c in rendered] == ["opencv", "pinhole"]
    assert rendered[1][1].lens == camera.lens
    fisheye = replace(camera, model="opencv_fisheye")
    with pytest.raises(GartError, match=r"tilegs renders pinhole.*opencv_fisheye; use --mode rt"):
        render_view(gaussians, fisheye, "tilegs")


def test_background_shows_where_nothing_is(gaussians, camera, rendered):
    image = render_image(gaussians, camera, background=(0.0, 0.5, 1.0))
    assert image[3, 4].tolist() == [0.25, 0.25, 0.5]


def test_photograph_over_background(camera):
    image = torch.zeros(40, 50, 4, dtype=torch.uint8)
    image[..., 0] = 255
    image[0, 0] = torch.tensor([10, 20, 30, 255])
    image[..., 1, 3] = 51
    photo, mask = photograph(View("a", camera, image), "rt", (0.0, 1.0, 0.5))
    assert mask is None
    assert torch.allclose(photo[0, 0] * 255, torch.tensor([10.0, 20, 30]))
    assert torch.allclose(photo[5, 1], torch.tensor([0.2, 0.8, 0.4]))


def test_pinhole_photographs_stay_as_they_are(camera):
    image = torch.randint(0, 256, (40, 50, 3), dtype=torch.uint8)
    mask = torch.rand(40, 50) > 0.5
    for mode in ("rt", "tilegs"):
        photo, seen = photograph(View("a", camera, image, mask), mode)
        assert photo is image
        assert seen is mask


@pytest.mark.parametrize(
    ("model", "distortion", "least"),
    [
        ("opencv", OPENCV, 1.0),  # a barrel: its photograph has more than the pinhole camera sees
        ("opencv", (0.2, 0.05, 0.004, -0.003), 0.7),
        ("full_opencv", (0.2, 0.05, 0.003, 0.002, 0.01, 0.1, 0.02, 0.0), 0.7),
    ],
)
def test_undistorted_photograph_is_what_the_pinhole_camera_sees(camera, model, distortion, least):
    camera = camera.resized(200, 160)
    distorted = replace(camera, model=model, distortion=distortion)
    image = (taken(distorted) * 255).round().to(torch.uint8)
    photo, seen = photograph(View("a", distorted, image), "tilegs")
    assert photo.dtype == torch.uint8
    error = (photo.float() / 255 - taken(camera)).abs().amax(-1)
    assert float(error[seen].max()) < 0.01
    unlike = (image.float() / 255 - taken(camera)).abs()
    assert float(unlike.max()) > 0.05  # else nothing was tested
    share = float(seen.float().mean())
    assert share == 1 if least == 1 else least < share < 1
    assert not photo[~seen].any()


def test_pixels_beyond_the_fold_of_a_lens_are_not_seen(camera):
    # r (1 - 0.5 r^2) turns at r = sqrt(2/3); further out the polynomial comes back into the image.
    folded = replace(camera, fx=25.0, fy=25.0, model="opencv", distortion=(-0.5,))
    image = torch.full((40, 50, 3), 200, dtype=torch.uint8)
    _, seen = photograph(View("a", folded, image), "tilegs")
    x, y, _ = folded.undistorted().directions().unbind(-1)
    radius = torch.hypot(x, y)
    assert seen[radius < 0.8].all()
    assert not seen[radius > (2 / 3) ** 0.5].any()
    _, has_ray = photograph(View("a", folded, image), "rt")
    assert torch.equal(has_ray, folded.directions().isfinite().all(-1))
    assert not has_ray.all()


def test_masks_are_undistorted_too(camera):
    distorted = replace(camera, model="opencv", distortion=OPENCV)
    image = torch.zeros(40, 50, 3, dtype=torch.uint8)
    x = distorted.directions()[..., 0]
    _, everywhere = photograph(View("a", distorted, image), "tilegs")
    _, seen = photograph(View("a", distorted, image, x < 0), "tilegs")
    wanted = camera.directions()[..., 0]
    assert not seen[wanted > 0].any()
    inner = everywhere & (wanted < -1.5 / camera.fx)
    assert seen[inner].all()
    _, traced = photograph(View("a", distorted, image, x < 0), "rt")
    assert torch.equal(traced, x < 0)
