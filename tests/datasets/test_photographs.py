import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from gart.cameras import Camera
from gart.capture import View
from gart.datasets import load
from gart.datasets.photographs import orientation, shrink
from gart.errors import GartError, UsageError


def view(image, **lens):
    height, width = image.shape[:2]
    camera = Camera(torch.eye(3, 4), 30.0, 31.0, 16.5, 11.5, width, height, **lens)
    return View("a.png", camera, torch.from_numpy(image))


def test_area_average_is_the_mean_of_each_block():
    image = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    small = shrink(view(image), 4)
    blocks = image.reshape(6, 4, 8, 4, 3).mean((1, 3))
    np.testing.assert_allclose(small.image.numpy(), blocks, atol=0.51)


@pytest.mark.parametrize(
    ("downscale", "size"), [(1, (33, 25)), (2, (16, 12)), (4, (8, 6)), (100, (1, 1))]
)
def test_sizes_round_and_cameras_take_the_true_ratios(downscale, size):
    large = view(np.zeros((25, 33, 3), np.uint8), model="opencv", distortion=(0.1, 0.2, 0.3, 0.4))
    small = shrink(large, downscale)
    assert (small.camera.width, small.camera.height) == size
    assert tuple(small.image.shape) == (size[1], size[0], 3)
    points = torch.tensor([[0.1, 0.2, 2.0], [-0.3, 0.1, 1.5]])
    ratio = torch.tensor([size[0] / 33, size[1] / 25], dtype=torch.float64)
    torch.testing.assert_close(
        small.camera.project(points), large.camera.project(points) * ratio, rtol=0, atol=1e-9
    )


def test_colours_count_by_their_alpha():
    image = np.zeros((2, 4, 4), np.uint8)
    image[0, 0] = (200, 100, 50, 255)  # one opaque pixel among transparent black
    image[0, 2] = (200, 0, 0, 255)
    image[1, 3] = (0, 0, 90, 127)
    small = shrink(view(image), 2).image.numpy()
    np.testing.assert_array_equal(small[0, 0], (200, 100, 50, 64))
    weight = 127 / (255 + 127)
    np.testing.assert_allclose(small[0, 1], (200 * (1 - weight), 0, 90 * weight, 96), atol=1)


def test_downscale_is_recorded_and_applied(colmap):
    scene = colmap(lens="RADIAL", params=(30.0, 16.5, 11.5, -0.1, 0.02))
    capture = load(str(scene.write()), downscale=3)
    camera = capture.train[0].camera
    assert capture.metadata["downscale"] == 3
    assert capture.metadata["rescaled"] == 0
    assert tuple(capture.train[0].image.shape) == (8, 11, 3)
    assert (camera.fx, camera.cy) == pytest.approx((30 * 11 / 32, 11.5 * 8 / 24))
    assert camera.distortion == pytest.approx((-0.1, 0.02, 0, 0))
    with pytest.raises(UsageError, match="downscale is 0; expected a whole number of at least 1"):
        load(str(scene.folder), downscale=0)


def test_transparency_is_kept_and_other_modes_become_rgb(colmap):
    scene = colmap(count=4)
    folder = scene.write()
    rgba = np.random.default_rng(0).integers(0, 256, (24, 32, 4), dtype=np.uint8)
    Image.fromarray(rgba).save(folder / "images/IMG_000.png")
    gray = rgba[..., 0]
    Image.fromarray(gray).save(folder / "images/IMG_001.png")
    Image.fromarray(gray).convert("P").save(folder / "images/IMG_002.png", transparency=7)
    capture = load(str(folder))
    assert torch.equal(capture.test[0].image, torch.from_numpy(rgba))
    assert torch.equal(capture.train[0].image, torch.from_numpy(gray)[..., None].expand(24, 32, 3))
    assert tuple(capture.train[1].image.shape) == (24, 32, 4)
    assert torch.equal(capture.train[1].image[..., 3] == 0, torch.from_numpy(gray == 7))


def test_a_broken_photograph_is_named(colmap):
    scene = colmap(names=[f"{i}.jpg" for i in range(3)], count=3, size=(64, 48))
    folder = scene.write()
    file = folder / "images/1.jpg"
    file.write_bytes(file.read_bytes()[:-400])
    with pytest.raises(GartError, match=r"photograph .*images/1\.jpg cannot be read \(.*truncated"):
        load(str(folder))
    file.write_bytes(b"no image at all")
    with pytest.raises(GartError, match=r"photograph .*images/1\.jpg cannot be read"):
        load(str(folder))


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_become_eight(colmap, suffix, channels):
    scene = colmap(names=["0.png", f"1.{suffix}"], count=2)
    folder = scene.write()
    shape = (24, 32, channels)
    deep = np.random.default_rng(0).integers(0, 65536, shape, dtype=np.uint16)
    cv2.imwrite(str(folder / f"images/1.{suffix}"), deep[..., ::-1])
    image = load(str(folder)).train[0].image.numpy()
    np.testing.assert_array_equal(image, np.broadcast_to(deep >> 8, (24, 32, 3)))


def test_float_images_are_refused_by_name(colmap):
    scene = colmap(names=["0.png", "1.tif"], count=2)
    folder = scene.write()
    Image.fromarray(np.zeros((24, 32), np.float32)).save(folder / "images/1.tif")
    with pytest.raises(GartError, match=r"1\.tif has pixels of mode F; convert it to 8 or 16 bits"):
        load(str(folder))


def test_cmyk_becomes_rgb(colmap):
    scene = colmap(names=["0.png", "1.jpg"], count=2)
    folder = scene.write()
    flat = Image.new("CMYK", (32, 24), (0, 255, 255, 0))  # red
    flat.save(folder / "images/1.jpg", quality=100)
    image = load(str(folder)).train[0].image.numpy().astype(int)
    np.testing.assert_allclose(image, np.broadcast_to((255, 0, 0), image.shape), atol=3)


def save_turned(path, image):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a clockwise quarter turn
    Image.fromarray(image).save(path, exif=exif)


def test_exif_rotation_is_ignored_as_colmap_ignores_it(colmap):
    scene = colmap(names=["0.png", "1.png"], count=2)
    folder = scene.write()
    save_turned(folder / "images/1.png", scene.pixels["1.png"])
    image = load(str(folder)).train[0].image.numpy()
    np.testing.assert_array_equal(image, scene.pixels["1.png"])


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_exif_rotation_is_applied_where_only_then_the_camera_fits(colmap, suffix):
    scene = colmap(names=["0.png", f"1.{suffix}"], count=2)
    folder = scene.write()
    upright = scene.pixels[scene.names[1]]
    save_turned(folder / "images" / scene.names[1], np.ascontiguousarray(np.rot90(upright)))
    image = load(str(folder)).train[0].image.numpy()
    np.testing.assert_array_equal(image, upright)


def test_photographs_of_mixed_sizes_scale_their_cameras(colmap):
    scene = colmap(count=3)
    folder = scene.write()
    for name, size in (("IMG_001.png", (64, 48)), ("IMG_002.png", (16, 12))):
        Image.new("RGB", size).save(folder / "images" / name)
    capture = load(str(folder))
    found = [(v.camera.width, v.camera.height, v.camera.fx) for v in capture.train]
    assert found == [(64, 48, 60.0), (16, 12, 15.0)]
    assert capture.metadata["rescaled"] == 2


def test_damaged_exif_is_no_rotation(colmap):
    folder = colmap().write()
    image = Image.fromarray(np.zeros((24, 32, 3), np.uint8))
    image.save(folder / "images/IMG_003.png", exif=b"Exif\0\0MM\xff*\0\0\0\x08")
    assert orientation(Image.open(folder / "images/IMG_003.png")) == 1
    assert len(load(str(folder)).train) == 8
