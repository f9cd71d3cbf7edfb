"""Evaluation protocols: how images are rounded, windowed and compared, so that numbers can be set
beside others' numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gart.errors import UsageError
from gart.evaluation.lpips import Lpips, Net
from gart.evaluation.metrics import SIGMA, WINDOW, Padding, psnr, ssim
from gart.io.images import Rounding, quantise

METRICS = ("psnr", "ssim", "lpips")
LPIPS_NETS: tuple[Net, ...] = ("alex", "vgg")


@dataclass(frozen=True)
class Protocol:
    """A named way to compare images.

    Attributes:
        name: what `--protocol` takes.
        rounding: how both images become 8 bits before anything is measured.
        ssim_padding: which windows SSIM takes (`gart.evaluation.metrics.ssim`).
        lpips_net: the network that `lpips` means; both networks are reported.
        lpips_3dgs: report VGG's distance of images fed as [0, 1] too, which is what the tables of
            3DGS and of papers that use its scripts call LPIPS.
        masked: `mean`: masked pixels are black in both images and left out of the means;
            `black`: they are black in both and counted.
    """

    name: str
    rounding: Rounding
    ssim_padding: Padding
    lpips_net: Net
    lpips_3dgs: bool
    masked: Literal["mean", "black"]

    def describe(self) -> dict[str, Any]:
        """What eval.json says about it."""
        return {
            "name": self.name,
            "rounding": f"8 bits, {self.rounding}",
            "ssim": {"window": WINDOW, "sigma": SIGMA, "padding": self.ssim_padding},
            "lpips": {"version": "0.1", "net": self.lpips_net, "input_range": [-1, 1]},
            "masked_pixels": {
                "mean": "black, left out of the means",
                "black": "black, counted",
            }[self.masked],
        }

    def measure(
        self,
        image: Tensor,
        photo: Tensor,
        mask: Tensor | None,
        metrics: Iterable[str],
        networks: Mapping[Net, Lpips],
    ) -> dict[str, float | None]:
        """Metrics of a rendered `image` against `photo`.

        Args:
            image: [H, W, 3], float in [0, 1].
            photo: [H, W, 3], float in [0, 1] or uint8, which is taken as it is.
            mask: [H, W] bool, true where pixels count, or None.
            metrics: some of `METRICS`.
            networks: LPIPS networks; a value is None where its network is absent.
        """
        image, photo = (
            (t if t.dtype == torch.uint8 else quantise(t, self.rounding)).float() / 255
            for t in (image, photo)
        )
        counted = None
        if mask is not None:
            image, photo = (t * mask[..., None] for t in (image, photo))
            counted = mask if self.masked == "mean" else None
        values: dict[str, float | None] = {}
        if "psnr" in metrics:
            values["psnr"] = psnr(image, photo, counted)
        if "ssim" in metrics:
            values["ssim"] = ssim(image, photo, self.ssim_padding, counted)
        if "lpips" in metrics:
            by_net = {
                net: networks[net](image, photo) if net in networks else None for net in LPIPS_NETS
            }
            values["lpips"] = by_net[self.lpips_net]
            values |= {f"lpips_{net}": value for net, value in by_net.items()}
            if self.lpips_3dgs:
                vgg = networks.get("vgg")
                values["lpips_3dgs"] = None if vgg is None else vgg(image, photo, unscaled=True)
        return values


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("3dgs", "nearest", "zero", "vgg", True, "mean"),
        Protocol("nerfbaselines", "truncate", "valid", "alex", False, "black"),
    )
}


def find_protocol(name: str) -> Protocol:
    """The protocol called `name`.

    Raises:
        UsageError: there is none.
    """
    if name not in PROTOCOLS:
        raise UsageError(f"--protocol is {name!r}; expected {' or '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def parse_metrics(metrics: str | Iterable[str]) -> tuple[str, ...]:
    """Names of metrics, from a comma-separated list or an iterable.

    Raises:
        UsageError: an unknown name, or none.
    """
    names = metrics.split(",") if isinstance(metrics, str) else list(metrics)
    names = [name.strip() for name in names]
    if not names:
        raise UsageError(f"there is no metric to measure; expected some of {','.join(METRICS)}")
    if unknown := [name for name in names if name not in METRICS]:
        raise UsageError(f"--metrics has {unknown[0]!r}; expected some of {','.join(METRICS)}")
    return tuple(names)
