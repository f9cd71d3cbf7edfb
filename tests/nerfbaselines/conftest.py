"""nerfbaselines' own commands, run in this process on a capture made here."""

import json
import os
import sys
from types import ModuleType

import pytest
import torch
from captures import ColmapCapture

from gart.evaluation.lpips import BACKBONES, _read_backbone, backbone_file

SETTINGS = ("--set", "iterations=12", "--set", "budget=150", "--set", "sh_every=4")


def torchvision_stand_in():
    """What nerfbaselines' LPIPS takes of torchvision, with the weights that gart finds."""

    def features(net):
        backbone = BACKBONES[net]
        layers, inputs = torch.nn.Sequential(), 3
        for i, (weight, bias) in enumerate(_read_backbone(net, backbone_file(net))):
            if i in backbone.pooled:
                layers.append(torch.nn.MaxPool2d(backbone.pool, 2))
            settings = (backbone.kernels[i], backbone.strides[i], backbone.pads[i])
            convolution = torch.nn.Conv2d(inputs, backbone.channels[i], *settings)
            convolution.weight.data, convolution.bias.data = weight, bias
            layers.append(convolution)
            layers.append(torch.nn.ReLU(inplace=True))
            inputs = backbone.channels[i]
        network = torch.nn.Module()
        network.features = layers
        return network

    models = ModuleType("torchvision.models")
    models.alexnet = lambda pretrained: features("alex")
    models.vgg16 = lambda pretrained: features("vgg")
    package = ModuleType("torchvision")
    package.models = models
    return {"torchvision": package, "torchvision.models": models}


@pytest.fixture(scope="session")
def nerfbaselines():
    """Run a command line of nerfbaselines; a failure raises."""
    from nerfbaselines.cli import main

    def run(*arguments):
        folder = os.getcwd()  # `train` changes it
        try:
            main(args=list(map(str, arguments)), standalone_mode=False)
        finally:
            os.chdir(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NERFBASELINES_NO_UPDATE_CHECK", "1")
        patch.setenv("NERFBASELINES_BACKEND", "python")
        for name, module in torchvision_stand_in().items():
            patch.setitem(sys.modules, name, module)
        yield run


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    """A COLMAP capture of ten photographs through a distorted lens."""
    folder = tmp_path_factory.mktemp("scene")
    lens = (60.0, 61.0, 32.5, 23.5, -0.08, 0.01, 0.001, -0.002)
    capture = ColmapCapture(folder, lens="OPENCV", size=(64, 48), params=lens)
    capture.write()
    # For both networks of LPIPS.
    info = {"loader": "colmap", "evaluation_protocol": "nerf", "scene": "tiny"}
    (folder / "nb-info.json").write_text(json.dumps(info))
    return folder


@pytest.fixture(scope="session")
def trained(nerfbaselines, scene, tmp_path_factory):
    """The output folder of `nerfbaselines train --method gart`."""
    output = tmp_path_factory.mktemp("trained")
    where = ("--data", scene, "--output", output)
    nerfbaselines("train", "--method", "gart", *where, *SETTINGS, "--save-iters", "6,12")
    return output
