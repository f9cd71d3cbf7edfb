"""Rays that do not start at one point: orthographic lenses, rolling shutter, thin lens."""

import math
from dataclasses import replace

import pytest
import torch
from oracle import OUTPUTS, Limits, assert_gradients_agree, assert_images_agree
from ray_oracle import assert_ray_gradients_agree, assert_rays_agree
from scenes import (
    FAR,
    FISHEYE,
    camera,
    gaussian,
    orthographic,
    panorama,
    random_gaussians,
    random_pose,
    shell,
)

from gart.optics import RollingShutter, ThinLens, poses_between
from gart.tilegs import rasterize
from gart.tracing import SH_MODES, TraceSettings, camera_rays, trace, trace_rays

A_PERCENT = Limits(doubtful=0.01)


def turned(angle: float, center: tuple[float, float, float]) -> torch.Tensor:
    """A pose turned to the right."""
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, 0, s, center[0]], [0, 1, 0, center[1]], [-s, 0, c, center[2]]])


class TestOrthographic:
    @pytest.mark.parametrize("size", [(37, 23), (65, 1), (1, 1)])
    def test_images_and_gradients(self, size):
        pose = random_pose(3, 2)
        scene, view = random_gaussians(120, pose=pose), orthographic(*size, pose=pose)
        assert_images_agree(scene, view, limits=A_PERCENT)
        assert_gradients_agree(scene, view, limits=A_PERCENT)

    @pytest.mark.parametrize("sh", SH_MODES)
    def test_colours(self, sh):
        # There is no centre to expand around, so "linear" is what it stands for.
        oracle_sh = "ray" if sh == "linear" else sh
        scene, view = random_gaussians(60), orthographic()
        image = trace(scene, view, TraceSettings(sh=sh))
        expected = trace(scene, view, TraceSettings(sh=oracle_sh, tracer="bvh"))
        assert torch.equal(image.color, expected.color)
        assert_images_agree(scene, view, TraceSettings(sh=oracle_sh), A_PERCENT)

    def test_size_and_depth_do_not_hang_on_distance(self):
        view = orthographic(41, 41)
        found = [trace(gaussian((0.3, -0.2, z)), view) for z in (1.5, 150.0)]
        torch.testing.assert_close(found[0].opacity, found[1].opacity, rtol=0, atol=1e-5)
        for image, z in zip(found, (1.5, 150.0), strict=True):
            hit = image.opacity > 0.01
            torch.testing.assert_close(image.depth[hit], torch.full_like(image.depth[hit], z))

    def test_behind_the_plane_is_nothing(self):
        assert trace(gaussian((0, 0, -2)), orthographic()).opacity.max() == 0

    def test_far_from_the_origin_rays_are_right_to_the_last_bit_of_float32(self):
        view = orthographic(pose=random_pose(5, FAR))
        origins, directions = camera_rays(view)
        pose = view.c2w.double()
        exact = view.origins() @ pose[:, :3].T + pose[:, 3]
        assert (origins - exact).abs().max() < 2 * FAR * 2**-24
        torch.testing.assert_close(directions, pose[:, 2].float().expand_as(directions))
        scene = random_gaussians(60, pose=view.c2w)
        rays = origins.reshape(-1, 3), directions.reshape(-1, 3)
        assert_rays_agree(scene, rays, limits=A_PERCENT)
        assert_ray_gradients_agree(scene, rays, limits=A_PERCENT)
        image = trace(scene, view).color.reshape(-1, 3)
        assert torch.equal(image, trace_rays(scene, *rays).color)


class TestRollingShutter:
    START, END = turned(0.0, (0, 0, 0)), turned(0.2, (0.3, 0.1, -0.2))

    def view(self, **changes):
        return replace(camera(33, 21), shutter=RollingShutter(self.END), **changes)

    @pytest.mark.parametrize("model", ["pinhole", "equirectangular", "orthographic"])
    def test_each_row_is_seen_from_its_own_pose(self, model):
        scene = random_gaussians(80)
        plain = {"pinhole": camera(33, 21), "equirectangular": panorama(21),
                 "orthographic": orthographic(33, 21)}[model]  # fmt: skip
        view = replace(plain, shutter=RollingShutter(self.END))
        image = trace(scene, view)
        for row in (0, 7, 20):
            pose = poses_between(self.START, self.END, torch.tensor(row / 20)).float()
            still = trace(scene, replace(plain, c2w=pose), TraceSettings(tracer="bvh"))
            for output in OUTPUTS:
                ours, theirs = getattr(image, output)[row], getattr(still, output)[row]
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)

    def test_a_camera_at_rest_is_a_plain_one(self):
        scene, view = random_gaussians(80), camera(33, 21, pose=self.START)
        image = trace(scene, replace(view, shutter=RollingShutter(self.START)))
        torch.testing.assert_close(image.color, trace(scene, view).color, rtol=0, atol=2e-5)

    def test_one_row_is_seen_from_the_start(self):
        view = replace(camera(33, 1), shutter=RollingShutter(self.END))
        for ours, theirs in zip(camera_rays(view), camera_rays(camera(33, 1)), strict=True):
            torch.testing.assert_close(ours, theirs)

    def test_rays_are_differentiable_in_both_poses(self):
        start, end = (t.double().requires_grad_() for t in (self.START, self.END))

        def rays(start, end):
            shutter = RollingShutter(end)
            return torch.stack([shutter.poses(start, 5)])

        assert torch.autograd.gradcheck(rays, (start, end))
        start = self.START.clone().requires_grad_()
        view = replace(camera(9, 7), c2w=start, shutter=RollingShutter(self.END))
        origins, directions = camera_rays(view)
        image = trace_rays(random_gaussians(30), origins, directions)
        image.color.sum().backward()
        assert start.grad.isfinite().all()
        assert start.grad[:, :3].abs().max() > 0


class TestPoses:
    def test_turn_at_constant_speed_about_one_axis(self):
        start, end = turned(0.1, (0, 1, 2)), turned(0.7, (4, 1, 0))
        shares = torch.tensor([0, 0.25, 0.5, 1, 1.5])
        found = poses_between(start, end, shares)
        wanted = [turned(0.1 + 0.6 * s, (4 * s, 1, 2 - 2 * s)) for s in shares.tolist()]
        torch.testing.assert_close(found.float(), torch.stack(wanted), rtol=0, atol=1e-6)

    def test_stay_rotations(self):
        a, b = random_pose(1, 2), random_pose(2, 3)
        found = poses_between(a, b, torch.linspace(0, 1, 9))
        unit = found[..., :3] @ found[..., :3].mT
        torch.testing.assert_close(unit, torch.eye(3).double().expand(9, 3, 3), rtol=0, atol=1e-6)
        torch.testing.assert_close(found[0].float(), a, rtol=0, atol=1e-6)
        torch.testing.assert_close(found[-1].float(), b, rtol=0, atol=1e-6)

    def test_half_a_turn_has_no_direction(self):
        with pytest.raises(ValueError, match="half a turn lies between two poses"):
            poses_between(turned(0, (0, 0, 0)), turned(math.pi, (0, 0, 0)), torch.tensor(0.5))

    def test_shape(self):
        with pytest.raises(ValueError, match=r"end of a shutter has shape \[4, 4\]; expected"):
            RollingShutter(torch.eye(4))


VIEWS = {
    "pinhole": lambda: camera(17, 11, pose=random_pose(3, 2)),
    "fisheye": lambda: camera(
        17, 11, fov=190, pose=random_pose(3, 2), model="opencv_fisheye", distortion=FISHEYE
    ),
    "panorama": lambda: panorama(11, pose=random_pose(3, 2)),
    "orthographic": lambda: orthographic(17, 11, pose=random_pose(3, 2)),
}


class TestThinLens:
    LENS = ThinLens(radius=0.2, focus=3.0, samples=8, seed=4)

    @pytest.mark.parametrize("name", VIEWS)
    def test_all_rays_of_a_pixel_meet_at_the_focus(self, name):
        plain = VIEWS[name]()
        origins, directions = camera_rays(replace(plain, aperture=self.LENS))
        assert origins.shape == (8, plain.height, plain.width, 3)
        start, central = camera_rays(plain)
        where = (start + 3 * central).expand_as(origins)
        torch.testing.assert_close(origins + 3 * directions, where, rtol=0, atol=2e-6)
        # From all over a disc of this radius: equal shares of its area.
        radius = (origins - start).norm(dim=-1)
        wanted = 0.2 * ((torch.arange(8) + 0.5) / 8).sqrt()
        torch.testing.assert_close(radius, wanted[:, None, None].expand_as(radius), rtol=0,
                                   atol=1e-6)  # fmt: skip
        axis = plain.c2w[:, 2] if name in ("pinhole", "orthographic") else central
        assert ((origins - start) * axis).sum(-1).abs().max() < 1e-6

    @pytest.mark.parametrize("name", VIEWS)
    def test_an_image_is_the_mean_over_the_disc(self, name):
        view = replace(VIEWS[name](), aperture=self.LENS)
        scene = shell(80, seed=2, pose=view.c2w)
        found = []
        for whole in (True, False):
            leaves = scene.map(lambda t: t.clone().requires_grad_())
            if whole:
                image = trace(leaves, view)
                outputs = (image.color, image.opacity, image.depth * image.opacity)
            else:
                image = trace_rays(leaves, *camera_rays(view))
                outputs = (image.color.mean(0), image.opacity.mean(0),
                           (image.depth * image.opacity).mean(0))  # fmt: skip
            sum(o.sum() for o in outputs).backward()
            found.append((outputs, [t.grad for t in leaves.tensors().values()]))
        for ours, theirs in zip(found[0][0], found[1][0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(found[0][1], found[1][1], strict=True):
            assert (ours - theirs).norm() < 1e-4 * theirs.norm()

    def test_what_is_in_focus_is_sharp_and_what_is_not_is_not(self):
        disc = gaussian((0, 0, 3), scales=(0.1, 0.1, 1e-3), logit=3)
        plain = camera(33, 33, fov=30)
        sharp = trace(disc, plain).opacity

        def error(focus):
            lens = ThinLens(0.2, focus, 32)
            return float((trace(disc, replace(plain, aperture=lens)).opacity - sharp).abs().max())

        assert error(3.0) < 0.03
        assert error(2.0) > 0.15
        assert error(6.0) > 0.15

    def test_no_opening_is_a_pinhole(self):
        scene, plain = random_gaussians(60), camera()
        image = trace(scene, replace(plain, aperture=ThinLens(0, 2.0, 3)))
        exact = trace(scene, plain)
        for output in OUTPUTS:
            torch.testing.assert_close(
                getattr(image, output), getattr(exact, output), rtol=1e-4, atol=2e-5
            )

    def test_seeds(self):
        plain = camera(9, 7)
        a, b, c = (
            camera_rays(replace(plain, aperture=ThinLens(0.1, 2.0, 4, seed)))[0]
            for seed in (0, 0, 1)
        )
        assert torch.equal(a, b)
        assert not torch.equal(a, c)

    def test_with_a_rolling_shutter(self):
        view = replace(camera(9, 7), aperture=self.LENS,
                       shutter=RollingShutter(turned(0.3, (1, 0, 0))))  # fmt: skip
        origins, directions = camera_rays(view)
        start, central = camera_rays(replace(view, aperture=None))
        torch.testing.assert_close(
            origins + 3 * directions, (start + 3 * central).expand_as(origins), rtol=0, atol=2e-6
        )
        assert trace(random_gaussians(30), view).opacity.max() > 0.1

    @pytest.mark.parametrize(
        "wrong", [{"radius": -1}, {"radius": math.nan}, {"focus": 0}, {"focus": math.inf},
                  {"samples": 0}]
    )  # fmt: skip
    def test_values(self, wrong):
        with pytest.raises(ValueError, match="expected a radius of 0 or more, a positive focus"):
            ThinLens(**{"radius": 0.1, "focus": 1.0, "samples": 4, **wrong})


def test_the_rasterizer_takes_none_of_them():
    for view in (
        replace(camera(), aperture=ThinLens(0.1, 1.0)),
        replace(camera(), shutter=RollingShutter(torch.eye(3, 4))),
        orthographic(),
        panorama(32),
    ):
        with pytest.raises(ValueError, match="the rasterizer renders pinhole cameras and this one"):
            rasterize(random_gaussians(3), view)
