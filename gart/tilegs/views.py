"""Cameras as the kernels take them: two matrices each, checked where that costs no waiting."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from gart.cameras import Camera


class Views(NamedTuple):
    """C pinhole cameras, float32 and contiguous on the scene's device.

    Attributes:
        viewmats: [C, 4, 4] world to camera.
        Ks: [C, 3, 3] intrinsics in pixels.
    """

    viewmats: Tensor
    Ks: Tensor


def view_of(camera: Camera, device: torch.device) -> Views:
    """One pinhole `camera`, worked out in Python's floats and uploaded in one piece.

    Raises:
        ValueError: its pose or intrinsics are not finite.
    """
    rows = camera.c2w.tolist()
    if not all(isfinite(value) for row in rows for value in row):
        raise ValueError(f"the camera's pose is {rows}; expected finite numbers")
    if not all(isfinite(value) for value in (camera.fx, camera.fy, camera.cx, camera.cy)):
        raise ValueError(
            f"the camera's fx, fy, cx, cy are {camera.fx}, {camera.fy}, {camera.cx}, {camera.cy}; "
            "expected finite pixels"
        )
    center = [row[3] for row in rows]
    viewmat: list[float] = []
    for axis in zip(*(row[:3] for row in rows), strict=True):  # a column of the rotation
        viewmat += [*axis, -sum(a * c for a, c in zip(axis, center, strict=True))]
    viewmat += [0, 0, 0, 1]
    K = [camera.fx, 0, camera.cx, 0, camera.fy, camera.cy, 0, 0, 1]
    packed = torch.tensor([*viewmat, *K], dtype=torch.float32)
    packed = packed.to(device, non_blocking=True)
    return Views(packed[:16].view(1, 4, 4), packed[16:].view(1, 3, 3))


def views_of(viewmats: Tensor, Ks: Tensor, device: torch.device) -> Views:
    """Matrices [C, 4, 4] and [C, 3, 3] on the scene's device or on the CPU.

    Those on the CPU are checked. Those on a GPU are not, because a look at them would wait for all
    that the GPU has to do: a matrix that is not finite shows nothing.

    Raises:
        ValueError: a matrix on the CPU that is no camera's.
    """
    viewmats, Ks = viewmats.detach(), Ks.detach()
    if viewmats.device.type == "cpu":
        _check_matrices(viewmats)
    if Ks.device.type == "cpu":
        _check_intrinsics(Ks)
    return Views(
        *(part.to(device, torch.float32, non_blocking=True).contiguous() for part in (viewmats, Ks))
    )


def _check_matrices(viewmats: Tensor) -> None:
    finite = viewmats.isfinite().flatten(1).all(1)
    last_row = (viewmats[:, 3] == torch.tensor([0, 0, 0, 1])).all(1)
    if (bad := _first(~(finite & last_row))) is not None:
        raise ValueError(
            f"viewmats[{bad}] is {viewmats[bad].tolist()}; "
            "expected finite numbers with last row 0 0 0 1"
        )
    if (bad := _first(torch.linalg.det(viewmats[:, :3, :3].double()) == 0)) is not None:
        raise ValueError(f"viewmats[{bad}] is {viewmats[bad].tolist()}, which has no inverse")


def _check_intrinsics(Ks: Tensor) -> None:
    finite = Ks.isfinite().flatten(1).all(1)
    if (bad := _first(~(finite & (Ks[:, 0, 0] > 0) & (Ks[:, 1, 1] > 0)))) is not None:
        raise ValueError(
            f"Ks[{bad}] is {Ks[bad].tolist()}; expected finite numbers and positive focal lengths"
        )


def _first(bad: Tensor) -> int | None:
    """Index of the first true element."""
    found: Sequence[int] = bad.nonzero().flatten().tolist()
    return found[0] if found else None
