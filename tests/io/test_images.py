import cv2
import numpy as np
import pytest
import torch
from opencv_build import needs_exr

from gart.errors import GartError
from gart.io.images import quantise, read_image, save_depth, save_png


def test_quantise_rounds_or_truncates():
    values = torch.tensor([-1, 0, 0.4 / 255, 0.6 / 255, 0.999, 1, 2])
    assert quantise(values, "nearest").tolist() == [0, 0, 0, 1, 255, 255, 255]
    assert quantise(values, "truncate").tolist() == [0, 0, 0, 0, 254, 255, 255]


@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
def test_every_8_bit_value_survives(rounding):
    values = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(quantise(values.float() / 255, rounding), values)


def test_png_round_trip_keeps_channel_order(tmp_path):
    image = torch.randint(0, 256, (5, 7, 3), dtype=torch.uint8)
    save_png(tmp_path / "ü" / "a.png", image)
    assert torch.equal(read_image(tmp_path / "ü" / "a.png"), image)
    save_png(tmp_path / "b.png", image.float() / 255)
    assert torch.equal(read_image(tmp_path / "b.png"), image)
    rgba = torch.randint(0, 256, (5, 7, 4), dtype=torch.uint8)
    save_png(tmp_path / "rgba.png", rgba)
    assert torch.equal(read_image(tmp_path / "rgba.png"), rgba)
    red = torch.zeros(2, 2, 3)
    red[..., 0] = 1
    save_png(tmp_path / "red.png", red)
    assert cv2.imread(str(tmp_path / "red.png"))[0, 0].tolist() == [0, 0, 255]  # OpenCV's BGR


def test_reading_grey_alpha_and_16_bits(tmp_path):
    save_png(tmp_path / "grey.png", torch.full((2, 3), 0.5))
    assert read_image(tmp_path / "grey.png").tolist() == [[[128] * 3] * 3] * 2
    bgra = np.array([[[1, 2, 3, 4]]], np.uint8)
    cv2.imwrite(str(tmp_path / "rgba.png"), bgra)
    assert read_image(tmp_path / "rgba.png").tolist() == [[[3, 2, 1, 4]]]
    cv2.imwrite(str(tmp_path / "deep.png"), np.array([[0, 257, 65535, 128, 129]], np.uint16))
    assert read_image(tmp_path / "deep.png")[0, :, 0].tolist() == [0, 1, 255, 0, 1]


def test_depth_files(tmp_path):
    depth = torch.tensor([[0.0, 1.0], [2.5, 10.0]])
    save_depth(tmp_path / "d.npy", depth)
    assert np.load(tmp_path / "d.npy").tolist() == depth.tolist()
    save_depth(tmp_path / "d.png", depth)
    stored = cv2.imread(str(tmp_path / "d.png"), cv2.IMREAD_UNCHANGED)
    assert stored.dtype == np.uint16
    assert stored.tolist() == [[0, 6554], [16384, 65535]]
    save_depth(tmp_path / "empty.png", torch.zeros(2, 2))
    assert cv2.imread(str(tmp_path / "empty.png"), cv2.IMREAD_UNCHANGED).max() == 0


@needs_exr
def test_exr_depth_is_exact(tmp_path):
    depth = torch.tensor([[0.0, 1.0, 1e-7], [2.5, 12345.678, 1 / 3]])
    save_depth(tmp_path / "d.exr", depth)
    stored = cv2.imread(str(tmp_path / "d.exr"), cv2.IMREAD_UNCHANGED)
    assert np.array_equal(stored, depth.numpy())


def test_formats_that_opencv_lacks_are_named(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise cv2.error("OpenEXR codec is disabled")

    monkeypatch.setattr(cv2, "imencode", refuse)
    with pytest.raises(GartError, match=r"d.exr: this OpenCV cannot encode EXR"):
        save_depth(tmp_path / "d.exr", torch.zeros(2, 2))
    assert list(tmp_path.iterdir()) == []


def test_unreadable_images(tmp_path):
    with pytest.raises(GartError, match=r"a.png does not exist"):
        read_image(tmp_path / "a.png")
    for content in (b"", b"text"):
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(GartError, match=r"a.png cannot be decoded"):
            read_image(tmp_path / "a.png")
