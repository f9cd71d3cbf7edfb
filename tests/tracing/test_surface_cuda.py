"""Surfaces on a GPU against the oracle."""

import pytest
from oracle import Limits
from ray_oracle import random_rays
from scenes import HARD_LIMITS, HARD_SCENES, random_gaussians
from surface_oracle import assert_gradients_agree, assert_image_agrees, assert_rays_agree

from gart import reference
from gart.tracing import TRACERS, TraceSettings

pytestmark = pytest.mark.cuda

DOUBTS = Limits(doubtful=0.02)


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", sorted(set(HARD_SCENES) - {"ten thousand"}))
def test_images_of_hard_scenes(name, tracer):
    limits = Limits(**HARD_LIMITS.get(name, {}))
    assert_image_agrees(*HARD_SCENES[name](), TraceSettings(tracer=tracer), limits, "cuda")


def test_rays_in_all_directions():
    scene, rays = random_gaussians(400, degree=0), random_rays(400)
    assert_rays_agree(scene, rays, TraceSettings(), DOUBTS, "cuda")


@pytest.mark.parametrize("output", ["median_depth", "normals"])
def test_gradients(output):
    scene, view = HARD_SCENES["fisheye"]()
    rays = reference.camera_rays(view)
    assert_gradients_agree(scene, rays, TraceSettings(), output, camera=view, device="cuda")
    scene, rays = random_gaussians(300, degree=0, seed=2), random_rays(200, seed=1)
    assert_gradients_agree(scene, rays, TraceSettings(), output, limits=DOUBTS, device="cuda")
