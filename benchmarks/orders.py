"""Orders of hits, judged in float64: what rounding explains, and what nothing does."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gart.cameras import Camera
from gart.reference import camera_rays, response, whitening
from gart.scene import Gaussians
from gart.tracing import TraceSettings, hit_order

TAU = 1e-5
"""Two peaks closer than this, relative to the farther of peak and mean, tie in float32."""
ALPHA = 1e-3
"""A response this close to alpha_min, relatively, may or may not be a hit; so a peak at `near`."""
STOP = 1e-2
"""A transmittance this close to the stop, relatively, may or may not end the ray."""
HITS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Orders:
    """The hits P pixels blended, front to back.

    Attributes:
        offsets: [P + 1] int64.
        gaussians: [offsets[-1]] integers; pixel p blended gaussians[offsets[p]:offsets[p + 1]].
    """

    offsets: Tensor
    gaussians: Tensor

    @property
    def counts(self) -> Tensor:
        """[P] hits of each pixel."""
        return self.offsets.diff()

    def pixels(self) -> Tensor:
        """[hits] the pixel of every hit."""
        places = torch.arange(len(self.counts), device=self.offsets.device)
        return places.repeat_interleave(self.counts)

    def select(self, pixels: Tensor) -> Orders:
        """The lists of some pixels, in the order given."""
        counts = self.counts[pixels]
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        shift = (self.offsets[:-1][pixels] - offsets[:-1]).repeat_interleave(counts)
        return Orders(
            offsets, self.gaussians[torch.arange(len(shift), device=shift.device) + shift]
        )

    def lists(self) -> list[list[int]]:
        """Each pixel's Gaussians."""
        flat, offsets = self.gaussians.tolist(), self.offsets.tolist()
        return [flat[a:b] for a, b in pairwise(offsets)]


def traced_orders(scene: Gaussians, camera: Camera, settings: TraceSettings) -> tuple[Orders, int]:
    """What the tracer blended in every pixel, and how many pixels took the exact pass."""
    offsets, gaussians, repaired = hit_order(scene, camera, settings)
    return Orders(offsets, gaussians), repaired


def differing_pixels(a: Orders, b: Orders) -> Tensor:
    """[P] bool: pixels whose lists are not the same."""
    differs = a.counts != b.counts
    pixel = a.pixels()
    place = torch.arange(len(pixel), device=pixel.device) - a.offsets[pixel] + b.offsets[pixel]
    inside = place < b.offsets[1:][pixel]
    changed = a.gaussians[inside] != b.gaussians[place[inside]]
    differs[pixel[inside][changed]] = True
    return differs


class Judge:
    """Peaks of one scene along one camera's rays, in float64 on the scene's device."""

    def __init__(self, scene: Gaussians, camera: Camera, settings: TraceSettings) -> None:
        self.scene = scene.map(lambda t: t.detach().double())
        self.camera = camera
        self.settings = settings
        self.whiten = whitening(self.scene.quats, self.scene.log_scales)
        origins, directions = camera_rays(camera)
        self.origins, self.directions = origins.to(scene.device), directions.to(scene.device)
        self.reach = (self.scene.means - camera.center.to(scene.device).double()).norm(dim=-1)

    def peaks(self, orders: Orders, pixels: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """tau, its tolerance and alpha (before the clamp) of every hit, each [hits] float64.

        `orders` lists all pixels of the camera, or those of `pixels`.
        """
        gaussian, ray = orders.gaussians.long(), orders.pixels()
        ray = ray if pixels is None else pixels[ray]
        parts = [
            response(
                self.whiten[g],
                self.scene.means[g],
                self.scene.opacity_logits[g],
                self.origins[r],
                self.directions[r],
            )
            for g, r in zip(gaussian.split(HITS_AT_ONCE), ray.split(HITS_AT_ONCE), strict=True)
        ]
        tau, alpha = (torch.cat(column) for column in zip(*parts, strict=True))
        return tau, TAU * torch.maximum(tau, self.reach[gaussian]), alpha

    def misordered_pixels(self, orders: Orders, pixels: Tensor | None = None) -> Tensor:
        """[P] bool: pixels in which a hit's predecessor lies beyond it by more than rounding."""
        tau, band, _ = self.peaks(orders, pixels)
        pixel = orders.pixels()
        wrong = (pixel[1:] == pixel[:-1]) & (
            tau[1:] < tau[:-1] - torch.maximum(band[1:], band[:-1])
        )
        result = torch.zeros(len(orders.counts), dtype=torch.bool, device=pixel.device)
        result[pixel[1:][wrong]] = True
        return result

    def hits(self, orders: Orders, pixels: Tensor) -> list[PixelHits]:
        """The hits of each of `pixels`, whose lists `orders` holds."""
        gaussian, ends = orders.gaussians.cpu().numpy(), orders.offsets[1:].cpu().numpy()
        columns = [gaussian, *(values.cpu().numpy() for values in self.peaks(orders, pixels))]
        return [
            PixelHits(*row) for row in zip(*(np.split(c, ends)[:-1] for c in columns), strict=True)
        ]

    def explain(self, a: Orders, b: Orders, pixels: Tensor) -> list[str]:
        """Why the lists of `pixels` differ between `a` and `b`: `difference` of each of them."""
        mine, others = (self.hits(orders.select(pixels), pixels) for orders in (a, b))
        return [difference(*pair, self.settings) for pair in zip(mine, others, strict=True)]


@dataclass(frozen=True)
class PixelHits:
    """Hits of one pixel: arrays [hits] of Gaussian, tau, its tolerance, alpha before the clamp."""

    gaussian: np.ndarray
    tau: np.ndarray
    band: np.ndarray
    alpha: np.ndarray

    def transmittances(self, settings: TraceSettings) -> np.ndarray:
        """[hits + 1] before each hit, and after the last."""
        kept = 1 - np.minimum(self.alpha, settings.alpha_max)
        return np.concatenate([[1.0], kept.cumprod()])

    def at_threshold(self, settings: TraceSettings) -> np.ndarray:
        """[hits] bool: rounding decides whether it is a hit."""
        faint = abs(self.alpha - settings.alpha_min) <= ALPHA * settings.alpha_min
        return faint | (abs(self.tau - settings.near) <= ALPHA * settings.near)

    def inversions(self) -> tuple[int, int]:
        """Pairs of hits whose float64 tau are in the other order: beyond rounding, within it."""
        ahead = np.triu(self.tau[:, None] - self.tau[None, :], 1)
        beyond = ahead > np.maximum(self.band[:, None], self.band[None, :])
        return int(beyond.sum()), int(((ahead > 0) & ~beyond).sum())


def difference(a: PixelHits, b: PixelHits, settings: TraceSettings) -> str:
    """Why two lists of one pixel differ.

    "tie": the same hits, in orders that rounding allows; "threshold": others too, at alpha_min, at
    `near`, or where rounding decides that the ray stops; "wrong": neither.
    """
    if a.inversions()[0] or b.inversions()[0]:
        return "wrong"
    alone = [np.isin(x.gaussian, y.gaussian, invert=True) for x, y in ((a, b), (b, a))]
    if not (alone[0].any() or alone[1].any()):
        return "tie"
    first = min((a, b), key=lambda hits: hits.tau[-1] if len(hits.tau) else np.inf)
    end = first.tau[-1] if len(first.tau) else np.inf
    left = first.transmittances(settings)[-1] / settings.transmittance_min
    for hits, only in zip((a, b), alone, strict=True):
        at_end = abs(hits.tau - end) <= hits.band
        if abs(left - 1) <= STOP:
            at_end |= hits.tau >= end
        if (only & ~at_end & ~hits.at_threshold(settings)).any():
            return "wrong"
    return "threshold"
