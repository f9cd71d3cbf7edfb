"""Camera refinement: corrections of poses and lenses, learnt beside the scene by rays' gradients.

Structure from motion leaves errors of a pixel or so, phones and markers larger ones, and a scene
blurs where its photographs disagree. A corrected camera's rays are differentiable in the
correction, `trace_rays` in the rays; autograd does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.errors import GartError
from gart.lenses import PARAMETERS, distort, to_rays
from gart.tracing.camera_rays import world_rays

BETA1, BETA2, EPS = 0.9, 0.999, 1e-15
"""Adam's, with the 3DGS epsilon: gradients of a mean over pixels are small."""
FIXED = frozenset(("equirectangular",))
"""Models without intrinsics of their own: all directions have their pixel."""
NEWTON_STEPS = 3
"""From the given lens's rays to a corrected one's; the error is squared each time."""


class RefinedCameras:
    """Corrections of the training views' cameras, and their Adam.

    A pose's correction [6] is in the camera's frame: a rotation vector w in radians and a shift v
    in camera extents; [R | c] becomes [R exp(w) | c + extent R v]. A lens's correction [5] is
    relative to its focal length: (a, x, y, k1, k2) makes focal lengths exp(a) times as long, moves
    the principal point by (fx x, fy y), and is added to the lens's k1 and k2 where its model has
    any. Photographs with equal lenses share it. All of it is float64 on the CPU, where the poses
    are; a step therefore waits for a GPU.

    Moving, turning and scaling all cameras and the scene together changes no photograph. So after
    each step what the corrections have in common with such a motion, to first order, is taken out
    of them (least squares): the similarity that fits the corrected poses to the given ones best
    stays the identity, and held-out views keep their poses.

    Args:
        cameras: of the training views.
        extent: of the cameras, in scene units.
        poses, lenses: which of them are refined.
        device: of the rays.

    Attributes:
        tensors: what a checkpoint needs, by name.

    Raises:
        GartError: a camera with an aperture.
    """

    def __init__(
        self,
        cameras: Sequence[Camera],
        extent: float,
        *,
        poses: bool,
        lenses: bool,
        device: torch.device | str,
    ) -> None:
        if any(camera.aperture for camera in cameras):
            raise GartError(
                "a training view has an aperture, whose many rays a pixel cannot be refined; set "
                "refine_poses and refine_intrinsics to false, or remove the aperture"
            )
        self._cameras, self._extent = list(cameras), extent
        distinct = dict.fromkeys(camera.lens for camera in cameras)
        self._index = {lens: index for index, lens in enumerate(distinct)}
        self._lens_of = [self._index[camera.lens] for camera in cameras]
        self._lenses = [_Lens.of(Camera.of_lens(lens), device) for lens in distinct]
        self._gauge = _gauge(cameras, extent)
        self._rows = {"poses": _Rows(len(cameras), 6), "lenses": _Rows(len(distinct), 5)}
        self._refined = [n for n, on in (("poses", poses), ("lenses", lenses)) if on]
        self._free = torch.stack([lens.free() for lens in self._lenses])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Corrections and Adam's moments and steps by name, to read or write in place."""
        return {
            f"{name}.{key}": tensor
            for name in self._refined
            for key, tensor in self._rows[name].tensors().items()
        }

    def corrections(self, view: int) -> dict[str, Tensor]:
        """What is refined of a view: `poses` [6] and `lenses` [5], leaves to take gradients by."""
        return {
            name: self._rows[name].values[self._row(name, view)].clone().requires_grad_()
            for name in self._refined
        }

    def rays(self, view: int, corrections: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Rays of the view's pixels as `camera_rays` has them, differentiable in `corrections`.

        Returns:
            origins, directions: each [H, W, 3] float64 in the world; NaN directions where the lens
            that the capture gives has no ray.
        """
        lens = self._lenses[self._lens_of[view]]
        x, y = lens.ideal(corrections.get("lenses"))
        directions = to_rays(lens.camera.model, x, y)
        origins = None
        if lens.camera.model == "orthographic":
            origins = torch.stack([x, y, torch.zeros_like(x)], -1)
        if lens.unseen is not None:
            directions = directions.masked_fill(lens.unseen[..., None], torch.nan)
        camera = self._cameras[view]
        if "poses" in corrections:
            camera = self._moved(camera, corrections["poses"])
        return world_rays(camera, origins, directions)

    @torch.no_grad()
    def posed(self, view: int) -> Camera:
        """The view's camera with its pose corrected, and the lens that the capture gives."""
        camera = self._moved(self._cameras[view], self._rows["poses"].values[view])
        shutter = camera.shutter and replace(camera.shutter, end=camera.shutter.end.float())
        return replace(camera, c2w=camera.c2w.float(), shutter=shutter)

    def camera(self, view: int) -> Camera:
        """The view's corrected camera."""
        return self.with_lens(self.posed(view))

    @torch.no_grad()
    def with_lens(self, camera: Camera) -> Camera:
        """`camera`, of a training view or another, with its lens corrected where it is a training
        view's.
        """
        if camera.lens not in self._index:
            return camera
        index = self._index[camera.lens]
        lens = self._lenses[index]
        fx, fy, cx, cy, *distortion = (
            float(value) for value in lens.intrinsics(self._rows["lenses"].values[index])
        )
        return replace(camera, fx=fx, fy=fy, cx=cx, cy=cy, distortion=tuple(distortion))

    @torch.no_grad()
    def step(self, view: int, grads: Sequence[Tensor], rates: dict[str, float]) -> None:
        """One Adam step of the view's corrections by gradients in the order of `corrections`, at
        the learning rates by name; then the common motion is taken out of the poses.
        """
        for name, grad in zip(self._refined, grads, strict=True):
            index = self._row(name, view)
            if name == "lenses":
                grad = grad * self._free[index]
            self._rows[name].step(index, grad, rates[name])
        poses = self._rows["poses"].values
        common = self._gauge @ (self._gauge.T @ poses.reshape(-1))
        poses -= common.reshape(poses.shape)

    def _row(self, name: str, view: int) -> int:
        return view if name == "poses" else self._lens_of[view]

    def _moved(self, camera: Camera, correction: Tensor) -> Camera:
        """With the poses at the beginning and the end of its exposure corrected, float64."""
        shutter = camera.shutter
        if shutter is not None:
            shutter = replace(shutter, end=_moved(shutter.end, correction, self._extent))
        c2w = _moved(camera.c2w, correction, self._extent)
        return replace(camera, c2w=c2w, shutter=shutter)


@dataclass(frozen=True, eq=False)
class _Lens:
    """A lens of the capture.

    Attributes:
        camera: one with this lens.
        start: [2, H, W] float32 on the device that traces: its pixels in the ideal image, 0 where
            it has no ray.
        unseen: [H, W] bool: where it has none; None: nowhere.
    """

    camera: Camera
    start: Tensor
    unseen: Tensor | None

    @classmethod
    def of(cls, camera: Camera, device: torch.device | str) -> _Lens:
        points = torch.stack(camera.undistort(*_normalized(camera, "cpu", *_pinhole(camera))))
        unseen = points.isnan().any(0)
        start = points.nan_to_num(0.0).float().to(device)
        return cls(camera, start, unseen.to(device) if unseen.any() else None)

    def free(self) -> Tensor:
        """[5] float64: 1 where the model has what a correction would change."""
        names = PARAMETERS[self.camera.model]
        shown = float(self.camera.model not in FIXED)
        return torch.tensor(
            [shown, shown, shown, float("k1" in names), float("k2" in names)]
        ).double()

    def intrinsics(self, correction: Tensor) -> list[Tensor]:
        """fx, fy, cx, cy and the distortion with `correction` [5], float64 on its device."""
        camera = self.camera
        a, x, y, *k = correction.unbind(0)
        distortion = [a.new_tensor(value) for value in camera.distortion]
        for i, name in enumerate(("k1", "k2")):
            if name in PARAMETERS[camera.model]:
                place = PARAMETERS[camera.model].index(name)
                distortion[place] = distortion[place] + k[i]
        center = (camera.cx + camera.fx * x, camera.cy + camera.fy * y)
        return [camera.fx * a.exp(), camera.fy * a.exp(), *center, *distortion]

    def ideal(self, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        """Where the pixels lie in the ideal image, two [H, W] float64, through the lens with
        `correction` (None: without).

        The corrected lens is inverted by Newton's method from the given one's points. Its last step
        alone is differentiated, with the point and the Jacobian held: at the solution that is the
        implicit function theorem.
        """
        u, v = self.start.double()
        if correction is None or self.camera.model in FIXED:
            return u, v
        fx, fy, cx, cy, *distortion = self.intrinsics(correction.to(u.device))
        x, y = _normalized(self.camera, u.device, fx, fy, cx, cy)
        for _ in range(NEWTON_STEPS):
            (a, b), (c, d) = self._jacobian([k.detach() for k in distortion], u, v)
            u, v = u.detach(), v.detach()
            fu, fv = distort(self.camera.model, self._arguments(distortion), u, v)
            ex, ey, det = fu - x, fv - y, a * d - b * c
            u, v = u - (d * ex - b * ey) / det, v - (a * ey - c * ex) / det
        return u, v

    def _arguments(self, distortion: list[Tensor]) -> tuple[float, ...]:
        """For `distort`, which computes with tensors as well where it is differentiable in them."""
        if self.camera.model == "fov":
            return self.camera.distortion
        return tuple(distortion)  # type: ignore[arg-type]

    def _jacobian(
        self, distortion: list[Tensor], u: Tensor, v: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Of the distortion: rows by u and v, without gradient."""
        with torch.enable_grad():
            at = (u.detach().requires_grad_(), v.detach().requires_grad_())
            fu, fv = distort(self.camera.model, self._arguments(distortion), *at)
            rows = [
                torch.autograd.grad(
                    f.sum(), at, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                for f in (fu, fv)
            ]
        return rows[0], rows[1]


class _Rows:
    """Parameters [R, P], zero at first, of which a step changes one row; float64 on the CPU."""

    def __init__(self, rows: int, width: int) -> None:
        self.values, self.m, self.v = torch.zeros(3, rows, width, dtype=torch.float64).unbind(0)
        self.steps = torch.zeros(rows, dtype=torch.int64)

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values, "m": self.m, "v": self.v, "steps": self.steps}

    def step(self, row: int, grad: Tensor, lr: float) -> None:
        """Adam's (Kingma and Ba 2015), with the row's own count of steps."""
        self.steps[row] += 1
        count = int(self.steps[row])
        self.m[row].lerp_(grad, 1 - BETA1)
        self.v[row].lerp_(grad.square(), 1 - BETA2)
        scale = (self.v[row] / (1 - BETA2**count)).sqrt() + EPS
        self.values[row] -= lr / (1 - BETA1**count) * self.m[row] / scale


def _pinhole(camera: Camera) -> tuple[float, float, float, float]:
    return camera.fx, camera.fy, camera.cx, camera.cy


def _normalized(
    camera: Camera,
    device: torch.device | str,
    fx: Tensor | float,
    fy: Tensor | float,
    cx: Tensor | float,
    cy: Tensor | float,
) -> tuple[Tensor, Tensor]:
    """Two [H, W] float64: pixel centres from the principal point, in focal lengths."""
    columns = torch.arange(camera.width, dtype=torch.float64, device=device) + 0.5
    rows = torch.arange(camera.height, dtype=torch.float64, device=device) + 0.5
    x, y = torch.broadcast_tensors(((columns - cx) / fx)[None, :], ((rows - cy) / fy)[:, None])
    return x, y


def _moved(pose: Tensor, correction: Tensor, extent: float) -> Tensor:
    """`pose` [3, 4] with `correction` [6] in its own frame, float64."""
    turn, shift = correction.split(3)
    cross = torch.linalg.cross(turn.expand(3, 3), torch.eye(3, dtype=turn.dtype)).T
    rotation, center = pose.double().split([3, 1], dim=1)
    center = center + extent * rotation @ shift[:, None]
    return torch.cat([rotation @ torch.linalg.matrix_exp(cross), center], 1)


def _gauge(cameras: Sequence[Camera], extent: float) -> Tensor:
    """[6 V, G] float64: an orthonormal basis of the corrections that move all cameras as one.

    Of shifts along and turns around the three axes, and of scaling, about the cameras' mean: G is
    7, or less where some of them do nothing or the same.
    """
    poses = torch.stack([camera.c2w for camera in cameras]).double()
    to_camera, centers = poses[:, :, :3].mT, poses[:, :, 3]
    offsets = (centers - centers.mean(0)) / extent
    axes = torch.eye(3, dtype=torch.float64).expand(len(cameras), 3, 3)
    none = torch.zeros(len(cameras), 3, 4, dtype=torch.float64)
    turned = torch.linalg.cross(axes, offsets[:, None, :].expand_as(axes)).mT  # columns
    by_turn = torch.cat([none[..., :3], axes, none[..., :1]], 2)
    by_shift = torch.cat([axes, turned, offsets[..., None]], 2)
    motions = torch.cat([to_camera @ by_turn, to_camera @ by_shift], 1).reshape(-1, 7)
    basis, sizes, _ = torch.linalg.svd(motions, full_matrices=False)
    return basis[:, sizes > 1e-6 * sizes[0]]
