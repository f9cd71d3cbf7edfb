import importlib
import json
from dataclasses import replace

import pytest
import torch

from gart.capture import View
from gart.errors import GartError, UsageError
from gart.evaluation import evaluate
from gart.evaluation.lpips import WeightsMissingError

# By name: as an attribute of the package, `evaluate` is the function.
evaluate_module = importlib.import_module("gart.evaluation.evaluate")


def red_view(name, camera, red):
    image = torch.zeros(camera.height, camera.width, 3, dtype=torch.uint8)
    image[..., 0] = red
    return View(name, camera, image)


def missing(*absent):
    class Network:
        source = "weights.pth"

        def __init__(self, net, device):
            if net in absent:
                raise WeightsMissingError(f"no {net} weights")
            self.value = {"alex": 0.25, "vgg": 0.5}[net]

        def __call__(self, image, photo, *, unscaled=False):
            return self.value / 5 if unscaled else self.value

    return Network


def test_result(gaussians, camera, rendered):
    # Rendered: 0.25 of red, 64 in 8 bits.
    views = [red_view("a.jpg", camera, 64 + 51), red_view("b.jpg", camera, 64 + 102)]
    seen = []
    result = evaluate(
        gaussians, views, metrics="psnr,ssim", report=lambda *arguments: seen.append(arguments)
    )
    error = 10 * torch.log10(torch.tensor(3.0)).item()  # one channel of three
    first, second = (record["psnr"] for record in result["per_image"])
    assert first == pytest.approx(13.9794 + error, abs=1e-3)
    assert second == pytest.approx(7.9588 + error, abs=1e-3)
    assert result["mean"]["psnr"] == pytest.approx((first + second) / 2)
    assert set(result["mean"]) == {"psnr", "ssim"}
    assert (result["gaussians"], result["images"], result["mode"]) == (2, 2, "rt")
    assert result["protocol"]["name"] == "3dgs"
    assert result["photographs"] == "as taken"
    assert 0 < result["render_seconds"] < result["seconds"]
    assert [(done, total, r["name"]) for done, total, r in seen] == [
        (1, 2, "a.jpg"),
        (2, 2, "b.jpg"),
    ]
    json.dumps(result, allow_nan=False)


def test_background_is_behind_both(gaussians, camera, rendered):
    image = torch.zeros(40, 50, 4, dtype=torch.uint8)
    image[..., 0], image[..., 3] = 128, 128
    result = evaluate(
        gaussians, [View("a", camera, image)], metrics=["psnr"], background=(0.0, 1.0, 0.0)
    )
    assert result["mean"]["psnr"] > 45
    black = evaluate(gaussians, [View("a", camera, image)], metrics=["psnr"])
    assert black["mean"]["psnr"] > 45


def test_lpips_means_the_protocols_network(gaussians, camera, rendered, monkeypatch):
    monkeypatch.setattr(evaluate_module, "Lpips", missing())
    views = [red_view("a", camera, 0)]
    three = evaluate(gaussians, views, metrics="lpips")
    alike = {"lpips_alex": 0.25, "lpips_vgg": 0.5}
    assert three["mean"] == {"lpips": 0.5, **alike, "lpips_3dgs": 0.1}
    assert three["lpips_weights"] == {"alex": "weights.pth", "vgg": "weights.pth"}
    other = evaluate(gaussians, views, metrics="lpips", protocol="nerfbaselines")
    assert other["mean"] == {"lpips": 0.25, **alike}
    assert three["unavailable"] == other["unavailable"] == {}


def test_absent_lpips_is_null_with_the_reason(gaussians, camera, rendered, monkeypatch):
    views = [red_view("a", camera, 0)]
    monkeypatch.setattr(evaluate_module, "Lpips", missing("vgg"))
    result = evaluate(gaussians, views)
    assert result["mean"]["lpips"] is result["mean"]["lpips_vgg"] is None
    assert result["mean"]["lpips_alex"] == 0.25
    assert result["per_image"][0]["lpips"] is None
    missing_ones = ("lpips", "lpips_vgg", "lpips_3dgs")
    assert result["unavailable"] == dict.fromkeys(missing_ones, "no vgg weights")
    other = evaluate(gaussians, views, protocol="nerfbaselines")
    assert other["mean"]["lpips"] == 0.25
    assert set(other["unavailable"]) == {"lpips_vgg"}
    monkeypatch.setattr(evaluate_module, "Lpips", missing("vgg", "alex"))
    assert set(evaluate(gaussians, views)["unavailable"]) == {*missing_ones, "lpips_alex"}
    assert evaluate(gaussians, views, metrics="psnr")["unavailable"] == {}


def test_masked_pixels_do_not_count(gaussians, camera, rendered):
    view = red_view("a", camera, 64 + 51)
    view.image[:, 10:] = 255
    view.mask = torch.zeros(40, 50, dtype=torch.bool)
    view.mask[:, :10] = True
    psnr = evaluate(gaussians, [view], metrics="psnr")["mean"]["psnr"]
    assert psnr == pytest.approx(13.9794 + 4.7712, abs=1e-3)
    view.mask[:] = False
    with pytest.raises(GartError, match=r"mask of a leaves no pixel"):
        evaluate(gaussians, [view], metrics="psnr")


def test_tilegs_says_that_photographs_were_undistorted(gaussians, camera, rendered):
    distorted = replace(camera, model="opencv", distortion=(-0.1,))
    views = [red_view("a", distorted, 64)]
    result = evaluate(gaussians, views, mode="tilegs", metrics="psnr")
    assert result["photographs"].startswith("undistorted")
    assert result["mean"]["psnr"] == float("inf")  # uniform photograph, borders masked
    assert evaluate(gaussians, views, metrics="psnr")["photographs"] == "as taken"
    assert (
        evaluate(gaussians, [red_view("a", camera, 64)], mode="tilegs")["photographs"] == "as taken"
    )


def test_both_modes_on_the_same_photographs(gaussians, camera, rendered):
    distorted = replace(camera, model="opencv", distortion=(-0.1,))
    views = [red_view("a", distorted, 64 + 51)]
    views[0].image[:, 30:] = 0  # so that undistortion changes the photograph
    options = {"metrics": "psnr", "undistorted": True}
    rt, tilegs = (evaluate(gaussians, views, mode=mode, **options) for mode in ("rt", "tilegs"))
    assert rt["mean"] == tilegs["mean"]
    assert rt["photographs"] == tilegs["photographs"]
    assert rt["photographs"].startswith("undistorted")
    assert [camera.model for _, camera in rendered] == ["pinhole", "pinhole"]
    assert evaluate(gaussians, views, metrics="psnr")["mean"] != rt["mean"]
    fisheye = replace(camera, model="opencv_fisheye", distortion=())
    with pytest.raises(GartError, match=r"tilegs renders pinhole images"):
        evaluate(gaussians, [red_view("a", fisheye, 0)], **options)


def test_pictures_are_what_was_compared(gaussians, camera, rendered):
    view = red_view("a", camera, 70)
    view.mask = torch.ones(40, 50, dtype=torch.bool)
    seen = []
    evaluate(gaussians, [view], metrics="psnr", pictures=lambda *picture: seen.append(picture))
    ((record, image, photo, mask),) = seen
    assert record["name"] == "a"
    assert (image.dtype, image[0, 0].tolist()) == (torch.uint8, [64, 0, 0])
    assert torch.equal(photo, view.image)
    assert mask.all()


def test_wrong_calls(gaussians, camera, rendered):
    with pytest.raises(GartError, match=r"no view to evaluate"):
        evaluate(gaussians, [])
    views = [red_view("a", camera, 0)]
    with pytest.raises(UsageError, match=r"--protocol"):
        evaluate(gaussians, views, protocol="x")
    with pytest.raises(UsageError, match=r"--metrics"):
        evaluate(gaussians, views, metrics="x")
    with pytest.raises(UsageError, match=r"--mode"):
        evaluate(gaussians, views, mode="x")
