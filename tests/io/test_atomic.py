import errno
import json

import pytest
import torch

import gart.io.ply
from gart.io.atomic import atomic, require_writable, write_json
from gart.io.ply import load_ply, save_ply
from gart.scene import Gaussians


def test_failing_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        assert temporary.suffix == ".json"
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_json_that_cannot_be_written_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert path.read_text() == "old"


def test_failing_ply_keeps_the_old_file(tmp_path, monkeypatch):
    zeros = [torch.zeros(shape) for shape in [(1, 3), (1, 4), (1, 3), (1,), (1, 1, 3)]]
    save_ply(tmp_path / "a.ply", Gaussians(*zeros))

    class Full:
        def __init__(self, *args, **keywords): ...

        def write(self, path):
            with open(path, "w") as file:
                file.write("ply")
            raise OSError("no space left")

    monkeypatch.setattr(gart.io.ply, "PlyData", Full)
    with pytest.raises(OSError, match="no space"):
        save_ply(tmp_path / "a.ply", Gaussians(*zeros))
    monkeypatch.undo()
    assert len(load_ply(tmp_path / "a.ply")) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_json_holds_no_infinities(tmp_path):
    write_json(tmp_path / "x" / "a.json", {1: (float("inf"), float("nan"), 2.5), "p": tmp_path})
    assert json.loads((tmp_path / "x" / "a.json").read_text()) == {
        "1": [None, None, 2.5],
        "p": str(tmp_path),
    }


def test_a_name_of_the_greatest_length(tmp_path):
    path = tmp_path / ("x" * 250 + ".json")
    write_json(path, {})
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_full_disk_names_the_file(tmp_path):
    path = tmp_path / "a.npy"
    with pytest.raises(OSError, match="full") as error, atomic(path):
        raise OSError(errno.ENOSPC, "disk full")
    assert error.value.filename == str(path)
    # numpy says only how much is missing.
    with pytest.raises(OSError, match="is the disk full") as error, atomic(path):
        raise OSError("10 requested and 3 written")
    assert error.value.filename == str(path)


def test_what_cannot_be_written_is_known_before(tmp_path):
    require_writable(tmp_path / "new/a.json")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"Not a directory|File exists") as error:
        require_writable(tmp_path / "file/a.json")
    assert error.value.filename == str(tmp_path / "file/a.json")
