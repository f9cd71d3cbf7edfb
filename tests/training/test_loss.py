import pytest
import torch
from training_oracle import as_photograph, photometric, ssim_map

from gart.rendering import Rendering
from gart.training.journal import FaultError, Journal
from gart.training.loss import photometric_loss


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


BACKGROUND = torch.tensor([0.2, 0.0, 0.9])


def images(h: int = 21, w: int = 17, channels: int = 3, seed: int = 1):
    """A rendering in float64, and a photograph like it."""
    g = torch.Generator().manual_seed(seed)
    photograph = torch.randint(0, 256, (h, w, channels), generator=g, dtype=torch.uint8)
    noise = torch.randn(h, w, 3, generator=g, dtype=torch.float64)
    color = photograph[..., :3].double() / 255 + 0.2 * noise
    opacity = torch.rand(h, w, generator=g, dtype=torch.float64)
    return color - (1 - opacity[..., None]) * BACKGROUND.double(), opacity, photograph


def native(color, opacity, photograph, weight=0.2, mask=None, through_opacity=True):
    """Loss, squared error and gradients."""
    journal = Journal("cpu")
    line = journal.line()
    rendering = Rendering(color.float(), opacity.float(), opacity.float())
    by_color, by_opacity = photometric_loss(
        rendering,
        as_photograph(photograph, mask),
        BACKGROUND,
        weight,
        journal,
        1,
        through_opacity=through_opacity,
    )
    return float(line[0]), float(line[1]), by_color, by_opacity


def expected(color, opacity, photograph, weight=0.2, mask=None):
    leaves = color.clone().requires_grad_(), opacity.clone().requires_grad_()
    loss, error = photometric(*leaves, photograph, BACKGROUND.double(), weight, mask)
    loss.backward()
    return float(loss.detach()), float(error.detach()), *(leaf.grad for leaf in leaves)


def assert_agree(found, wanted):
    assert found[:2] == pytest.approx(wanted[:2], rel=1e-5)
    for a, b in zip(found[2:], wanted[2:], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))


def test_the_oracle_has_ssim_by_its_definition():
    color, _, photograph = images(9, 13)
    target = photograph.double() / 255
    torch.testing.assert_close(ssim_map(color, target), direct_ssim(color, target))


@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_loss_and_gradients(weight, channels, masked):
    color, opacity, photograph = images(channels=channels)
    mask = None
    if masked:
        mask = torch.rand(21, 17, generator=torch.Generator().manual_seed(2)) < 0.7
        mask[3:15, 4:9] = False
    arguments = (color, opacity, photograph, weight, mask)
    assert_agree(native(*arguments), expected(*arguments))


@pytest.mark.parametrize("size", [(1, 1), (3, 40), (12, 2), (70, 5), (140, 3)])
def test_sizes_smaller_than_the_window_and_larger_than_a_band(size):
    assert_agree(native(*images(*size)), expected(*images(*size)))


def test_threads_do_not_matter():
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(native(*images(200, 9)))
    finally:
        torch.set_num_threads(threads)
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    assert torch.equal(results[0][2], results[1][2])
    assert torch.equal(results[0][3], results[1][3])


def test_masked_pixels_neither_count_nor_get_a_gradient():
    color, opacity, photograph = images()
    mask = torch.ones(21, 17, dtype=torch.bool)
    mask[2:5, 3:9] = False
    found = native(color, opacity, photograph, mask=mask)
    assert (found[2][~mask] == 0).all()
    assert (found[3][~mask] == 0).all()
    assert (found[2][mask] != 0).any()
    changed = torch.where(mask[..., None], color, torch.nan)
    again = native(changed, opacity, photograph, mask=mask)
    assert again[:2] == found[:2]
    assert torch.equal(again[2], found[2])
    nothing = native(color, opacity, photograph, mask=torch.zeros_like(mask))
    assert nothing[:2] == (0, 0)
    assert not nothing[2].any()


def test_equal_images_have_no_loss_and_no_gradient():
    _, _, photograph = images()
    opaque = torch.ones(21, 17)
    found = native(photograph.float() * (1 / 255), opaque, photograph)
    assert found[0] == pytest.approx(0, abs=1e-6)
    assert found[1] == 0
    assert found[2].abs().max() < 1e-6


def test_what_is_seen_is_clamped_in_the_error_alone():
    photograph = torch.zeros(4, 4, 3, dtype=torch.uint8)
    loss, error, *_ = native(torch.full((4, 4, 3), 3.0), torch.ones(4, 4), photograph, 0.0)
    assert (loss, error) == (3, 1)


def test_over_black_opacity_can_be_left_out():
    found = native(*images(), through_opacity=False)
    assert found[3] is None
    assert torch.equal(found[2], native(*images())[2])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_a_fault(value):
    color, opacity, photograph = images()
    color[4, 5, 1] = value
    journal = Journal("cpu")
    rendering = Rendering(color.float(), opacity.float(), opacity.float())
    photometric_loss(rendering, as_photograph(photograph), BACKGROUND, 0.2, journal, 7)
    assert journal.fault.tolist() == [7, 1]
    journal.close(7, "b.png", 3)
    with pytest.raises(FaultError, match=r"^the loss became .* in iteration 7 \(view b.png\)"):
        journal.read()


def test_inputs_that_do_not_fit_are_named():
    color, opacity, photograph = images()
    with pytest.raises(ValueError, match=r"photograph has shape \[21, 16, 3\]"):
        native(color, opacity, photograph[:, :16])
    with pytest.raises(ValueError, match=r"photograph has dtype .* expected uint8"):
        native(color, opacity, photograph.float())
