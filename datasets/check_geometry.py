"""Whether a capture's cameras, poses and points make sense together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from gart.cameras import Camera
from gart.datasets.posed import Photograph, Posed, some
from gart.doctor import Check

_STEPS = 48
"""Samples of a lens's image in x and y."""
_SAMPLED_POINTS, _SAMPLED_VIEWS = 5000, 100
"""Of which visibility is tested: enough for a percentage."""
_NEAR_DISTANCE, _NEAR_ANGLE = 0.01, math.radians(0.5)
"""Poses nearer than this fraction of the usual spacing, and this angle, show the same."""
_GOOD_PIXELS = 2.0
"""A solved capture reprojects its points within this, in the median."""
_FLOAT_RATIO = 1e4
"""Cameras this many times farther from the origin than apart lose digits that count in float32."""


def check_geometry(
    posed: Posed, train: Sequence[Photograph], test: Sequence[Photograph]
) -> Iterable[Check]:
    """Findings on lenses, poses, points and the points' tracks, in this order."""
    yield from _check_lenses(posed.photographs)
    yield from _check_poses(posed.photographs, {p.name for p in train}, {p.name for p in test})
    yield from _check_points(posed)
    yield from _check_tracks(posed)


def _check_lenses(photographs: Sequence[Photograph]) -> Iterable[Check]:
    cameras = {p.camera.lens: p.camera for p in photographs}
    models = Counter(p.camera.model for p in photographs)
    shown = ", ".join(f"{count} {model}" for model, count in models.most_common())
    fields = [_field_of_view(camera) for camera in cameras.values()]
    low, high = min(fields), max(fields)
    degrees = f"{low:.0f}" if high - low < 1 else f"{low:.0f} to {high:.0f}"
    text = f"{shown}; {len(cameras)} lens{'es' * (len(cameras) > 1)}, {degrees} degrees wide"
    if not low > 5 or not high < 360.01:  # as wide as a panorama
        yield Check("lenses", text, "warning", "check the focal lengths: are they in pixels?")
    else:
        yield Check("lenses", text)
    shifts, blind = zip(*(_distortion(camera) for camera in cameras.values()), strict=True)
    if any(models[model] for model in models if model != "pinhole"):
        text = f"up to {max(shifts):.1f} pixels"
        if max(blind):
            yield Check(
                "distortion",
                f"{text}; the lens has no ray for {max(blind):.1%} of its pixels",
                "warning",
                "such pixels are left out; where they are many, solve for a simpler lens",
            )
        else:
            yield Check("distortion", text)


def _field_of_view(camera: Camera) -> float:
    """Degrees from the left edge's middle to the right's, as the undistorted intrinsics say."""
    edges = torch.tensor([-camera.cx, camera.width - camera.cx], dtype=torch.float64) / camera.fx
    angles = edges.atan() if camera.is_planar else edges
    return math.degrees(float(angles[1] - angles[0]))


def _distortion(camera: Camera) -> tuple[float, float]:
    """Greatest shift from the ideal image in pixels, and the share of pixels without a ray."""
    steps = (torch.arange(_STEPS, dtype=torch.float64) + 0.5) / _STEPS
    x = (steps * camera.width - camera.cx) / camera.fx
    y = (steps * camera.height - camera.cy) / camera.fy
    x, y = torch.broadcast_tensors(x[None, :], y[:, None])
    u, v = camera.undistort(x, y)
    shift = torch.hypot((u - x) * camera.fx, (v - y) * camera.fy)
    seen = shift.isfinite()
    return float(shift[seen].max()) if seen.any() else 0.0, float((~seen).double().mean())


def _check_poses(
    photographs: Sequence[Photograph], train: set[str], test: set[str]
) -> Iterable[Check]:
    centers = torch.stack([p.camera.c2w[:, 3] for p in photographs]).double()
    count = len(centers)
    spread = float((centers - centers.mean(0)).norm(dim=1).max())
    if count > 1 and spread == 0:
        yield Check(
            "poses",
            f"all {count} photographs are taken from one place",
            "warning",
            "nothing tells how far things are; move while you take photographs",
        )
        return
    text = f"{count} poses, centres in a ball of {2 * spread:.3g} units"
    offset = float(centers.norm(dim=1).max())
    if spread and offset > _FLOAT_RATIO * spread:
        yield Check(
            "poses",
            f"{text}, {offset:.3g} units from the origin, too far for 32-bit numbers",
            "warning",
            "move the model's origin into the scene with `colmap model_aligner` or "
            "`colmap model_transformer`",
        )
    else:
        yield Check("poses", text)
    if count < 2:
        return
    tree = cKDTree(centers.numpy())
    spacing = float(np.median(tree.query(centers.numpy(), 2)[0][:, 1]))
    pairs = [
        (photographs[i], photographs[j])
        for i, j in sorted(tree.query_pairs(_NEAR_DISTANCE * spacing))
        if _angle(photographs[i].camera, photographs[j].camera) < _NEAR_ANGLE
    ]
    if pairs:
        text = f"{len(pairs)} pairs share a pose: "
        text += some({f"{a.name} = {b.name}" for a, b in pairs}, 3)
        if leaks := sum(_is_split(a.name, b.name, train, test) for a, b in pairs):
            text += f"; {leaks} pairs have one to train on and one held out"
        yield Check("equal poses", text, "warning", "keep one of each, or the same set for both")


def _is_split(a: str, b: str, train: set[str], test: set[str]) -> bool:
    return (a in train and b in test) or (a in test and b in train)


def _angle(a: Camera, b: Camera) -> float:
    """Radians between two cameras' orientations."""
    turn = a.c2w[:, :3].double().T @ b.c2w[:, :3].double()
    sine = torch.stack([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
    return math.atan2(float(sine.norm()) / 2, float(turn.trace() - 1) / 2)


def _check_points(posed: Posed) -> Iterable[Check]:
    points = torch.from_numpy(posed.points)
    if not len(points):
        yield Check(
            "points",
            "none: training starts from random ones",
            "warning",
            "where COLMAP solved the poses, add its points3D file",
        )
        return
    if bad := posed.bad_points:
        yield Check(
            "points",
            f"{bad} of {len(points)} are not finite",
            "problem",
            "remove them from the model",
        )
        return
    step = -(-len(points) // _SAMPLED_POINTS)
    views = posed.photographs[:: -(-len(posed.photographs) // _SAMPLED_VIEWS)]
    sample = points[::step]
    seen = torch.zeros(len(sample))
    for photograph in views:
        seen += _in_view(photograph.camera, sample)
    share = float((seen > 0).double().mean())
    text = f"{len(points)}, {share:.0%} of them in view of a photograph, on average of "
    text += f"{float(seen.mean()) / len(views):.0%} of all"
    if share < 0.5:
        yield Check(
            "points", text, "warning", "check that points and poses are of the same model and axes"
        )
    else:
        yield Check("points", text)


def _in_view(camera: Camera, points: Tensor) -> Tensor:
    x, y = camera.project(points).unbind(-1)
    return (x >= 0) & (x <= camera.width) & (y >= 0) & (y <= camera.height)


def _check_tracks(posed: Posed) -> Iterable[Check]:
    errors = _reprojection_errors(posed)
    if not len(errors):
        return
    mend = "poses, lenses and points do not fit: solve the model again"
    seen = errors[np.isfinite(errors)]
    if len(seen) < len(errors) / 2:
        text = f"{len(errors) - len(seen)} of {len(errors)} observations are behind their cameras"
        yield Check("tracks", text, "warning", mend)
        return
    middle, high = np.percentile(seen, (50, 95))
    text = f"{len(errors)} observations reproject within {middle:.2f} pixels in the median, "
    text += f"95% within {high:.2f}"
    if middle < _GOOD_PIXELS:
        yield Check("tracks", text)
    else:
        yield Check("tracks", text, "warning", mend)


def _reprojection_errors(posed: Posed) -> NDArray[np.float64]:
    """Pixels between where the reconstruction saw its points and where our cameras see them."""
    errors = [np.zeros(0)]
    for photograph in posed.photographs:
        points = torch.from_numpy(posed.points[photograph.points])
        error = photograph.camera.project(points).numpy() - photograph.pixels
        errors.append(np.linalg.norm(error, axis=-1))
    return np.concatenate(errors)
