import nerfbaselines.metrics
import numpy as np
import pytest
import torch
from nerfbaselines.utils import image_to_srgb

from gart.cameras import Camera
from gart.capture import View
from gart.errors import UsageError
from gart.evaluation.protocol import find_protocol, parse_metrics
from gart.evaluation.views import photograph
from gart.io.images import quantise


def test_roundings_differ_as_named():
    # 0.6 of an 8-bit step above the photograph: one step off when rounded, none when truncated.
    photo = torch.full((12, 12, 3), 100, dtype=torch.uint8)
    image = torch.full((12, 12, 3), 100.6 / 255)
    three = find_protocol("3dgs").measure(image, photo, None, ["psnr"], {})
    other = find_protocol("nerfbaselines").measure(image, photo, None, ["psnr"], {})
    assert three["psnr"] == pytest.approx(20 * np.log10(255), abs=1e-4)
    assert other["psnr"] == float("inf")


@pytest.mark.parametrize("masked", [False, True])
def test_nerfbaselines_protocol_is_nerfbaselines(masked):
    rng = np.random.default_rng(5)
    photo = rng.integers(0, 256, (30, 34, 3), dtype=np.uint8)
    image = np.clip(photo / 255 + rng.normal(0, 0.05, photo.shape), -0.1, 1.1).astype(np.float32)
    mask = rng.random((30, 34)) < 0.7 if masked else None
    theirs = [image_to_srgb(t, np.uint8).astype(np.float32) / 255 for t in (image, photo)]
    if mask is not None:
        theirs = [t * mask[..., None].astype(np.float32) for t in theirs]
    ours = find_protocol("nerfbaselines").measure(
        torch.from_numpy(image),
        torch.from_numpy(photo),
        None if mask is None else torch.from_numpy(mask),
        ["psnr", "ssim"],
        {},
    )
    assert ours["psnr"] == pytest.approx(float(nerfbaselines.metrics.psnr(*theirs)), abs=1e-5)
    assert ours["ssim"] == pytest.approx(float(nerfbaselines.metrics.ssim(*theirs)), abs=1e-6)


def test_photographs_with_alpha_are_blended_as_nerfbaselines_does():
    levels = torch.arange(256, dtype=torch.uint8)
    image = torch.stack([*torch.meshgrid(levels, levels, indexing="ij")] * 2, -1)
    background = np.array([255, 51, 0], np.uint8)
    theirs = image_to_srgb(image.numpy(), np.uint8, background_color=background)
    view = View("a", Camera(torch.eye(3, 4), 9.0, 9.0, 128.0, 128.0, 256, 256), image)
    ours, _ = photograph(view, "rt", tuple((background / 255).tolist()))
    # Sums that fall on a whole level may round to either side of it.
    steps = (quantise(ours, "truncate").int() - torch.from_numpy(theirs).int()).abs()
    assert steps.max() <= 1
    assert (steps > 0).float().mean() < 0.002


def test_3dgs_protocol_leaves_masked_pixels_out_of_the_means():
    photo = torch.zeros(12, 12, 3)
    image = torch.full((12, 12, 3), 51 / 255)
    mask = torch.zeros(12, 12, dtype=torch.bool)
    mask[:, :3] = True
    image[:, 3:] = 1
    three = find_protocol("3dgs").measure(image, photo, mask, ["psnr"], {})
    other = find_protocol("nerfbaselines").measure(image, photo, mask, ["psnr"], {})
    assert three["psnr"] == pytest.approx(-20 * np.log10(0.2), abs=1e-5)
    assert other["psnr"] == pytest.approx(-20 * np.log10(0.2) + 10 * np.log10(4), abs=1e-5)


def test_descriptions_name_every_choice():
    assert find_protocol("3dgs").describe() == {
        "name": "3dgs",
        "rounding": "8 bits, nearest",
        "ssim": {"window": 11, "sigma": 1.5, "padding": "zero"},
        "lpips": {"version": "0.1", "net": "vgg", "input_range": [-1, 1]},
        "masked_pixels": "black, left out of the means",
    }
    other = find_protocol("nerfbaselines").describe()
    assert (other["rounding"], other["ssim"]["padding"]) == ("8 bits, truncate", "valid")
    assert other["lpips"]["net"] == "alex"


def test_wrong_names():
    with pytest.raises(UsageError, match=r"--protocol is 'nerf'; expected 3dgs or nerfbaselines"):
        find_protocol("nerf")
    with pytest.raises(
        UsageError, match=r"--metrics has 'lpisp'; expected some of psnr,ssim,lpips"
    ):
        parse_metrics("psnr,lpisp")
    with pytest.raises(UsageError, match=r"--metrics has ''"):
        parse_metrics("")
    with pytest.raises(UsageError, match="no metric to measure; expected some of psnr,ssim,lpips"):
        parse_metrics([])
    assert parse_metrics("psnr, lpips") == ("psnr", "lpips")
