from dataclasses import replace

import pytest
import torch

from gart.cameras import has_ray
from gart.errors import GartError, UsageError
from gart.stages import Stages
from gart.training import TrainConfig, Trainer, trainer
from gart.training.checkpoint import load_checkpoint, save_checkpoint
from gart.training.filter3d import smooth
from gart.training.plan import training_size

SHORT = {"iterations": 60, "budget": 60, "sh_degree": 2, "growth": 0.5}


def run(t: Trainer, steps: int) -> list[dict[str, float]]:
    return [t.step() for _ in range(steps)]


def test_training_lowers_the_loss_and_grows_to_the_budget(small_capture):
    t = Trainer(small_capture, TrainConfig(**SHORT, init_scale=1.0))
    values = run(t, 60)
    first, last = (sum(v["loss"] for v in part) for part in (values[:5], values[-5:]))
    assert last < 0.75 * first
    assert values[0]["gaussians"] == 40
    assert values[-1]["gaussians"] == 60
    assert all(tensor.isfinite().all() for tensor in t.gaussians.tensors().values())


def test_each_epoch_shows_every_view_once(small_capture, monkeypatch):
    seen = []
    real = trainer.differentiate
    monkeypatch.setattr(trainer, "differentiate", lambda g, c, s: seen.append(c) or real(g, c, s))
    run(Trainer(small_capture, TrainConfig(**SHORT)), 15)
    epochs = [[id(c) for c in seen[i : i + 5]] for i in (0, 5, 10)]
    assert all(len(set(epoch)) == 5 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_equal_seeds_give_equal_runs_and_others_do_not(small_capture):
    a, b, c = (
        [v["loss"] for v in run(Trainer(small_capture, TrainConfig(**SHORT, seed=seed)), 12)]
        for seed in (1, 1, 2)
    )
    assert a == b
    assert a != c


def test_coarse_iterations_see_half_the_photographs_and_sample_half_as_finely(
    small_capture, monkeypatch
):
    seen = []
    real = trainer.differentiate
    monkeypatch.setattr(
        trainer, "differentiate", lambda g, c, s: seen.append((c.width, s)) or real(g, c, s)
    )
    config = TrainConfig(**SHORT, coarse_until=15_000, transmittance_min=0.01)
    t = Trainer(small_capture, config)
    fine = Trainer(small_capture, TrainConfig(**SHORT))
    torch.testing.assert_close(t._sizes, 2 * fine._sizes)
    run(t, 32)
    width = small_capture.train[0].camera.width
    assert [w for w, _ in seen] == 30 * [width // 2] + 2 * [width]
    assert all(settings.transmittance_min == 0.01 for _, settings in seen)
    sizes = t._sampled_by(t._views).intervals(t.gaussians.means) * 0.2**0.5
    torch.testing.assert_close(t._sizes, sizes, rtol=1e-2, atol=0)  # it has moved since


def test_the_forecast_counts_the_halves(small_capture):
    def held(**settings):
        return training_size(small_capture, TrainConfig(**SHORT, **settings), "cpu").photographs

    pixels = sum(view.image.numel() for view in small_capture.train)
    assert held(coarse_until=15_000) - held() == pixels // 4
    refined = {"refine_poses": True}
    assert held(coarse_until=15_000, **refined) == held(**refined)


def test_refined_cameras_train_on_whole_photographs(small_capture):
    config = TrainConfig(**SHORT, coarse_until=15_000, refine_poses=True)
    t = Trainer(small_capture, config)
    assert t.schedule.coarse_until == 0
    t.step()


@pytest.mark.parametrize("coarse_until", [0, 10_000])
@pytest.mark.parametrize("background", ["capture", "random"])
def test_a_resumed_run_goes_on_exactly(small_capture, tmp_path, background, coarse_until):
    config = TrainConfig(**SHORT, background=background, densify_from=5, coarse_until=coarse_until)
    whole = Trainer(small_capture, config)
    expected = run(whole, 45)
    first = Trainer(small_capture, config)
    run(first, 3)  # before any densification; the order is inside an epoch
    path = save_checkpoint(tmp_path, first.state(), keep=1)
    resumed = Trainer(small_capture, config)
    run(resumed, 2)  # whatever it did before must not matter
    resumed.load_state(load_checkpoint(path))
    assert run(resumed, 42) == expected[3:]
    assert len({v["gaussians"] for v in expected[3:]}) > 1  # densified in between
    for name, tensor in whole.export().tensors().items():
        assert torch.equal(getattr(resumed.export(), name), tensor)


def test_state_is_a_copy(small_capture):
    t = Trainer(small_capture, TrainConfig(**SHORT))
    state = t.state()
    before = state.tensors["means"].clone()
    t.step()
    assert torch.equal(state.tensors["means"], before)


def test_other_settings_or_photographs_are_refused_but_cadences_may_change(small_capture):
    t = Trainer(small_capture, TrainConfig(**SHORT))
    other = Trainer(small_capture, TrainConfig(**{**SHORT, "budget": 59}))
    with pytest.raises(
        UsageError,
        match=r"^the checkpoint was trained with budget=60, now budget is 59; "
        r"continue with budget=60, or train anew with --overwrite$",
    ):
        other.load_state(t.state())
    Trainer(small_capture, TrainConfig(**SHORT, checkpoint_every=7)).load_state(t.state())
    fewer = replace(small_capture, train=small_capture.train[:3])
    with pytest.raises(
        UsageError,
        match=r"^the checkpoint was trained on 5 photographs of 2400 pixels, "
        r"now there are 3 of 1440; give the same scene and --downscale, "
        r"or train anew with --overwrite$",
    ):
        Trainer(fewer, TrainConfig(**SHORT)).load_state(t.state())


def test_a_setting_younger_than_the_checkpoint_has_its_default(small_capture):
    state = Trainer(small_capture, TrainConfig(**SHORT)).state()
    del state.values["config"]["lt_layout"]
    Trainer(small_capture, TrainConfig(**SHORT)).load_state(state)
    with pytest.raises(UsageError, match="was trained with lt_layout=hits, now lt_layout is aabb"):
        Trainer(small_capture, TrainConfig(**SHORT, lt_layout="aabb")).load_state(state)


def test_the_unit_of_length_does_not_matter(small_capture):
    factor = 8.0
    views = [
        replace(v, camera=replace(v.camera, c2w=v.camera.c2w * torch.tensor([1, 1, 1, factor])))
        for v in small_capture.train
    ]
    larger = replace(small_capture, train=views, points=small_capture.points * factor)
    losses = [v["loss"] for v in run(Trainer(small_capture, TrainConfig(**SHORT)), 25)]
    scaled = [v["loss"] for v in run(Trainer(larger, TrainConfig(**SHORT)), 25)]
    assert scaled == pytest.approx(losses, rel=1e-2)


def test_only_active_harmonics_reach_the_tracer(small_capture, monkeypatch):
    counts = []
    real = trainer.differentiate
    monkeypatch.setattr(
        trainer, "differentiate", lambda g, *more: counts.append(g.sh.shape[1]) or real(g, *more)
    )
    t = Trainer(small_capture, TrainConfig(**{**SHORT, "iterations": 8}))
    run(t, 8)
    assert counts == [1, 1, 4, 4, 9, 9, 9, 9]
    assert t.gaussians.sh.shape[1] == 9


def test_export_folds_the_filter_in(small_capture):
    t = Trainer(small_capture, TrainConfig(**SHORT))
    t.step()
    sizes = t.state().tensors["filter_sizes"]
    assert (sizes > 0).all()
    expected = smooth(t.gaussians, sizes)
    assert torch.equal(t.export().log_scales, expected.log_scales)
    assert torch.equal(t.export().opacity_logits, expected.opacity_logits)
    off = Trainer(small_capture, TrainConfig(**SHORT, filter_variance=0))
    torch.testing.assert_close(off.export().log_scales, off.gaussians.log_scales)


def test_filter_sizes_stay_with_their_gaussians(small_capture):
    t = Trainer(small_capture, TrainConfig(**SHORT))
    for _ in range(60):
        t.step()
        assert len(t.state().tensors["filter_sizes"]) == len(t.gaussians)


@pytest.mark.parametrize(("name", "value"), [("black", 0.0), ("white", 1.0)])
def test_transparent_pixels_show_the_chosen_background(small_capture, name, value):
    clear = torch.zeros(20, 24, 4, dtype=torch.uint8)
    views = [replace(v, image=clear) for v in small_capture.train]
    nowhere = torch.full((40, 3), 1e3)
    capture = replace(small_capture, train=views, points=nowhere)
    assert Trainer(capture, TrainConfig(**SHORT, background=name)).step()["psnr"] == 100
    # With an opaque photograph the background counts where nothing was hit.
    opaque = [replace(v, image=clear[..., :3]) for v in small_capture.train]
    step = Trainer(replace(capture, train=opaque), TrainConfig(**SHORT, background=name)).step()
    assert step["psnr"] == pytest.approx(100 if value == 0 else 0, abs=1e-3)


def test_masked_pixels_do_not_train(small_capture):
    nothing = torch.zeros(20, 24, dtype=torch.bool)
    views = [replace(v, mask=nothing) for v in small_capture.train]
    config = TrainConfig(**SHORT, opacity_reg=0, scale_reg=0, noise=0)
    t = Trainer(replace(small_capture, train=views), config)
    before = t.gaussians.map(torch.clone)
    assert t.step()["loss"] == 0
    for name, tensor in before.tensors().items():
        assert torch.equal(getattr(t.gaussians, name), tensor)


def test_pixels_without_a_ray_do_not_count(small_capture):
    def seen_through_a_narrow_fisheye(value: int):
        lens = {"model": "opencv_fisheye", "distortion": (-1.5,)}
        views = []
        for view in small_capture.train:
            camera = replace(view.camera, **lens)
            image = view.image.clone()
            image[~has_ray(camera.lens)] = value
            views.append(replace(view, camera=camera, image=image))
        return replace(small_capture, train=views)

    black, white = map(seen_through_a_narrow_fisheye, (0, 255))
    assert 0 < has_ray(black.train[0].camera.lens).double().mean() < 1
    config = TrainConfig(iterations=10, ssim_weight=0)  # SSIM's windows look over the edge
    assert run(Trainer(black, config), 3) == run(Trainer(white, config), 3)


@pytest.mark.parametrize(
    ("poisoned", "named"),
    [("loss", "the loss"), ("gradient", "the gradient of quats")],
)
def test_nan_is_named_and_leaves_the_scene_alone(small_capture, monkeypatch, poisoned, named):
    t = Trainer(small_capture, TrainConfig(**SHORT))
    run(t, 2)
    before = t.gaussians.map(torch.clone)
    real = trainer.differentiate

    def bad(gaussians, camera, settings):
        image = real(gaussians, camera, settings)
        if poisoned == "loss":
            image.rendering.color.fill_(torch.nan)
            return image

        def backward(*by_outputs):
            grads, others = image.backward(*by_outputs)
            return replace(grads, quats=grads.quats * torch.inf), others

        return image._replace(backward=backward)

    monkeypatch.setattr(trainer, "differentiate", bad)
    with pytest.raises(GartError) as caught:
        t.step()
    message = str(caught.value)
    assert message.startswith(named)
    assert "became NaN or infinite in iteration 3 (view " in message
    assert "earlier checkpoints are intact" in message
    assert t.iteration == 2
    for name, tensor in before.tensors().items():
        assert torch.equal(getattr(t.gaussians, name), tensor)


def test_stages_are_recorded(small_capture):
    t = Trainer(small_capture, TrainConfig(**SHORT))
    with Stages() as stages:
        run(t, 2)
    for name in ("loss", "optimiser", "densify"):
        assert len(stages.ms[name]) == 2
