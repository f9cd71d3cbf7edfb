"""Published results, to set beside one's own: those of the 3DGART paper.

Facts as printed there (arXiv 2608.17298): means over the scenes of a data set, 30,000 iterations on
one RTX 4090, loading of images not counted in the time. Its LPIPS is 3DGS's: VGG, images fed as
[0, 1].
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "arXiv 2608.17298"
GPU = "RTX 4090"


class Published(NamedTuple):
    """One row: PSNR in dB, the Gaussians' number, and the time of training in seconds."""

    dataset: str
    scenes: str
    method: str
    psnr: float
    ssim: float
    lpips_3dgs: float
    seconds: int
    gaussians: int


PUBLISHED = (
    Published("mipnerf360", "mean of 9", "3DGART 1M", 27.31, 0.805, 0.239, 755, 1_000_000),
    Published("mipnerf360", "mean of 9", "3DGART 2M", 27.51, 0.820, 0.211, 992, 2_000_000),
    Published("mipnerf360", "mean of 9", "3DGRT", 27.11, 0.809, 0.214, 3741, 4_190_000),
    Published("mipnerf360", "mean of 9", "3DGS", 27.35, 0.814, 0.216, 1219, 3_310_000),
    Published(
        "tanksandtemples", "mean of train, truck", "3DGART 1M", 23.20, 0.852, 0.175, 474, 1_000_000
    ),
    Published(
        "deepblending",
        "mean of drjohnson, playroom",
        "3DGART 1M",
        30.20,
        0.913,
        0.242,
        786,
        1_000_000,
    ),
)
