import pytest
import torch

from gart.evaluation.exposure import fit_exposure
from gart.evaluation.table import Table, row_of


def test_an_affine_change_of_colours_is_undone():
    image = torch.rand(9, 11, 3, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.2
    matrix = torch.tensor([[0.8, 0.1, 0], [0, 0.9, 0.05], [0.1, 0, 0.7]])
    photograph = image @ matrix.T + torch.tensor([0.1, 0, -0.05])
    torch.testing.assert_close(fit_exposure(image, photograph), photograph)
    as_bytes = (photograph * 255).round().to(torch.uint8)
    torch.testing.assert_close(fit_exposure(image, as_bytes), photograph, atol=2e-3, rtol=0)


def test_only_pixels_that_count_are_fitted():
    image = torch.rand(9, 11, 3, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.2
    mask = torch.ones(9, 11, dtype=torch.bool)
    mask[:, :4] = False
    photograph = 0.8 * image
    photograph[~mask] = 1.0
    torch.testing.assert_close(fit_exposure(image, photograph, mask)[mask], photograph[mask])


def test_a_grey_image_stays_finite():
    found = fit_exposure(torch.full((5, 6, 3), 0.4), torch.full((5, 6, 3), 0.6))
    torch.testing.assert_close(found, torch.full((5, 6, 3), 0.6))


@pytest.mark.parametrize("exposure", [False, True])
def test_the_table_says_so(exposure):
    result = {
        "mode": "rt",
        "mean": {"psnr": 30.0},
        "gaussians": 5,
        "images": 2,
        "protocol": {"name": "3dgs"},
        "photographs": "as taken",
        "exposure": exposure,
    }
    text = Table([row_of(result, "", "scene")]).markdown()
    assert ("gart rt (e)" in text) == exposure
    assert ("were fitted to its held-out photograph" in text) == exposure
