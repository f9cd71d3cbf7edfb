"""What nerfbaselines reads at every start: that the method `gart` exists and what it takes, and the
data set Deep Blending, which nerfbaselines lacks.

The module is the entry point `gart` of the group `nerfbaselines.specs`.
"""

from __future__ import annotations

from nerfbaselines import register

from gart.datasets.deepblending import SPEC as DEEP_BLENDING

REQUIRED_FEATURES = ("color", "points3D_xyz", "points3D_rgb")
CAMERA_MODELS = ("pinhole", "opencv", "opencv_fisheye", "full_opencv")
"""All there are: nerfbaselines' undistortion of the others would move no pixel."""
OUTPUTS = ("color", "depth", "accumulation")

register(
    {
        "id": "gart",
        "method_class": "gart.nerfbaselines.method:GartMethod",
        "backends_order": ["python"],
        "required_features": list(REQUIRED_FEATURES),
        "supported_camera_models": list(CAMERA_MODELS),
        "supported_outputs": list(OUTPUTS),
        "metadata": {
            "name": "gart",
            "description": (
                "3D Gaussians reconstructed by ray tracing, without RT cores; gradients are "
                "gathered per Gaussian."
            ),
            "paper_title": (
                "3D Gaussian Accelerated Ray Tracing: fast training through particle-based "
                "backward propagation"
            ),
            "paper_link": "https://arxiv.org/abs/2608.17298",
            "licenses": [{"name": "Apache-2.0"}],
        },
    }
)
register(DEEP_BLENDING)
