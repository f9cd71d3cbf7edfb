"""What a scene takes."""

import pytest
import torch
from torch import Tensor

from gart.scene import Gaussians

NAMES = ["means", "quats", "log_scales", "opacity_logits", "sh"]


def shaped(**other: tuple[int, ...]) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "means": (5, 3),
        "quats": (5, 4),
        "log_scales": (5, 3),
        "opacity_logits": (5,),
        "sh": (5, 4, 3),
    }
    return {name: torch.zeros(shape) for name, shape in (shapes | other).items()}


def test_tensors_are_in_the_order_of_files_and_kernels() -> None:
    given = shaped()
    found = Gaussians(**given).tensors()
    assert list(found) == NAMES
    assert all(found[name] is given[name] for name in NAMES)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"quats": (4, 4)}, r"quats has shape \[4, 4\]; expected \[5, 4\]"),
        ({"opacity_logits": (5, 1)}, r"opacity_logits has shape \[5, 1\]; expected \[5\]"),
        ({"sh": (5, 12)}, r"sh has shape \[5, 12\]; expected \[5, 'K', 3\]"),
        ({"sh": (4, 4, 3)}, r"sh has shape \[4, 4, 3\]; expected \[5, 'K', 3\]"),
        ({"sh": (5, 7, 3)}, "sh has 7 coefficients; expected 1, 4, 9 or 16"),
        ({"means": ()}, r"means has shape \[\]; expected \[0, 3\]"),
    ],
)
def test_a_wrong_shape_is_named(other: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Gaussians(**shaped(**other))
