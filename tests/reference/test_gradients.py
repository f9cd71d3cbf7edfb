"""The oracle's autograd gradients against central differences."""

import pytest
import torch
from scenes import camera, random_gaussians, random_pose

from gart.reference import render, trace_rays
from gart.reference.tracer import camera_rays
from gart.scene import Gaussians


@pytest.mark.parametrize("sh", ["ray", "center", "linear"])
def test_gradients_equal_finite_differences(sh):
    pose = random_pose(4, distance=3)
    view = camera(4, 3, pose=pose)
    scene = random_gaussians(6, seed=2, degree=3, scales=(0.5, 1.5), pose=pose)
    parameters = [t.double().requires_grad_() for t in scene.tensors().values()]
    weights = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def losses(*tensors):
        image = render(Gaussians(*tensors), view, sh=sh)
        color = (weights[:3].movedim(0, -1) * image.color).sum()
        return color, (weights[3] * image.opacity).sum(), (weights[4] * image.depth).sum()

    assert len(trace_rays(scene, *camera_rays(view)).order[0]) >= 4
    assert torch.autograd.gradcheck(losses, parameters, eps=1e-6, atol=1e-7, rtol=1e-5)
