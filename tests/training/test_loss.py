import pytest
import torch

from gart.training.loss import as_float, photometric_loss, ssim_map


def direct_ssim(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """SSIM by its definition, pixel by pixel, with zeros outside."""
    offsets = torch.arange(-5, 6, dtype=torch.float64)
    one = torch.exp(-(offsets**2) / (2 * 1.5**2))
    window = torch.outer(one, one)[..., None] / one.sum() ** 2
    px, py = (torch.nn.functional.pad(t, (0, 0, 5, 5, 5, 5)) for t in (x, y))
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            a, b = px[i : i + 11, j : j + 11], py[i : i + 11, j : j + 11]
            ma, mb = (window * a).sum((0, 1)), (window * b).sum((0, 1))
            va = (window * a * a).sum((0, 1)) - ma**2
            vb = (window * b * b).sum((0, 1)) - mb**2
            cov = (window * a * b).sum((0, 1)) - ma * mb
            out[i, j] = ((2 * ma * mb + 1e-4) * (2 * cov + 9e-4)) / (
                (ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)
            )
    return out


def images(h: int = 9, w: int = 13) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    y = torch.rand(h, w, 3, generator=g, dtype=torch.float64)
    return (y + 0.2 * torch.randn(h, w, 3, generator=g, dtype=torch.float64)), y


def test_ssim_equals_its_definition():
    x, y = images()
    torch.testing.assert_close(ssim_map(x, y), direct_ssim(x, y), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ssim_map(y, y), torch.ones_like(y))


def test_ssim_gradient_by_finite_differences():
    x, y = images(6, 8)
    weights = torch.randn(6, 8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda t: (ssim_map(t, y) * weights).sum(), (x,), eps=1e-6)


def test_loss_is_the_weighted_sum():
    x, y = images()
    l1, ssim = (x - y).abs().mean(), direct_ssim(x, y).mean()
    torch.testing.assert_close(photometric_loss(x, y, 0.2), 0.8 * l1 + 0.2 * (1 - ssim))
    torch.testing.assert_close(photometric_loss(x, y, 0.0), l1)


def test_masked_pixels_neither_count_nor_get_a_gradient():
    x, y = images()
    mask = torch.ones(9, 13, dtype=torch.bool)
    mask[2:5, 3:9] = False
    x.requires_grad_()
    loss = photometric_loss(x, y, 0.2, mask)
    loss.backward()
    assert (x.grad[~mask] == 0).all()
    assert (x.grad[mask] != 0).any()
    changed = torch.where(mask[..., None], x.detach(), 100.0)
    torch.testing.assert_close(photometric_loss(changed, y, 0.2, mask), loss.detach())
    torch.testing.assert_close(
        photometric_loss(x, y, 0.0, mask), (x - y).abs()[mask].mean(), check_dtype=False
    )
    nothing = torch.zeros_like(mask)
    assert photometric_loss(x, y, 0.2, nothing) == 0


def test_photographs_with_alpha_stand_over_the_background():
    image = torch.tensor([[[255, 0, 51, 255], [255, 0, 51, 0], [255, 0, 0, 51]]], dtype=torch.uint8)
    result = as_float(image, torch.tensor([0.0, 1.0, 0.5]))
    expected = torch.tensor([[[1, 0, 0.2], [0, 1, 0.5], [0.2, 0.8, 0.4]]])
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(as_float(image[..., :3], torch.ones(3))[0, 0], expected[0, 0])


@pytest.mark.parametrize("size", [(1, 1), (3, 40), (12, 2)])
def test_images_smaller_than_the_window(size):
    x, y = images(*size)
    torch.testing.assert_close(ssim_map(x, y), direct_ssim(x, y), rtol=1e-10, atol=1e-12)
