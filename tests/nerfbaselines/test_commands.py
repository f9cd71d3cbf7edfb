"""What `nerfbaselines --method gart` writes, and that both tools measure the same."""

import base64
import json
import struct
import subprocess
import sys
import tarfile
import threading
import urllib.request
from importlib.metadata import entry_points

import numpy as np
import pytest
import torch

from gart.cli.device import choose_device
from gart.datasets import load
from gart.evaluation import evaluate, render_image
from gart.io import load_ply, read_image, save_trajectory

pytest.importorskip("nerfbaselines", reason="the plug-in needs nerfbaselines")


def raw(results, metric):
    data = base64.b64decode(results["metrics_raw"][metric])
    return struct.unpack(f"<{len(data) // 4}f", data)


def test_the_entry_point_is_light_and_registers_the_method():
    (entry,) = [e for e in entry_points(group="nerfbaselines.specs") if e.name == "gart"]
    assert entry.value == "gart.nerfbaselines.spec"
    probe = (
        "import sys, nerfbaselines\n"
        "assert 'gart' in nerfbaselines.get_supported_methods('python')\n"
        "assert 'deepblending' in nerfbaselines.get_supported_datasets()\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_train_writes_checkpoints_predictions_and_results(trained):
    info = json.loads((trained / "checkpoint-12/nb-info.json").read_text())
    assert (info["method"], info["num_iterations"]) == ("gart", 12)
    assert info["hparams"]["budget"] == 150
    assert info["config_overrides"]["iterations"] == "12"
    assert len(load_ply(trained / "checkpoint-12/point_cloud.ply")) <= 150
    results = json.loads((trained / "results-12.json").read_text())
    assert set(results["metrics"]) >= {"psnr", "ssim", "lpips", "lpips_vgg"}
    assert (trained / "output.zip").is_file()


def test_predictions_carry_the_checksum_of_their_checkpoint(trained):
    from nerfbaselines.io import get_checkpoint_sha

    with tarfile.open(trained / "predictions-12.tar.gz") as archive:
        info = json.load(archive.extractfile("info.json"))
    assert info["checkpoint_sha256"] == get_checkpoint_sha(str(trained / "checkpoint-12"))


def test_gart_eval_measures_what_nerfbaselines_evaluate_measures(
    nerfbaselines, trained, scene, tmp_path
):
    predictions, file = tmp_path / "predictions", tmp_path / "results.json"
    checkpoint = trained / "checkpoint-12"
    nerfbaselines("render", "--checkpoint", checkpoint, "--data", scene, "--output", predictions)
    nerfbaselines("evaluate", predictions, "--output", file)
    theirs = json.loads(file.read_text())
    scene_on_device = load_ply(checkpoint / "point_cloud.ply").to(choose_device("auto"))
    ours = evaluate(scene_on_device, load(str(scene)).test, protocol="nerfbaselines")
    for metric in ("psnr", "ssim", "lpips", "lpips_vgg"):
        values = [record[metric] for record in ours["per_image"]]
        assert values == pytest.approx(raw(theirs, metric), abs=1e-4)
        assert ours["mean"][metric] == pytest.approx(theirs["metrics"][metric], abs=1e-4)


def test_predictions_are_the_tracers_images(nerfbaselines, trained, scene, tmp_path):
    checkpoint = trained / "checkpoint-12"
    nerfbaselines("render", "--checkpoint", checkpoint, "--data", scene, "--output", tmp_path / "p")
    gaussians = load_ply(checkpoint / "point_cloud.ply").to(choose_device("auto"))
    for view in load(str(scene)).test:
        image = (render_image(gaussians, view.camera) * 255).clamp(0, 255).to(torch.uint8)
        assert torch.equal(read_image(tmp_path / "p/color" / view.name), image.cpu())


def test_a_resumed_run_ends_as_the_whole_one(nerfbaselines, trained, scene, tmp_path):
    half = trained / "checkpoint-6"
    line = ("--method", "gart", "--checkpoint", half, "--data", scene, "--output", tmp_path)
    nerfbaselines("train", *line, "--eval-all-iters", "99", "--eval-few-iters", "99")
    whole = load_ply(trained / "checkpoint-12/point_cloud.ply")
    resumed = load_ply(tmp_path / "checkpoint-12/point_cloud.ply")
    for name, values in whole.tensors().items():
        assert torch.equal(resumed.tensors()[name], values), name


def test_render_trajectory(nerfbaselines, trained, scene, tmp_path):
    cameras = [view.camera.undistorted() for view in load(str(scene)).train[:2]]
    save_trajectory(tmp_path / "path.json", cameras)
    where = ("--trajectory", tmp_path / "path.json", "--output", tmp_path / "frames")
    names = "color,depth,accumulation"
    checkpoint = ("--checkpoint", trained / "checkpoint-12")
    nerfbaselines("render-trajectory", *checkpoint, *where, "--output-names", names)
    for name in names.split(","):
        assert len(list((tmp_path / "frames" / name).glob("*.png"))) == 2
    gaussians = load_ply(trained / "checkpoint-12/point_cloud.ply").to(choose_device("auto"))
    image = (render_image(gaussians, cameras[1]) * 255).clamp(0, 255).to(torch.uint8)
    assert torch.equal(read_image(tmp_path / "frames/color/00001.png"), image.cpu())


def test_viewer_renders(nerfbaselines, trained):
    from nerfbaselines import build_method_class, get_method_spec
    from nerfbaselines.viewer import Viewer

    with build_method_class(get_method_spec("gart"), backend="python") as method_class:
        method = method_class(checkpoint=str(trained / "checkpoint-12"))
        with Viewer(model=method, port=0) as viewer:
            request = {
                "image_size": [32, 24],
                "pose": np.eye(3, 4).flatten().tolist(),
                "intrinsics": [30, 30, 16, 12],
                "output_type": "depth",
                "lossless": True,
            }
            answer = {}

            def ask():
                address = f"http://localhost:{viewer.port}/render"
                headers = {"Content-Type": "application/json"}
                body = json.dumps(request).encode()
                with urllib.request.urlopen(
                    urllib.request.Request(address, body, headers), timeout=30
                ) as reply:
                    answer["data"] = reply.read()

            asking = threading.Thread(target=ask)
            asking.start()
            while asking.is_alive():
                viewer.update()
                asking.join(0.01)
    assert answer["data"].startswith(b"\x89PNG")
