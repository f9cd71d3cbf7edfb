"""gart reconstructs scenes from posed photographs as 3D Gaussians by ray tracing them."""

__version__ = "0.1.0"
