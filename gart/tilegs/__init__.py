"""Splatting: Gaussians projected to the image, sorted per tile and blended, as gsplat 1.5.3."""

from gart.tilegs.rasterizer import rasterization, rasterize
from gart.tilegs.settings import RasterSettings

__all__ = ["RasterSettings", "rasterization", "rasterize"]
