import json
import math
from dataclasses import replace

import pytest
import torch
from training_oracle import photometric

from gart.cameras import Camera
from gart.datasets.demo import demo_capture
from gart.errors import GartError, UsageError
from gart.evaluation import evaluate
from gart.io import RunFolder
from gart.io.cameras import load_cameras, save_cameras
from gart.optics import RollingShutter, ThinLens
from gart.reference import trace_rays as trace_exactly
from gart.scene import Gaussians
from gart.tracing import camera_rays, trace_rays
from gart.training import TrainConfig, Trainer, train
from gart.training import trainer as trainer_module
from gart.training.checkpoint import load_checkpoint, save_checkpoint
from gart.training.initialization import scene_extent
from gart.training.plan import plan_training
from gart.training.poses import RefinedCameras
from gart.training.schedule import Schedule

EXTENT = 4.0
LENSES = {
    "pinhole": (),
    "opencv": (0.1, -0.05, 0.004, -0.003),
    "full_opencv": (0.1, -0.05, 0.004, -0.003, 0.02, 0.03, 0.01, 0.0),
    "fov": (0.4,),
    "opencv_fisheye": (0.05, -0.02, 0.01, 0.0),
    "thin_prism_fisheye": (0.05, -0.02, 0.002, 0.001, 0.01, 0.0, 0.003, -0.002),
    "orthographic": (),
}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def a_camera(camera_at, model: str = "opencv", angle: float = 0.3) -> Camera:
    camera = replace(camera_at(angle, model=model), distortion=LENSES[model])
    scale = 5.0 if model == "orthographic" else camera.fx
    return replace(camera, fx=scale, fy=1.1 * scale, cx=camera.cx + 0.7, cy=camera.cy - 0.4)


def refined(cameras: list[Camera], poses: bool = True, lenses: bool = True) -> RefinedCameras:
    return RefinedCameras(cameras, EXTENT, poses=poses, lenses=lenses, device="cpu")


def with_corrections(cameras: list[Camera], amount: float = 0.01) -> RefinedCameras:
    """Some in every parameter that the lenses have."""
    found = refined(cameras)
    for view in range(len(cameras)):
        grads = [torch.randn(n, generator=rng(view)).double() for n in (6, 5)]
        found.step(view, grads, {"poses": amount, "lenses": amount})
    return found


def turned(pose: torch.Tensor, turn: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """[R exp(turn) | c + R shift], by Rodrigues' formula."""
    angle = turn.norm().clamp_min(1e-300)
    x, y, z = (turn / angle).tolist()
    k = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    turning = torch.eye(3).double() + angle.sin() * k + (1 - angle.cos()) * (k @ k)
    rotation = pose[:, :3].double()
    return torch.cat([rotation @ turning, (pose[:, 3].double() + rotation @ shift)[:, None]], 1)


def corrected(camera: Camera, by: torch.Tensor) -> Camera:
    """What [11] numbers, of pose and lens, make of a camera: from the definition."""
    a, x, y, *k = by[6:].tolist()
    distortion = list(camera.distortion)
    if camera.model not in ("pinhole", "fov", "orthographic"):
        distortion[:2] = [distortion[0] + k[0], distortion[1] + k[1]]
    return replace(
        camera,
        c2w=turned(camera.c2w, by[:3], EXTENT * by[3:6]),
        fx=camera.fx * math.exp(a),
        fy=camera.fy * math.exp(a),
        cx=camera.cx + camera.fx * x,
        cy=camera.cy + camera.fy * y,
        distortion=tuple(distortion),
    )


def exact_rays(camera: Camera) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a camera with a float64 pose, by its lens's own inverse."""
    rotation = camera.c2w[:, :3]
    return camera.c2w[:, 3] + camera.origins() @ rotation.T, camera.directions() @ rotation.T


@pytest.mark.parametrize("model", LENSES)
def test_rays_are_those_of_the_corrected_camera(camera_at, model):
    camera = a_camera(camera_at, model)
    by = 0.02 * torch.randn(11, generator=rng(1), dtype=torch.float64)
    rays = refined([camera]).rays(0, {"poses": by[:6], "lenses": by[6:]})
    for found, expected in zip(rays, exact_rays(corrected(camera, by)), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_without_corrections_nothing_changes(camera_at):
    for model in LENSES:
        camera = a_camera(camera_at, model)
        same = refined([camera])
        assert same.camera(0).lens == camera.lens
        assert torch.equal(same.camera(0).c2w, camera.c2w)
        for found, expected in zip(same.rays(0, {}), camera_rays(camera), strict=True):
            torch.testing.assert_close(found.float(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", LENSES)
def test_the_camera_has_the_rays_that_it_was_trained_with(camera_at, model):
    cameras = [a_camera(camera_at, model, angle) for angle in (0.1, 0.8, 1.7)]
    found = with_corrections(cameras)
    leaves = found.corrections(1)
    assert all(bool((t != 0).any()) for t in leaves.values())
    by_camera = camera_rays(found.camera(1))
    for a, b in zip(found.rays(1, leaves), by_camera, strict=True):
        torch.testing.assert_close(a.float(), b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", ["pinhole", "opencv", "opencv_fisheye"])
def test_gradients_of_the_loss_are_those_of_finite_differences(camera_at, make_gaussians, model):
    """From a correction through rays, tracer and photometric loss, against float64 differences."""
    camera = replace(a_camera(camera_at, model), width=14, height=12, cx=7.3, cy=5.9, fx=13, fy=14)
    scene = make_gaussians(12, 1)
    # Wide and faint: no hit is cut off or clamped, so the loss is smooth.
    scene = replace(
        scene, log_scales=scene.log_scales + 1.5, opacity_logits=-0.5 + 0 * scene.means[:, 0]
    )
    image = torch.randint(0, 256, (12, 14, 3), generator=rng(3), dtype=torch.uint8)
    background = torch.tensor([0.2, 0.5, 0.9])
    at = 0.01 * torch.randn(11, generator=rng(2), dtype=torch.float64)
    at[9:] *= float(model != "pinhole")

    def exact_loss(by: torch.Tensor) -> float:
        origins, directions = (r.reshape(-1, 3) for r in exact_rays(corrected(camera, by)))
        doubles = Gaussians(*(t.double() for t in scene.tensors().values()))
        seen = trace_exactly(doubles, origins, directions, alpha_min=1e-9)
        color, opacity = seen.color.reshape(12, 14, 3), seen.opacity.reshape(12, 14)
        return float(photometric(color, opacity, image, background.double(), 0.2)[0])

    step = 1e-6
    expected = torch.tensor(
        [
            (exact_loss(at + h) - exact_loss(at - h)) / (2 * step)
            for h in step * torch.eye(11).double()
        ],
        dtype=torch.float64,
    )
    corrections = {"poses": at[:6].requires_grad_(), "lenses": at[6:].detach().requires_grad_()}
    origins, directions = refined([camera]).rays(0, corrections)
    settings = trainer_module.TraceSettings(alpha_min=1e-9)
    seen = trace_rays(scene, origins.float(), directions.float(), settings)
    loss, _ = photometric(seen.color, seen.opacity, image, background, 0.2)
    found = torch.cat(torch.autograd.grad(loss, list(corrections.values())))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert float(expected.abs().min()) > 1e-4 or model == "pinhole"


def common_motion(given: list[Camera], found: list[Camera]) -> list[torch.Tensor]:
    """Derivatives of the misfit of poses after a similarity, at the identity: shift, turn, scale.

    The misfit is the squared angles and the squared distances in extents, to first order.
    """
    center = torch.stack([c.center.double() for c in given]).mean(0)
    shift, turn, scale = torch.zeros(3).double(), torch.zeros(3).double(), torch.zeros(()).double()
    for a, b in zip(given, found, strict=True):
        moved = (b.center.double() - a.center.double()) / EXTENT
        offset = (a.center.double() - center) / EXTENT
        m = b.c2w[:, :3].double() @ a.c2w[:, :3].double().T
        angles = torch.stack([m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]]) / 2
        shift, scale = shift + moved, scale + moved @ offset
        turn = turn + angles + torch.linalg.cross(offset, moved)
    return [shift, turn, scale]


def test_pixels_without_a_ray_have_no_gradient(camera_at):
    """A lens of which the image shows more than it maps: only what it maps counts."""
    wide = replace(
        camera_at(0.3, model="opencv_fisheye"), fx=5.0, fy=5.0, distortion=(0, -0.1, 0, 0)
    )
    corrections = refined([wide]).corrections(0)
    _, directions = refined([wide]).rays(0, corrections)
    seen = ~directions.isnan().any(-1)
    assert 0 < seen.sum() < seen.numel()
    weights = torch.randn(directions.shape, generator=rng()).double()
    everywhere = (directions.nan_to_num(0.0) * weights).sum()
    found = torch.autograd.grad(everywhere, list(corrections.values()), retain_graph=True)
    assert all(grad.isfinite().all() and grad.any() for grad in found)

    pose = wide.c2w.clone().requires_grad_()
    _, directions = camera_rays(replace(wide, c2w=pose))
    (by_pose,) = torch.autograd.grad((directions.nan_to_num(0.0) * weights).sum(), pose)
    local = wide.directions()[seen]
    expected = torch.einsum("ni,nj->ij", weights[seen], local)
    torch.testing.assert_close(by_pose[:, :3].double(), expected, rtol=1e-4, atol=1e-4)


def test_the_corrections_hold_no_common_motion(camera_at):
    cameras = [a_camera(camera_at, angle=0.5 * i) for i in range(7)]
    found = with_corrections(cameras, 0.01)
    after = [found.posed(i) for i in range(7)]
    moved = torch.stack([b.center - a.center for a, b in zip(cameras, after, strict=True)])
    assert float(moved.norm(dim=1).min()) > 0.01 * EXTENT / 4
    for sum_ in common_motion(cameras, after):
        assert float(sum_.abs().max()) < 7 * 0.01**2  # its second order is left
    # Gradients that are one motion of all cameras move none: here, one shift in the world.
    still = refined(cameras, lenses=False)
    rows = still.tensors["poses.values"]
    for i, camera in enumerate(cameras):
        rows[i, 3:] = camera.c2w[:, :3].double().T @ torch.tensor([0.1, 0.2, 0.3]).double()
    still.step(0, [torch.zeros(6).double()], {"poses": 0.0})
    assert float(rows.abs().max()) < 1e-6


def test_one_photograph_keeps_its_pose(camera_at):
    camera = a_camera(camera_at)
    found = with_corrections([camera])
    torch.testing.assert_close(found.posed(0).c2w, camera.c2w, rtol=0, atol=1e-6)
    assert found.camera(0).fx != camera.fx


def test_equal_lenses_are_corrected_together_and_others_apart(camera_at):
    one, two = a_camera(camera_at, angle=0.1), a_camera(camera_at, angle=0.9)
    other = replace(a_camera(camera_at, angle=1.5), fx=31.0)
    found = refined([one, two, other], poses=False)
    found.step(1, [torch.ones(5).double()], {"lenses": 0.01})
    assert found.camera(0).lens == found.camera(1).lens != one.lens
    assert found.camera(0).fx == pytest.approx(one.fx * math.exp(-0.01), rel=1e-6)
    assert found.camera(0).distortion[0] == pytest.approx(0.1 - 0.01, rel=1e-6)
    assert found.camera(2).lens == other.lens
    for view, camera in enumerate((one, two, other)):
        assert torch.equal(found.camera(view).c2w, camera.c2w)


def test_what_a_lens_does_not_have_stays(camera_at):
    for model in ("pinhole", "fov", "equirectangular"):
        camera = camera_at(0.3, model="pinhole" if model == "equirectangular" else model)
        camera = replace(camera, model=model, distortion=LENSES.get(model, ()))
        if model == "equirectangular":
            camera = replace(camera, fx=24 / (2 * math.pi), fy=20 / math.pi)
        found = refined([camera], poses=False)
        found.step(0, [torch.ones(5).double()], {"lenses": 0.01})
        assert found.camera(0).distortion == camera.distortion
        assert (found.camera(0).lens == camera.lens) == (model == "equirectangular")


def test_a_rolling_shutter_moves_as_a_whole(camera_at):
    start, end = a_camera(camera_at, angle=0.3), a_camera(camera_at, angle=0.35)
    camera = replace(start, shutter=RollingShutter(end.c2w))
    found = with_corrections([camera, a_camera(camera_at, angle=1.0), a_camera(camera_at, angle=2)])
    after, by = found.posed(0), found.tensors["poses.values"][0]
    assert after.shutter is not None
    expected = turned(end.c2w, by[:3], EXTENT * by[3:]).float()
    torch.testing.assert_close(after.shutter.end, expected)
    assert float((expected - end.c2w).abs().max()) > 1e-3


def test_an_aperture_is_refused(camera_at):
    camera = replace(a_camera(camera_at), aperture=ThinLens(0.1, 4.0))
    with pytest.raises(GartError, match="has an aperture"):
        refined([camera])


def shaken(capture, degrees: float, share: float, extent: float):
    """With training poses that are turned and moved (in extents) at random."""

    def direction() -> torch.Tensor:
        vector = torch.randn(3, generator=g, dtype=torch.float64)
        return vector / vector.norm()

    g, views = rng(3), []
    for view in capture.train:
        turn, shift = math.radians(degrees) * direction(), share * extent * direction()
        pose = turned(view.camera.c2w, turn, shift).float()
        views.append(replace(view, camera=replace(view.camera, c2w=pose)))
    return replace(capture, train=views)


def position_error(cameras: list[Camera], truth: list[Camera]) -> float:
    """Mean distance of centres after the best similarity (Umeyama 1991)."""
    a, b = (torch.stack([c.center.double() for c in cs]) for cs in (cameras, truth))
    a, b = a - a.mean(0), b - b.mean(0)
    u, s, vt = torch.linalg.svd(b.T @ a)
    s[2] *= torch.det(u @ vt).sign()
    rotation = u @ torch.diag(torch.tensor([1, 1, float(torch.det(u @ vt).sign())]).double()) @ vt
    return float((s.sum() / a.square().sum() * a @ rotation.T - b).norm(dim=1).mean())


def test_shaken_cameras_are_found_again():
    """0.5 degrees and 1 % of the extent off: held-out views, whose poses are right, gain."""
    capture = demo_capture(3)
    truth = [view.camera for view in capture.train]
    off = shaken(capture, 0.5, 0.01, scene_extent(truth))
    options = {"iterations": 300, "budget": 3000, "lr_pose": 4e-3, "refine_until": 25_000}
    psnr = {}
    for refine in (False, True):
        t = Trainer(off, TrainConfig(**options, sh_degree=0, refine_poses=refine))
        for _ in range(300):
            t.step()
        psnr[refine] = evaluate(t.export(), capture.test, metrics="psnr")["mean"]["psnr"]
    found = [t.refined_cameras()[view.name] for view in capture.train]
    before = position_error([view.camera for view in off.train], truth)
    assert position_error(found, truth) < 0.65 * before
    assert psnr[True] > psnr[False] + 0.6


def test_a_wrong_lens_is_found_again():
    """A focal length 3 % too long, which all training views share."""
    capture = demo_capture(4)
    wrong = [
        replace(v, camera=replace(v.camera, fx=1.03 * v.camera.fx, fy=1.03 * v.camera.fy))
        for v in capture.train
    ]
    config = TrainConfig(
        iterations=200, budget=3000, sh_degree=0, refine_intrinsics=True, lr_intrinsics=1e-3
    )
    right, off = capture.train[0].camera.fx, wrong[0].camera.fx
    t = Trainer(replace(capture, train=wrong), config)
    for _ in range(200):
        t.step()
    focal = {camera.fx for camera in t.refined_cameras().values() if camera.fx != right}
    assert len(focal) == 1
    assert abs(focal.pop() - right) < 0.4 * (off - right)


REFINING = {"iterations": 40, "budget": 60, "refine_poses": True, "refine_intrinsics": True}


@pytest.mark.parametrize("done", [8, 20, 30])  # half of the run refines
def test_a_resumed_run_goes_on_exactly(small_capture, tmp_path, done):
    config = TrainConfig(**REFINING)
    whole = Trainer(small_capture, config)
    expected = [whole.step() for _ in range(36)]
    first = Trainer(small_capture, config)
    for _ in range(done):
        first.step()
    path = save_checkpoint(tmp_path, first.state(), keep=1)
    resumed = Trainer(small_capture, config)
    resumed.load_state(load_checkpoint(path))
    assert [resumed.step() for _ in range(36 - done)] == expected[done:]
    for name, camera in whole.refined_cameras().items():
        assert torch.equal(resumed.refined_cameras()[name].c2w, camera.c2w)
        assert resumed.refined_cameras()[name].lens == camera.lens
    with pytest.raises(UsageError, match="refine_poses=True, now refine_poses is False"):
        Trainer(small_capture, replace(config, refine_poses=False)).load_state(first.state())


def test_iterations_after_it_train_with_the_corrected_cameras(small_capture, monkeypatch):
    seen = []

    def spy(gaussians, camera, settings):
        seen.append(camera)
        return traced(gaussians, camera, settings)

    traced = trainer_module.differentiate
    monkeypatch.setattr(trainer_module, "differentiate", spy)
    t = Trainer(small_capture, TrainConfig(**REFINING, sh="linear"))
    for _ in range(19):
        t.step()
    assert not seen  # the tree traced them
    corrected = t.refined_cameras()
    for _ in range(5):
        t.step()
    assert len(seen) == 5
    for view in small_capture.train:
        assert corrected[view.name].fx != view.camera.fx
        assert any(torch.equal(corrected[view.name].c2w, c.c2w) for c in seen)
    assert {c.fx for c in seen} == {camera.fx for camera in corrected.values()}


def test_off_it_is_nowhere(small_capture, monkeypatch):
    monkeypatch.setattr(trainer_module, "RefinedCameras", None)
    monkeypatch.setattr(trainer_module, "trace_rays", None)
    t = Trainer(small_capture, TrainConfig(iterations=10, budget=60))
    t.step()
    assert t.refined_cameras() == {}
    assert not [name for name in t.state().tensors if name.startswith("camera")]


def test_a_gradient_that_is_not_finite_ends_the_run(small_capture, monkeypatch):
    t = Trainer(small_capture, TrainConfig(**REFINING))
    t.step()
    before = {name: value.clone() for name, value in t.state().tensors.items()}
    rays = RefinedCameras.rays

    def broken(self, view, corrections):
        origins, directions = rays(self, view, corrections)
        origins.register_hook(lambda grad: grad * math.nan)
        return origins, directions

    monkeypatch.setattr(RefinedCameras, "rays", broken)
    with pytest.raises(
        GartError, match=r"gradient of the camera became NaN or infinite in iter.* 2 "
    ):
        t.step()
    after = t.state().tensors
    for name, value in before.items():
        assert name == "host_generator" or torch.equal(after[name], value), name


def test_a_run_writes_its_cameras(small_capture, tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    train(small_capture, TrainConfig(**{**REFINING, "iterations": 12}), folder)
    cameras = load_cameras(folder.cameras)
    assert set(cameras) == {v.name for v in [*small_capture.train, *small_capture.test]}
    held_out = small_capture.test[0]  # shares the lens, and keeps its pose
    assert cameras[held_out.name].lens == cameras["0.png"].lens
    assert torch.equal(cameras[held_out.name].c2w, held_out.camera.c2w)
    for view in small_capture.train:
        found = cameras[view.name]
        assert (found.width, found.height) == (view.camera.width, view.camera.height)
        assert float((found.c2w - view.camera.c2w).abs().max()) > 0
        assert found.fx != view.camera.fx
    shutter = RollingShutter(small_capture.train[0].camera.c2w + 0.1)
    camera = replace(cameras["0.png"], model="opencv", distortion=(0.1, 0.2), shutter=shutter)
    save_cameras(folder.cameras, {"a": camera})
    again = load_cameras(folder.cameras)["a"]
    assert again.lens == camera.lens
    assert torch.equal(again.c2w, camera.c2w)
    assert again.shutter is not None
    assert torch.equal(again.shutter.end, shutter.end)
    for text in ("[]", '{"a": {"c2w": []}}', "{", json.dumps({"a": 3})):
        folder.cameras.write_text(text)
        with pytest.raises(GartError, match=r"cameras\.json cannot be read"):
            load_cameras(folder.cameras)
    RunFolder.create(folder.path, overwrite=True)
    assert not folder.cameras.exists()


def test_rates_fall_to_a_hundredth_and_short_runs_shrink():
    schedule = Schedule.of(TrainConfig(refine_poses=True, refine_from=1000))
    assert [schedule.refines(i) for i in (999, 1000, 14_999, 15_000)] == [False, True, True, False]
    shares = [schedule.refinement_rate(i) for i in (1000, 14_999)]
    assert shares == pytest.approx([1, 0.01])
    short = Schedule.of(TrainConfig(iterations=300, refine_poses=True, refine_from=1000))
    assert (short.refine_from, short.refine_until) == (10, 150)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"refine_poses": "perhaps"}, "refine_poses is 'perhaps'; allowed is true or false"),
        ({"lr_pose": -1}, "lr_pose is -1; allowed is a number of at least 0"),
        ({"lr_intrinsics": "much"}, "lr_intrinsics is 'much'; allowed is a number"),
        (
            {"refine_intrinsics": True, "refine_from": 9, "refine_until": 9},
            "refine_until is 9, not after refine_from, 9; .* raise refine_until",
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        TrainConfig(**settings)
    TrainConfig(refine_from=9, refine_until=9)  # of no account while it is off


def test_the_forecast_counts_the_tree(small_capture):
    plain, refining = (
        plan_training(small_capture, TrainConfig(budget=1000, refine_poses=on), "cpu").needed
        for on in (False, True)
    )
    assert refining > plain + 276 * 1000
