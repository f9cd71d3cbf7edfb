"""How many additions to memory a backward pass makes: arithmetic, nothing is counted meanwhile."""

from __future__ import annotations

import math

from gart.tracing.settings import TraceSettings


def additions(
    settings: TraceSettings, coefficients: int, hits: float, pairs: float, on_gpu: bool
) -> float:
    """Atomic additions, or stores of sums where `primitive` needs none, of one backward pass.

    What is summed by primitive is added once for each of the `pairs` (Gaussian, tile) with a
    blended hit, what is summed by pixel once for each of the `hits`. Geometry is 11 parameters in
    the papers' layout and 10 moments in the default one; colour is 3 `coefficients`, or 3 sums with
    sh=center. One addition takes one float; in the default layout on a GPU it takes four (of
    compute capability 9; older ones need up to four times as many), and pairs whose hits are
    gathered in several windows (csrc/cuda/tile_gradients.cu) add more than once, so there it is a
    lower bound.
    """
    aabb = settings.lt_layout == "aabb"
    floats = 4 if on_gpu and not aabb else 1
    geometry = math.ceil((11 if aabb else 10) / floats)
    color = math.ceil((3 * coefficients if settings.sh == "ray" else 3) / floats)
    by_pixel = {"primitive": 0, "hybrid": geometry, "pixel": geometry + color}[settings.backward]
    return hits * by_pixel + pairs * (geometry + color - by_pixel)
