import math

import nerfbaselines.metrics
import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d

from gart.errors import GartError
from gart.evaluation.metrics import psnr, ssim


def image_pair(kind, height=40, width=53):
    rng = np.random.default_rng(3)
    a = rng.random((height, width, 3), dtype=np.float32)
    if kind == "noise":
        b = np.clip(a + rng.normal(0, 0.1, a.shape), 0, 1)
    elif kind == "smooth":
        a = np.linspace(0, 1, width)[None, :, None] * np.linspace(0.2, 1, height)[:, None, None]
        a = a.repeat(3, 2)
        b = a**1.1
    elif kind == "flat":
        a, b = np.full_like(a, 0.25), np.full_like(a, 0.5)
    else:
        b = 1 - a  # negative covariance
    return a.astype(np.float32), b.astype(np.float32)


KINDS = ["noise", "smooth", "flat", "inverse"]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_nerfbaselines(kind):
    a, b = image_pair(kind)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    assert psnr(x, y) == pytest.approx(float(nerfbaselines.metrics.psnr(a, b)), abs=1e-5)
    assert ssim(x, y, "valid") == pytest.approx(float(nerfbaselines.metrics.ssim(a, b)), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_padded_ssim_is_that_of_the_3dgs_code(kind):
    # Written as the formula says: one 2D window over a zero-padded image.
    x, y = (torch.from_numpy(t).double().permute(2, 0, 1)[:, None] for t in image_pair(kind))
    taps = torch.tensor([math.exp(-((i - 5) ** 2) / (2 * 1.5**2)) for i in range(11)]).double()
    window = (taps[:, None] * taps[None, :] / taps.sum() ** 2)[None, None]

    def mean(t):
        return conv2d(t, window, padding=5)

    vx, vy = mean(x * x) - mean(x) ** 2, mean(y * y) - mean(y) ** 2
    cov = mean(x * y) - mean(x) * mean(y)
    value = (2 * mean(x) * mean(y) + 1e-4) * (2 * cov + 9e-4)
    value = value / ((mean(x) ** 2 + mean(y) ** 2 + 1e-4) * (vx + vy + 9e-4))
    a, b = (t[:, 0].permute(1, 2, 0) for t in (x, y))
    assert ssim(a, b, "zero") == pytest.approx(float(value.mean()), abs=1e-6)


def test_known_values():
    a = torch.zeros(12, 12, 3)
    assert psnr(a, a + 0.1) == pytest.approx(20)
    assert psnr(a, a) == math.inf
    assert ssim(a, a, "zero") == pytest.approx(1)
    assert ssim(a, a, "valid") == pytest.approx(1)


def test_mask_leaves_pixels_out():
    a, b = torch.zeros(30, 30, 3), torch.full((30, 30, 3), 0.1)
    mask = torch.ones(30, 30, dtype=torch.bool)
    mask[:, 20:] = False
    b[:, 20:] = 1
    assert psnr(a, b, mask) == pytest.approx(20)
    for padding in ("zero", "valid"):
        whole = ssim(a, b, padding)
        everything = torch.ones_like(mask)
        assert ssim(a, b, padding, everything) == pytest.approx(whole)
        # Windows that lie left of the masked part see a uniform pair.
        inner = torch.zeros_like(mask)
        inner[8:22, 8:14] = True
        expected = (2 * 0 * 0.1 + 1e-4) / (0.1**2 + 1e-4)
        assert ssim(a, b, padding, inner) == pytest.approx(expected, rel=1e-5)


def test_image_smaller_than_the_window():
    small = torch.zeros(10, 30, 3)
    with pytest.raises(
        GartError, match=r"SSIM needs images of at least 11 x 11 pixels; got 30 x 10"
    ):
        ssim(small, small, "valid")
    assert ssim(small, small, "zero") == pytest.approx(1)
