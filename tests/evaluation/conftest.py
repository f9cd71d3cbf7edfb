import pytest
import torch

import gart.evaluation.views
from gart.cameras import Camera
from gart.rendering import Rendering
from gart.scene import Gaussians


@pytest.fixture
def gaussians():
    shapes = [(2, 3), (2, 4), (2, 3), (2,), (2, 1, 3)]
    return Gaussians(*(torch.zeros(shape) for shape in shapes))


@pytest.fixture
def camera():
    return Camera(torch.eye(3, 4), 40.0, 42.0, 25.0, 19.0, 50, 40)


@pytest.fixture
def rendered(monkeypatch):
    """Both renderers answer half-covered red, and note (mode, camera) of their calls."""
    calls = []

    def renderer(mode):
        def render(gaussians, camera, settings):
            calls.append((mode, camera))
            color = torch.zeros(camera.height, camera.width, 3)
            color[..., 0] = 0.25
            half = torch.full(color.shape[:2], 0.5)
            return Rendering(color, half, half * 6)

        return render

    monkeypatch.setattr(gart.evaluation.views, "trace", renderer("rt"))
    monkeypatch.setattr(gart.evaluation.views, "rasterize", renderer("tilegs"))
    return calls
