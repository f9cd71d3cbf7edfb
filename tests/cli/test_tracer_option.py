"""`--tracer`: the same images and training by the tree as by the tile lists."""

import json

import cv2
import numpy as np
import yaml

from gart.io import RunFolder

TINY = ("--iterations", "3", "--budget", "200", "--downscale", "4", "--device", "cpu")


def test_renders_the_same_images(gart, there):
    for tracer in ("tiles", "bvh"):
        assert gart("render", "demo", "--tracer", tracer, "--output", f"by_{tracer}")[0] == 0
    files = sorted(path.relative_to(there / "by_bvh") for path in there.glob("by_bvh/**/*.png"))
    assert files
    for file in files:
        tiles, bvh = (cv2.imread(str(there / f"by_{t}" / file)) for t in ("tiles", "bvh"))
        assert np.abs(tiles.astype(int) - bvh).max() <= 1


def test_evaluates_alike(gart, there):
    found = []
    for tracer in ("tiles", "bvh"):
        assert gart("eval", "demo", "--metrics", "psnr", "--tracer", tracer)[0] == 0
        found.append(json.loads((there / "runs/demo/eval.json").read_text())["mean"]["psnr"])
    assert abs(found[0] - found[1]) < 0.01


def test_trains(gart, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    losses = []
    for tracer in ("tiles", "bvh"):
        assert gart("train", "demo", *TINY, "--out", tracer, "--tracer", tracer)[0] == 0
        config = yaml.safe_load((tmp_path / tracer / "config.yaml").read_text())
        assert config["training"]["tracer"] == tracer
        losses.append(RunFolder(tmp_path / tracer).read_metrics()[-1]["loss"])
    assert abs(losses[0] - losses[1]) < 1e-3 * losses[0]


def test_is_refused_where_no_rays_are_traced(gart, there):
    for command in ("render", "eval"):
        code, _, err = gart(command, "demo", "--mode", "tilegs", "--tracer", "bvh")
        assert code == 2
        assert "--tracer bvh traces rays and --mode tilegs has none; use --mode rt" in err
