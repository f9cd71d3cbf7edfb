import hashlib
import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
from captures import ColmapCapture
from file_server import FileServer

from gart.datasets import downloads, registry, scene_names
from gart.datasets.registry import DATASETS, Archive

COMMANDS = ["list", "info", "download", "check"]
PROBE = """
import sys
from gart.cli.app import run
code = run(sys.argv[1:])
heavy = {"torch", "nerfbaselines", "cv2", "numpy", "rich", "pydantic"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else code)
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves playroom of Deep Blending, and LPIPS weights."""
    folder = ColmapCapture(tmp_path / "source").write(binary=True)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, f"db/playroom/{path.relative_to(folder).as_posix()}")
        file.writestr("db/drjohnson/large.bin", bytes(3_000_000))
    server = FileServer({"/a.zip": data.getvalue(), "/net.pth": b"weights"})
    archive = Archive(f"{server.url}/a.zip", "zip", 650_000_000)
    fake = replace(DATASETS["deepblending"], archive=lambda scene: archive)
    monkeypatch.setitem(DATASETS, "deepblending", fake)
    sha256 = hashlib.sha256(b"weights").hexdigest()
    weights = (Archive(f"{server.url}/net.pth", "file", 7, sha256),)
    monkeypatch.setattr(registry, "LPIPS_FILES", weights)
    monkeypatch.setattr(downloads, "LPIPS_FILES", weights)
    monkeypatch.setattr("gart.datasets.fetch.PAUSE", 0.0)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GART_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_imports_nothing_slow(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "data", *command, "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: {' '.join(['gart', 'data', *command])} [OPTIONS]")


def test_list_names_everything_with_size_licence_and_source(gart, cache):
    (cache / "mipnerf360/garden").mkdir(parents=True)
    code, out, err = gart("data", "list")
    assert (code, err) == (0, "")
    words = set(out.split())
    for dataset, scenes in scene_names().items():
        assert words.issuperset([f"{dataset}:", *scenes, DATASETS[dataset].homepage])
        assert f"licence  {DATASETS[dataset].licence}" in out
    assert "size     a part of 12.50 GB" in out
    assert "lpips: " in out
    assert [line for line in out.splitlines() if line.startswith("  there")] == [
        f"  there    {cache / 'mipnerf360/garden'}"
    ]


def test_info_asks_the_server_for_the_scenes_share(gart, server, cache):
    code, out, err = gart("data", "info", "playroom")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "deepblending/playroom: Deep Blending, as in the 3DGS paper",
        f"  source   {server.url}/a.zip",
        "  size     0.00 GB to download, 0.00 GB on disk",
        "  licence  see https://github.com/Phog/DeepBlending",
        "  authors  https://repo-sam.inria.fr/fungraph/3d-gaussian-splatting",
        f"  folder   {cache}/deepblending/playroom",
    ]


def test_info_without_a_server_says_what_is_recorded(gart, server):
    server.close()
    assert "  size     a part of 0.65 GB\n" in gart("data", "info", "playroom")[1]
    code, out, _ = gart("data", "info", "lpips")
    assert code == 0
    assert f"source   {server.url}/net.pth, 0.00 GB (the server does not answer)" in out


def test_download_shows_the_terms_first_and_only_once_downloads(gart, server, cache):
    folder = cache / "deepblending/playroom"
    code, out, err = gart("data", "download", "playroom")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[3].startswith("  licence  see https://github.com/Phog")
    assert lines[-1] == f"placed {folder}"
    assert any(line.startswith("downloading ") for line in lines)
    assert (folder / "nb-info.json").is_file()
    code, out, _ = gart("data", "download", "playroom")
    assert (code, out.splitlines()[-1]) == (0, f"deepblending/playroom is there already: {folder}")


def test_download_to_a_folder_and_to_another_cache(gart, server, tmp_path, cache):
    code, out, _ = gart("data", "download", "playroom", "--to", str(tmp_path / "here"))
    assert (code, out.splitlines()[-1]) == (0, f"placed {tmp_path / 'here'}")
    assert (tmp_path / "here/images/IMG_000.png").is_file()
    code, _, err = gart("data", "download", "playroom", "--to", str(tmp_path / "here"))
    assert code == 2
    assert "exists and is not empty" in err
    assert gart("data", "download", "playroom", "--cache", str(tmp_path / "c"))[0] == 0
    assert (tmp_path / "c/deepblending/playroom/sparse/0/cameras.bin").is_file()
    assert not cache.exists()


def test_a_folder_placed_by_hand_is_named(gart, server, cache):
    ColmapCapture(cache / "deepblending/playroom").write()
    code, _, err = gart("data", "download", "playroom")
    assert code == 1
    assert "was not placed there by this downloader" in err


def test_an_interrupted_download_says_how_to_go_on(gart, server, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gart.datasets.unpack._unpack_zip", interrupt)
    code, _, err = gart("data", "download", "playroom")
    assert (code, err) == (130, "error: interrupted; the same command goes on\n")


def test_the_lpips_weights(gart, server, tmp_path, monkeypatch):
    monkeypatch.setenv("GART_LPIPS_WEIGHTS", str(tmp_path / "weights"))
    code, out, err = gart("data", "download", "lpips")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"placed {tmp_path / 'weights'}"
    assert (tmp_path / "weights/net.pth").read_bytes() == b"weights"
    code, out, _ = gart("data", "download", "lpips", "--to", str(tmp_path / "w"))
    assert f"set GART_LPIPS_WEIGHTS={tmp_path / 'w'} for gart eval to find them" in out


@pytest.mark.parametrize(
    ("scene", "message"),
    [("demo", "demo is built in and needs no download"), ("gardn", "did you mean garden")],
)
def test_names_that_are_none(gart, scene, message):
    for command in ("info", "download"):
        code, _, err = gart("data", command, scene)
        assert code == 2
        assert message in err


def test_check(gart, tmp_path):
    folder = ColmapCapture(tmp_path / "good").write()
    code, out, err = gart("data", "check", str(folder), "--json", str(tmp_path / "good.json"))
    assert (code, err) == (0, "")
    assert "ok  8 photographs to train on, 2 held out, 20 points to start from" in out
    written = json.loads((tmp_path / "good.json").read_text())
    assert written["ok"] is True
    assert written["checks"][0]["value"] == "colmap, 10 posed photographs"
    (folder / "images/IMG_003.png").write_bytes(b"no image")
    code, out, err = gart("data", "check", str(folder), "--json", str(tmp_path / "bad.json"))
    assert (code, err) == (1, "")
    assert "1 of 10 cannot be used: IMG_003.png" in out
    assert json.loads((tmp_path / "bad.json").read_text())["ok"] is False
    assert gart("data", "check", str(tmp_path / "nothing"))[0] == 2
