import csv
import json
import shutil

import pytest

from gart.cli.eval import _origin
from gart.datasets import load


def test_eval_prints_and_writes_what_it_measured(gart, there, tmp_path):
    for mode, protocol in (("rt", "3dgs"), ("tilegs", "nerfbaselines")):
        file = tmp_path / f"{mode}.json"
        line = ["eval", "demo", "--mode", mode, "--protocol", protocol, "--metrics", "psnr,ssim"]
        code, out, _ = gart(*line, "--json", str(file))
        result = json.loads(file.read_text())
        assert code == 0
        assert result == json.loads((there / "runs/demo/eval.json").read_text())
        assert (result["mode"], result["protocol"]["name"]) == (mode, protocol)
        assert set(result["mean"]) == {"psnr", "ssim"}
        assert f"\npsnr       {result['mean']['psnr']:.2f} dB\n" in out
        assert f"\nssim       {result['mean']['ssim']:.4f}\n" in out


def test_eval_says_why_a_metric_is_missing(gart, there, monkeypatch):
    def evaluate(*args, **keywords):
        return {
            "mode": "rt",
            "protocol": {"name": "3dgs"},
            "photographs": "as taken",
            "gaussians": 1,
            "images": 1,
            "mean": {"lpips": None},
            "unavailable": {"lpips": "no weights"},
        }

    monkeypatch.setattr("gart.evaluation.evaluate", evaluate)
    code, out, _ = gart("eval", "demo")
    assert code == 0
    assert "\nlpips      not measured: no weights\n" in out


def test_both_modes_say_what_the_rasterizer_loses(gart, there, tmp_path):
    file = tmp_path / "both.json"
    line = ["eval", "demo", "--mode", "tilegs, rt", "--metrics", "psnr", "--json", str(file)]
    code, out, _ = gart(*line)
    rt, tilegs = json.loads(file.read_text())
    assert code == 0
    assert (rt["run"], rt["mode"], tilegs["mode"]) == ("runs/demo", "rt", "tilegs")
    loss = tilegs["mean"]["psnr"] - rt["mean"]["psnr"]
    assert f"\ntilegs against rt: psnr {loss:+.2f} dB\n" in out
    written = json.loads((there / "runs/demo/eval.json").read_text())
    assert written["mean"] == rt["mean"]
    assert written["other_modes"]["tilegs"]["mean"] == tilegs["mean"]
    assert written["other_modes"]["tilegs"]["difference"]["psnr"] == pytest.approx(loss)


def test_several_runs_make_one_table_and_a_report(gart, there, tmp_path):
    # A run on a scene that the paper has, as far as its config.yaml says.
    garden = tmp_path / "garden"
    shutil.copytree("runs/demo", garden)
    config = (garden / "config.yaml").read_text()
    (garden / "config.yaml").write_text(config.replace("source: demo", "source: mipnerf360/garden"))
    capture = load("demo", downscale=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gart.datasets.load", lambda source, **options: capture)
        line = [
            "eval",
            "demo",
            str(garden),
            "--metrics",
            "psnr,ssim",
            "--report",
            str(tmp_path / "r"),
        ]
        tables = [tmp_path / f"t{suffix}" for suffix in (".md", ".csv", ".json")]
        code, out, err = gart(*line, *(part for t in tables for part in ("--table", str(t))))
    assert (code, err) == (0, "")
    text = tables[0].read_text()
    assert out.endswith(text)
    rows = list(csv.DictReader(tables[1].open()))
    assert [(row["dataset"], row["scene"], row["method"]) for row in rows[:3]] == [
        ("", "demo", "gart rt"),
        ("mipnerf360", "garden", "gart rt"),
        ("mipnerf360", "mean of 9", "3DGART 1M"),
    ]
    assert rows[0]["psnr"] == rows[1]["psnr"]
    assert rows[1]["gpu"] == "CPU"
    assert float(rows[1]["train_seconds"]) > 0
    assert rows[2]["source"] == "arXiv 2608.17298"
    assert json.loads(tables[2].read_text())["rows"][2]["psnr"] == 27.31
    page = (tmp_path / "r/index.html").read_text()
    assert page.count('<div class="view">') == 2 * len(capture.test)


def test_only_usual_folders_make_a_published_data_set():
    assert _origin("mipnerf360/garden") == ("mipnerf360", "garden")
    assert _origin("/data/360_v2/garden") == ("mipnerf360", "garden")
    assert _origin("/data/tandt/train") == ("tanksandtemples", "train")
    assert _origin("/my/photographs/train") == ("", "train")
    assert _origin("/my/photographs/holiday") == ("", "holiday")


def test_wrong_eval_options(gart, there, tmp_path):
    for option, message in (
        (("--mode", "rt,raster"), "--mode has 'raster'; expected rt, tilegs or rt,tilegs"),
        (("--mode", "rt,rt"), "--mode has 'rt'"),
        (("--table", str(tmp_path)), "--table"),
        (("--json", str(tmp_path)), "--json"),
        (("--report", __file__), "--report"),
        (("--table", "t.txt"), "--table is t.txt; expected a name that ends in .md, .csv, .json"),
    ):
        code, _, err = gart("eval", "demo", *option)
        assert code == 2
        assert message in err


def test_a_run_that_fails_is_left_out_of_the_table(gart, there, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree("runs/demo", broken)
    (broken / "point_cloud.ply").unlink()
    (there / "runs/demo/eval.json").unlink(missing_ok=True)
    table, numbers = tmp_path / "t.csv", tmp_path / "n.json"
    line = ["eval", str(broken), "demo", "--metrics", "psnr", "--table", str(table)]
    code, _, err = gart(*line, "--json", str(numbers))
    assert code == 1
    assert f"failed {broken}: {broken} has no point_cloud.ply" in err
    assert err.endswith(
        "1 of 2 runs failed and are left out, as said above; mend them and run the command again\n"
    )
    assert [row["scene"] for row in csv.DictReader(table.open())] == ["demo"]
    assert [result["run"] for result in json.loads(numbers.read_text())] == ["runs/demo"]
    assert (there / "runs/demo/eval.json").is_file()


def test_a_run_that_cannot_be_written_to_still_gives_its_numbers(gart, there, tmp_path):
    run = tmp_path / "run"
    shutil.copytree("runs/demo", run)
    (run / "eval.json").unlink(missing_ok=True)
    (run / "eval.json").mkdir()
    code, _, err = gart("eval", str(run), "--metrics", "psnr", "--json", str(tmp_path / "n.json"))
    assert code == 1
    assert err.endswith(
        f"error: {run}/eval.json: Is a directory; give another path, or mend this one\n"
    )
    assert json.loads((tmp_path / "n.json").read_text())["images"] == 5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "source: demo",
            "source: /gone/scene",
            "was trained on /gone/scene, which is gone",
        ),
        ("background:\n  - 0.0\n", "background:\n  - 7\n", "background under dataset is [7, "),
        ("sh: ray", "sh: what", "sh is 'what'; expected one of ray"),
        ("gart:", "[" * 3000 + "gart:", "is not valid YAML"),
    ],
)
def test_a_damaged_config_is_named(gart, there, tmp_path, old, new, message):
    run = tmp_path / "run"
    shutil.copytree("runs/demo", run)
    text = (run / "config.yaml").read_text()
    assert old in text
    (run / "config.yaml").write_text(text.replace(old, new))
    code, _, err = gart("eval", str(run), "--metrics", "psnr")
    assert code == 1
    assert message in err
    assert "--debug" not in err


def test_odd_records_of_the_training_leave_cells_out(gart, there, tmp_path):
    run = tmp_path / "run"
    shutil.copytree("runs/demo", run)
    (run / "metrics.jsonl").write_text('{"seconds": "x"}\n')
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("gpu: null", "gpu: 3"))
    table = tmp_path / "t.csv"
    assert gart("eval", str(run), "--metrics", "psnr", "--table", str(table))[0] == 0
    (row,) = csv.DictReader(table.open())
    assert (row["gpu"], row["train_seconds"]) == ("3", "")
