"""Splat files in the PLY layout of 3D Gaussian Splatting.

One float32 property a value: x y z, nx ny nz (zero), f_dc_0..2, f_rest_0.. (channel-major: all
higher harmonics of red, then of green, then of blue), opacity (logit), scale_0..2 (logarithms),
rot_0..3 (w x y z).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.lib.recfunctions import structured_to_unstructured
from plyfile import PlyData, PlyElement, PlyParseError
from torch import Tensor

from gart.errors import GartError
from gart.io.atomic import atomic
from gart.scene import SH_DEGREES, Gaussians

MEANS, NORMALS = ["x", "y", "z"], ["nx", "ny", "nz"]
SH_DC, OPACITY = [f"f_dc_{c}" for c in range(3)], ["opacity"]
SCALES, QUATS = [f"scale_{a}" for a in range(3)], [f"rot_{a}" for a in range(4)]
REST_COUNTS = {3 * (k - 1): k for k in SH_DEGREES}
"""Number of f_rest properties -> harmonics per channel."""


def load_ply(path: str | Path) -> Gaussians:
    """Read a splat PLY, ascii or binary, of SH degree 0 to 3; further properties are ignored.

    Returns:
        Gaussians on the CPU, values as stored; an opacity of +inf (fully opaque) is kept.

    Raises:
        GartError: not a PLY, truncated, compressed, a property missing, or values not finite.
    """
    path = Path(path)
    vertices = _read_vertices(path)
    names = set(vertices.dtype.names or ())
    if missing := [n for n in MEANS + SH_DC + OPACITY + SCALES + QUATS if n not in names]:
        raise GartError(
            f"{path} lacks the property {', '.join(missing)}; a splat PLY has x y z, f_dc_0-2, "
            "opacity, scale_0-2 and rot_0-3: export the scene as a standard 3D Gaussian splat"
        )
    rest_count = sum(name.startswith("f_rest_") for name in names)
    rest = [f"f_rest_{i}" for i in range(rest_count)]
    if rest_count not in REST_COUNTS or not names.issuperset(rest):
        raise GartError(
            f"{path} has {rest_count} f_rest properties; allowed are f_rest_0 up to a count of "
            f"{', '.join(map(str, REST_COUNTS))} (SH degree 0 to 3)"
        )

    def column(properties: list[str]) -> Tensor:
        if not properties:
            return torch.zeros(len(vertices), 0)
        values = structured_to_unstructured(vertices[properties], dtype=np.float32)
        return torch.from_numpy(np.array(values, order="C"))

    higher = column(rest).reshape(len(vertices), 3, rest_count // 3).transpose(1, 2)
    gaussians = Gaussians(
        means=column(MEANS),
        quats=column(QUATS),
        log_scales=column(SCALES),
        opacity_logits=column(OPACITY)[:, 0].contiguous(),
        sh=torch.cat([column(SH_DC)[:, None], higher], 1).contiguous(),
    )
    _check_finite(path, gaussians)
    return gaussians


def save_ply(path: str | Path, gaussians: Gaussians) -> None:
    """Write `gaussians` as a binary little-endian splat PLY, atomically."""
    g = gaussians.detach().to("cpu")
    n, k = g.sh.shape[:2]
    names = MEANS + NORMALS + SH_DC + [f"f_rest_{i}" for i in range(3 * (k - 1))]
    names += OPACITY + SCALES + QUATS
    rest = g.sh[:, 1:].transpose(1, 2).reshape(n, 3 * (k - 1))
    parts = [g.means, torch.zeros(n, 3), g.sh[:, 0], rest, g.opacity_logits[:, None]]
    values = torch.cat([*parts, g.log_scales, g.quats], 1).contiguous().numpy()
    vertices = values.view([(name, "<f4") for name in names])[:, 0]
    with atomic(path) as temporary:
        PlyData([PlyElement.describe(vertices, "vertex")], byte_order="<").write(str(temporary))


def _read_vertices(path: Path) -> np.ndarray:
    if not path.is_file():
        raise GartError(f"{path} does not exist or is not a file; give a splat file (.ply)")
    with path.open("rb") as file:
        if file.read(4).rstrip() != b"ply":
            raise GartError(
                f"{path} is not a PLY file: its first line is not `ply`; "
                "convert it to a standard 3D Gaussian splat PLY"
            )
    try:
        data = PlyData.read(str(path))
    except (PlyParseError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise GartError(f"{path} cannot be read as PLY ({reason}); export it again") from error
    elements = {element.name: element for element in data.elements}
    if "vertex" not in elements:
        raise GartError(
            f"{path} has no `vertex` element, only {', '.join(elements) or 'none'}; "
            "export the scene as a standard 3D Gaussian splat"
        )
    vertices = elements["vertex"].data
    if "packed_position" in vertices.dtype.names:
        raise GartError(
            f"{path} is a compressed PLY (packed_position), which is not read; "
            "export it as an uncompressed splat PLY"
        )
    return vertices


def _check_finite(path: Path, gaussians: Gaussians) -> None:
    for name, tensor in gaussians.tensors().items():
        bad = tensor.isnan() if name == "opacity_logits" else ~tensor.isfinite()
        if bad.any():
            row = int(bad.nonzero()[0, 0])
            count = int(bad.reshape(len(tensor), -1).any(1).sum())
            raise GartError(
                f"{path}: {name} of Gaussian {row} is not finite ({count} such Gaussians); "
                "remove them and export the file again"
            )
