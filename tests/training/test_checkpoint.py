import errno
import json

import pytest
import torch
from safetensors.torch import save_file

from gart.errors import GartError
from gart.training import checkpoint
from gart.training.checkpoint import State, checkpoints, load_checkpoint, save_checkpoint


def state(iteration: int) -> State:
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "rng": torch.arange(4, dtype=torch.uint8)}
    return State(tensors, {"iteration": iteration, "view_order": [2, 1], "config": {"seed": 3}})


def test_round_trip_keeps_the_last_few(tmp_path):
    for iteration in (5, 10, 100, 1500):
        path = save_checkpoint(tmp_path / "c", state(iteration), keep=2)
    kept = checkpoints(tmp_path / "c")
    assert kept[-1] == path
    assert [load_checkpoint(p).values["iteration"] for p in kept] == [100, 1500]
    assert len(list((tmp_path / "c").iterdir())) == 4
    loaded = load_checkpoint(path)
    for name, tensor in state(0).tensors.items():
        assert torch.equal(loaded.tensors[name], tensor)
        assert loaded.tensors[name].dtype == tensor.dtype
    assert loaded.values["view_order"] == [2, 1]


@pytest.mark.parametrize("which", ["save_file", "write_json"])
def test_a_failed_write_keeps_the_previous_checkpoint(tmp_path, monkeypatch, which):
    first = save_checkpoint(tmp_path, state(5), keep=1)

    def full(tensors, path, *_):
        if which == "save_file":
            path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, which, full)
    with pytest.raises(GartError, match=r"0000010\.json could not be written \(.*No space left"):
        save_checkpoint(tmp_path, state(10), keep=1)
    assert checkpoints(tmp_path) == [first]
    assert load_checkpoint(first).values["iteration"] == 5
    assert not [p for p in tmp_path.iterdir() if "tmp" in p.name]


def test_damaged_checkpoints_are_named(tmp_path):
    path = save_checkpoint(tmp_path, state(5), keep=1)
    tensors = path.with_suffix(".safetensors")
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-7])
    with pytest.raises(GartError, match=rf"^checkpoint {path} cannot be read .*--overwrite$"):
        load_checkpoint(path)
    tensors.write_bytes(whole)
    path.write_text("{")
    with pytest.raises(GartError, match="cannot be read"):
        load_checkpoint(path)
    path.write_text("[]")
    with pytest.raises(GartError, match=r"cannot be read .*it holds list"):
        load_checkpoint(path)
    path.write_text(json.dumps({"format": 99}))
    with pytest.raises(GartError, match="has format 99, this gart reads 1"):
        load_checkpoint(path)


def test_tensors_of_another_iteration_are_refused(tmp_path):
    older = save_checkpoint(tmp_path, state(5), keep=2)
    newer = save_checkpoint(tmp_path, state(10), keep=2)
    older.with_suffix(".safetensors").replace(newer.with_suffix(".safetensors"))
    with pytest.raises(
        GartError,
        match=rf"^checkpoint {newer} is of iteration 10, but its tensors are of iteration 5; ",
    ):
        load_checkpoint(newer)


def test_checkpoints_that_do_not_say_their_iteration_load(tmp_path):
    path = save_checkpoint(tmp_path, state(5), keep=1)
    save_file(state(5).tensors | {"a": torch.ones(1)}, path.with_suffix(".safetensors"))
    assert torch.equal(load_checkpoint(path).tensors["a"], torch.ones(1))
