import struct

import numpy as np
import pytest
import torch
from plyfile import PlyData

from gart.errors import GartError
from gart.io.ply import load_ply, save_ply
from gart.scene import Gaussians

REQUIRED = ["x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity"]
REQUIRED += ["scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]


def random_gaussians(n, degree):
    g = torch.Generator().manual_seed(degree)
    shapes = [(n, 3), (n, 4), (n, 3), (n,), (n, (degree + 1) ** 2, 3)]
    return Gaussians(*(torch.randn(shape, generator=g) for shape in shapes))


def write_ascii(path, names, rows, kind="float"):
    header = ["ply", "format ascii 1.0", f"element vertex {len(rows)}"]
    header += [f"property {kind} {name}" for name in names] + ["end_header"]
    path.write_text("\n".join(header + [" ".join(map(str, row)) for row in rows]) + "\n")
    return path


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_round_trip_is_bit_exact(tmp_path, degree):
    g = random_gaussians(17, degree)
    g.opacity_logits[3] = torch.inf
    save_ply(tmp_path / "a.ply", g)
    again = load_ply(tmp_path / "a.ply")
    for name, tensor in g.tensors().items():
        assert torch.equal(tensor, again.tensors()[name]), name
        assert again.tensors()[name].is_contiguous()
        assert again.tensors()[name].dtype == torch.float32
    save_ply(tmp_path / "b.ply", again)
    assert (tmp_path / "a.ply").read_bytes() == (tmp_path / "b.ply").read_bytes()


def test_layout_is_that_of_3dgs(tmp_path):
    save_ply(tmp_path / "a.ply", random_gaussians(2, 1))
    names = [p.name for p in PlyData.read(str(tmp_path / "a.ply"))["vertex"].properties]
    rest = [f"f_rest_{i}" for i in range(9)]
    assert names == [*REQUIRED[:3], "nx", "ny", "nz", *REQUIRED[3:6], *rest, *REQUIRED[6:]]


def test_rest_is_channel_major(tmp_path):
    # By hand: binary, properties in an order of its own, one the format does not know between them.
    names = ["rot_3", *(f"f_rest_{i}" for i in range(24)), "red", *REQUIRED[:-1]]
    values = [0.5, *range(100, 124), 9.0, 1, 2, 3, 10, 11, 12, -1, -2, -3, -4, 1, 0, 0]
    header = "ply\nformat binary_big_endian 1.0\nelement vertex 1\n"
    header += "".join(f"property float {name}\n" for name in names) + "end_header\n"
    path = tmp_path / "hand.ply"
    path.write_bytes(header.encode() + struct.pack(f">{len(values)}f", *values))
    g = load_ply(path)
    assert g.sh_degree == 2
    assert g.sh[0, 0].tolist() == [10, 11, 12]
    assert g.sh[0, 1].tolist() == [100, 108, 116]  # first higher harmonic of red, green, blue
    assert g.sh[0, 8].tolist() == [107, 115, 123]
    assert g.means.tolist() == [[1, 2, 3]]
    assert g.opacity_logits.tolist() == [-1]
    assert g.log_scales.tolist() == [[-2, -3, -4]]
    assert g.quats.tolist() == [[1, 0, 0, 0.5]]


def test_ascii_doubles_and_no_gaussians(tmp_path):
    g = load_ply(write_ascii(tmp_path / "a.ply", REQUIRED, [range(14)], "double"))
    assert g.means.tolist() == [[0, 1, 2]]
    assert g.means.dtype == torch.float32
    assert len(load_ply(write_ascii(tmp_path / "b.ply", REQUIRED, []))) == 0


def test_saving_needs_no_grad_and_no_device(tmp_path):
    g = random_gaussians(3, 0).map(lambda t: t.requires_grad_())
    save_ply(tmp_path / "new folder" / "a.ply", g)
    assert torch.equal(load_ply(tmp_path / "new folder" / "a.ply").means, g.means.detach())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda names: [n for n in names if n not in ("opacity", "rot_2")], "opacity, rot_2"),
        (lambda names: [*names, "f_rest_0", "f_rest_1"], "has 2 f_rest.*0, 9, 24, 45"),
        (lambda names: [*names, *(f"f_rest_{i}" for i in range(1, 10))], "has 9 f_rest"),
    ],
)
def test_wrong_properties_are_named(tmp_path, change, message):
    names = change(REQUIRED)
    path = write_ascii(tmp_path / "wrong.ply", names, [[0] * len(names)])
    with pytest.raises(GartError, match=f"wrong.ply.*{message}"):
        load_ply(path)


def test_malformed_files_are_refused(tmp_path):
    path = tmp_path / "s.ply"
    with pytest.raises(GartError, match=r"s.ply does not exist"):
        load_ply(path)
    path.write_bytes(b"\x00\x01splat")
    with pytest.raises(GartError, match=r"s.ply is not a PLY"):
        load_ply(path)
    path.write_text("ply\nformat ascii 1.0\nelement face 0\nproperty int a\nend_header\n")
    with pytest.raises(GartError, match=r"no `vertex` element, only face"):
        load_ply(path)
    path.write_text("ply\nformat ascii 1.0\nelement ver")
    with pytest.raises(GartError, match=r"s.ply cannot be read as PLY"):
        load_ply(path)
    save_ply(path, random_gaussians(5, 3))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(GartError, match=r"s.ply cannot be read as PLY"):
        load_ply(path)


def test_compressed_ply_is_refused_by_name(tmp_path):
    names = ["packed_position", "packed_rotation", "packed_scale", "packed_color"]
    path = write_ascii(tmp_path / "c.ply", names, [[1, 2, 3, 4]], "uint")
    with pytest.raises(GartError, match=r"c.ply is a compressed PLY.*uncompressed"):
        load_ply(path)


@pytest.mark.parametrize(("column", "value"), [(1, np.nan), (7, -np.inf), (6, np.nan)])
def test_values_that_are_not_finite_are_refused(tmp_path, column, value):
    rows = np.zeros((3, 14))
    rows[1, column] = value
    with pytest.raises(GartError, match=r"Gaussian 1 is not finite \(1 such"):
        load_ply(write_ascii(tmp_path / "n.ply", REQUIRED, rows.tolist()))
