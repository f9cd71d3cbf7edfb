import csv
import io
import json
import os
import re

import pytest

from gart.errors import UsageError
from gart.evaluation.table import Row, Table, difference, row_of


def row(scene="garden", psnr=25.0, **changes):
    values = {
        "dataset": "mipnerf360",
        "scene": scene,
        "method": "gart rt",
        "psnr": psnr,
        "ssim": 0.8,
        "lpips": 0.2,
        "lpips_3dgs": 0.1,
        "gaussians": 1_000_000,
        "train_seconds": 600.0,
        "gpu": "H200",
        "images": 24,
        "protocol": "3dgs",
    }
    return Row(**{**values, **changes})


def test_rows_stand_by_data_set_with_means_and_published_ones():
    own = row("holiday", dataset="")
    table = Table([row("garden", 25.0), own, row("room", 30.0, gaussians=500_000, gpu="H100")])
    names = [(r.dataset, r.scene, r.method) for r in table.rows]
    assert names == [
        ("mipnerf360", "garden", "gart rt"),
        ("mipnerf360", "room", "gart rt"),
        ("mipnerf360", "mean of 2", "gart rt"),
        *(("mipnerf360", "mean of 9", m) for m in ("3DGART 1M", "3DGART 2M", "3DGRT", "3DGS")),
        ("", "holiday", "gart rt"),
    ]
    mean = table.rows[2]
    assert (mean.psnr, mean.gaussians, mean.images, mean.gpu) == (27.5, 750_000, 48, None)
    assert table.rows[3].lpips is None  # published values are of the other scale
    assert table.rows[3].lpips_3dgs == 0.239


def test_no_mean_of_what_does_not_belong_together():
    rows = [row("garden"), row("room", method="gart tilegs"), row("stump", protocol="other")]
    assert not any(r.scene == "mean of 2" for r in Table(rows).rows)
    twice = Table([row("garden"), row("garden"), row("room")])
    assert not any(r.scene.startswith("mean of 3") for r in twice.rows)
    partly = Table([row("garden"), row("room", lpips=None)]).rows[2]
    assert (partly.psnr, partly.lpips) == (25.0, None)


def test_markdown():
    text = Table([row("a|b", 24.126, dataset="", lpips=None, train_seconds=59.6)]).markdown()
    assert text == (
        "| scene | method  | PSNR  | SSIM  | LPIPS 3DGS | Gaussians | training | trained on "
        "| protocol |\n"
        "| ----- | ------- | ----- | ----- | ---------- | --------- | -------- | ---------- "
        "| -------- |\n"
        "| a\\|b  | gart rt | 24.13 | 0.800 | 0.100      | 1.00M     | 1m00s    | H200       "
        "| 3dgs     |\n"
    )


def test_notes_warn_where_rows_do_not_compare():
    def starts(*rows):
        return [note.split()[0] for note in Table(rows).notes()]

    assert starts(row(dataset="", lpips=None)) == []
    assert starts(row()) == ["LPIPS"]
    assert starts(row(protocol="nerfbaselines", lpips=None)) == ["Published"]
    assert starts(row("train", dataset="tanksandtemples", lpips=None)) == ["Tanks"]
    table = Table([row(dataset="", lpips=None, undistorted=True)])
    assert table.cells()[1][0][1] == "gart rt (u)"
    assert table.notes()[0].startswith("(u): compared with undistorted photographs")


def test_csv_and_json_hold_every_value(tmp_path):
    table = Table([row(psnr=float("inf"))])
    table.write(tmp_path / "t.csv")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert len(lines) == 5
    assert (lines[0]["scene"], lines[0]["psnr"], lines[0]["source"]) == ("garden", "inf", "")
    assert (lines[1]["images"], lines[1]["train_seconds"]) == ("", "755")
    table.write(tmp_path / "new" / "t.json")
    value = json.loads((tmp_path / "new" / "t.json").read_text())
    assert value["rows"][0]["psnr"] is None  # JSON has no infinity
    assert value["rows"][4]["gaussians"] == 3_310_000
    assert value["notes"] == table.notes()
    with pytest.raises(UsageError, match=r"--table is t.html; expected a name that ends in .md"):
        table.write(tmp_path.relative_to(tmp_path) / "t.html")


def test_row_of_a_result():
    result = {
        "mode": "tilegs",
        "protocol": {"name": "3dgs"},
        "photographs": "undistorted, as tilegs renders pinhole images",
        "gaussians": 7,
        "images": 3,
        "mean": {"psnr": 20.0, "ssim": 0.5},
    }
    made = row_of(result, "", "fox", 12.5, "CPU")
    assert made == Row(
        "",
        "fox",
        "gart tilegs",
        psnr=20.0,
        ssim=0.5,
        gaussians=7,
        train_seconds=12.5,
        gpu="CPU",
        images=3,
        protocol="3dgs",
        undistorted=True,
    )


def test_difference():
    first = {"mean": {"psnr": 25.0, "ssim": 0.8, "lpips": None, "x": float("inf")}}
    other = {"mean": {"psnr": 24.5, "ssim": 0.9, "lpips": 0.1, "x": 1.0}}
    assert difference(first, other) == {"psnr": -0.5, "ssim": pytest.approx(0.1)}


def test_scenes_of_any_name(tmp_path):
    table = Table([row(os.fsdecode(b"a|b\nc\xff"), dataset="")])
    for suffix in (".md", ".csv", ".json"):
        table.write(tmp_path / f"t{suffix}")
    head, _, line, *_ = (tmp_path / "t.md").read_text().split("\n")
    assert r"| a\|b c\udcff | gart rt" in line
    assert len(re.split(r"(?<!\\)\|", line)) == len(head.split("|"))
