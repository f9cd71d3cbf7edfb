"""Rendering views, measuring them against photographs, writing them to files."""

from gart.evaluation.evaluate import evaluate
from gart.evaluation.lpips import Lpips
from gart.evaluation.metrics import psnr, ssim
from gart.evaluation.plan import plan_rendering
from gart.evaluation.render import render_views
from gart.evaluation.views import render_image, render_view

__all__ = [
    "Lpips",
    "evaluate",
    "plan_rendering",
    "psnr",
    "render_image",
    "render_view",
    "render_views",
    "ssim",
]
