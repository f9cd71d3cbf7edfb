import pytest
import torch

from gart.capture import View
from gart.training.photographs import Photograph


def taken(camera, image, mask=None):
    return Photograph.of(View("a", camera, image, mask), "cpu")


def test_half_a_photograph_is_means_of_four_pixels_seen_along_the_same_rays(camera_at):
    camera = camera_at(0.4, size=(7, 5))
    image = torch.randint(0, 256, (5, 7, 3), generator=torch.Generator().manual_seed(0))
    half = taken(camera, image.to(torch.uint8)).halved()
    assert (half.camera.width, half.camera.height, half.counted) == (3, 2, 6)
    assert half.image.shape == (2, 3, 3)
    expected = image[2:4, 4:6].float().mean((0, 1)).round()
    torch.testing.assert_close(half.image[1, 2].float(), expected, rtol=0, atol=0)
    # A pixel's centre is the corner that its four share.
    rays, whole = half.camera.directions(), camera.directions()
    corner = whole[2:4, 4:6].mean((0, 1))
    torch.testing.assert_close(rays[1, 2], corner, rtol=0, atol=1e-12)
    assert half.mask.numel() == 0


def test_half_a_photograph_weighs_colours_by_their_alpha(camera_at):
    image = torch.zeros(2, 2, 4, dtype=torch.uint8)
    image[0, 0] = torch.tensor([200, 100, 40, 255])
    image[0, 1] = torch.tensor([10, 10, 10, 51])
    image[1, 1] = torch.tensor([255, 255, 255, 0])
    half = taken(camera_at(0, size=(2, 2)), image).halved()
    # (200 * 255 + 10 * 51) / 306 and so on; alpha (255 + 51) / 4
    assert half.image[0, 0].tolist() == [168, 85, 35, 76]


def test_half_a_pixel_counts_where_all_four_do(camera_at):
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[0, 3] = False
    image = torch.zeros(4, 6, 3, dtype=torch.uint8)
    half = taken(camera_at(0, size=(6, 4)), image, mask).halved()
    assert half.mask.tolist() == [[1, 0, 1], [1, 1, 1]]
    assert half.counted == 5


@pytest.mark.parametrize("model", ["pinhole", "opencv_fisheye"])
def test_a_photograph_has_its_lens_at_half_the_size(camera_at, model):
    camera = camera_at(0, size=(8, 6), model=model)
    half = taken(camera, torch.zeros(6, 8, 3, dtype=torch.uint8)).halved().camera
    assert half.model == model
    assert (half.fx, half.cx, half.cy) == (camera.fx / 2, camera.cx / 2, camera.cy / 2)
