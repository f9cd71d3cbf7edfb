"""Lenses, shutters and apertures on a GPU: the CPU's images and gradients."""

from dataclasses import replace

import pytest
import torch
from oracle import OUTPUTS
from scenes import camera, orthographic, panorama, random_pose, shell

from gart.optics import RollingShutter, ThinLens
from gart.tracing import camera_rays, trace

pytestmark = pytest.mark.cuda

POSE, END = random_pose(8, 2), random_pose(9, 2)
VIEWS = {
    "panorama": lambda: panorama(96, pose=POSE),
    "panorama too small for tiles": lambda: panorama(12, pose=POSE),
    "fisheye": lambda: camera(64, 64, fov=200, pose=POSE, model="opencv_fisheye"),
    "orthographic": lambda: orthographic(pose=POSE),
    "rolling shutter": lambda: replace(camera(pose=POSE), shutter=RollingShutter(END)),
    "aperture": lambda: replace(camera(pose=POSE), aperture=ThinLens(0.1, 2.0, 5)),
    "all": lambda: replace(
        panorama(32, pose=POSE), shutter=RollingShutter(END), aperture=ThinLens(0.1, 2.0, 3)
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_images_and_gradients(name):
    view, scene, found = VIEWS[name](), shell(200, seed=3, pose=POSE), []
    for device in ("cpu", "cuda"):
        leaves = scene.map(lambda t, device=device: t.detach().to(device).requires_grad_())
        image = trace(leaves, view)
        # Not depth: of nearly transparent pixels it is 0.2 % uncertain (docs/tracer.md).
        (image.color.square().sum() + image.opacity.sum()).backward()
        gradients = {name: t.grad.cpu() for name, t in leaves.tensors().items()}
        found.append(({o: getattr(image, o).detach().cpu() for o in OUTPUTS}, gradients))
    for output in ("color", "opacity"):
        difference = (found[0][0][output] - found[1][0][output]).abs().flatten()
        assert difference.quantile(0.999) < 1e-4, output  # but for hits at alpha_min
        assert difference.max() < 0.02, output
    for tensor, wanted in found[0][1].items():
        error = (found[1][1][tensor] - wanted).norm()
        assert error < 3e-3 * wanted.norm(), tensor


@pytest.mark.parametrize("name", VIEWS)
def test_rays(name):
    for ours, theirs in zip(
        camera_rays(VIEWS[name](), "cuda"), camera_rays(VIEWS[name]()), strict=True
    ):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=2e-6)
