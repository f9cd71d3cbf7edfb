"""What is exported is what is seen: a PLY file loads back to the same images, in both modes."""

import pytest
import torch
from scenes import camera, join, random_gaussians, shaped

from gart.datasets import load
from gart.evaluation import render_view
from gart.io import load_ply, save_ply
from gart.training import Trainer, config_from


@pytest.mark.parametrize("mode", ["rt", "tilegs"])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_splat_files_load_back_to_the_same_image(mode, degree, tmp_path):
    scene = random_gaussians(300, degree=degree)
    if degree == 3:  # thin and opaque ones too
        scene = join(scene, shaped((0.3, 1e-3, 1e-4)), random_gaussians(20, seed=2, logit=12))
    save_ply(tmp_path / "scene.ply", scene)
    loaded = load_ply(tmp_path / "scene.ply")
    before, after = (render_view(s, camera(61, 47), mode) for s in (scene, loaded))
    assert before.opacity.max() > 0.9
    for name in ("color", "opacity", "depth"):
        assert torch.equal(getattr(after, name), getattr(before, name)), name


@pytest.mark.parametrize("mode", ["rt", "tilegs"])
def test_a_trained_scene_is_exported_with_its_filter(mode, tmp_path):
    capture = load("demo", downscale=8)
    trainer = Trainer(capture, config_from({"iterations": 10, "budget": 400}))
    for _ in range(10):
        trainer.step()
    scene = trainer.export()
    assert not torch.equal(scene.log_scales, trainer.gaussians.log_scales)
    save_ply(tmp_path / "scene.ply", scene)
    view = capture.test[0].camera
    before = render_view(scene, view, mode)
    after = render_view(load_ply(tmp_path / "scene.ply"), view, mode)
    assert before.opacity.mean() > 0.1
    assert torch.equal(after.color, before.color)
    assert torch.equal(after.depth, before.depth)
