import io
import json
import threading
import urllib.error
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gart.datasets import deepblending, load, scene_names
from gart.errors import GartError

VERSIONS = {"mipnerf360": "1", "tanksandtemples": "1", "deepblending": "1"}


@pytest.fixture
def offline(monkeypatch):
    """No network; returns the addresses asked for."""
    asked = []

    def refuse(request, *_, **__):
        asked.append(request.full_url)
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    return asked


@pytest.fixture
def archive(monkeypatch, colmap):
    """Serves an archive like tandt_db.zip; returns the paths asked for."""
    data, asked = io.BytesIO(), []
    with zipfile.ZipFile(data, "w") as file:
        for prefix in ("db/playroom", "db/drjohnson", "tandt/train"):
            scene = colmap(name=prefix)
            folder = scene.write(binary=True)
            for path in sorted(folder.rglob("*")):
                file.write(path, f"{prefix}/{path.relative_to(folder)}")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(data.getvalue())))
            self.end_headers()
            self.wfile.write(data.getvalue())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(
        deepblending, "URL", f"http://127.0.0.1:{server.server_address[1]}/tandt_db.zip"
    )
    yield asked
    server.shutdown()
    server.server_close()


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_deep_blending_takes_its_scene_out_of_the_archive(archive, tmp_path):
    cache = tmp_path / "cache"
    capture = load("playroom", cache=cache)
    assert archive == ["/tandt_db.zip"]
    assert (capture.name, len(capture.train), len(capture.test)) == ("playroom", 8, 2)
    assert capture.metadata["source"] == "deepblending/playroom"
    assert len(capture.points) == 20
    placed = cache / "deepblending/playroom"
    files = contents(placed)
    assert json.loads(files.pop("nb-info.json")) == {
        "id": "deepblending",
        "scene": "playroom",
        "loader": "colmap",
        "loader_kwargs": {"images_path": "images", "colmap_path": "sparse/0"},
        "evaluation_protocol": "default",
        "version": "1",
    }
    assert files == contents(tmp_path / "db/playroom")
    assert [p.name for p in (cache / "deepblending").iterdir()] == ["playroom"]
    again = load("deepblending/playroom", cache=cache)
    assert archive == ["/tandt_db.zip"]  # not asked again
    assert [v.name for v in again.test] == [v.name for v in capture.test]


def test_nerfbaselines_itself_loads_what_was_placed(archive, tmp_path):
    from nerfbaselines.datasets import download_dataset, load_dataset

    deepblending.register()
    download_dataset("external://deepblending/drjohnson", tmp_path / "placed")
    dataset = load_dataset(tmp_path / "placed", "train", load_features=False)
    assert len(dataset["image_paths"]) == 8
    assert dataset["metadata"]["id"] == "deepblending"


def test_a_broken_archive_leaves_nothing_behind(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile.ZipFile, "extract", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load("playroom", cache=tmp_path / "cache")
    assert list((tmp_path / "cache/deepblending").iterdir()) == []


def test_only_its_own_scenes(tmp_path):
    with pytest.raises(Exception, match="not a scene of deepblending; its scenes are drjohnson"):
        deepblending.download("deepblending/truck", str(tmp_path / "x"))


@pytest.mark.parametrize(
    "scene", [f"{dataset}/{scenes[i]}" for dataset, scenes in scene_names().items() for i in (0, 1)]
)
def test_offline_says_what_was_tried_and_what_to_do(offline, tmp_path, scene):
    with pytest.raises(GartError) as error:
        load(scene, cache=tmp_path)
    assert len(offline) == 1
    layout = "transforms_train.json" if scene.startswith("blender") else "images/ and sparse/0/"
    assert str(error.value) == (
        f"could not download {scene} from {offline[0]} (Name or service not known); fetch and "
        f"unpack it elsewhere and give the folder that holds {layout}, for example: "
        f"gart train path/to/{scene.split('/')[1]}"
    )
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("info", [None, "{}", '{"version": "0"}', "[]", "{"])
@pytest.mark.parametrize("dataset", [*VERSIONS])
def test_folders_placed_by_hand_are_left_alone(offline, colmap, dataset, info):
    name = scene_names()[dataset][0]
    folder = colmap(name=f"{dataset}/{name}").write()
    if info is not None:
        (folder / "nb-info.json").write_text(info)
    before = contents(folder)
    with pytest.raises(GartError) as error:
        load(name, cache=folder.parents[1])
    message = str(error.value)
    assert f"{folder} was not placed there by this downloader" in message
    assert f"use it directly with: gart train {folder}" in message
    assert contents(folder) == before
    assert offline == []
    if info != "[]" and info != "{":
        assert len(load(str(folder)).train) == 8  # the advice works


def test_mipnerf360_loads_offline_from_the_cache(offline, colmap):
    scene = colmap(name="mipnerf360/garden", images="images_4", model="sparse_4/0")
    folder = scene.write(binary=True)
    info = {
        "loader": "colmap",
        "loader_kwargs": {"images_path": "images_4", "colmap_path": "sparse_4/0"},
        "id": "mipnerf360",
        "scene": "garden",
        "downscale_factor": 4,
        "version": "1",
    }
    (folder / "nb-info.json").write_text(json.dumps(info))
    for split, numbers in (("train", range(3, 10)), ("test", range(3))):
        names = "".join(f"IMG_{i:03d}.png\n" for i in numbers)
        (folder / f"{split}_list.txt").write_text(names)
    for name in ("garden", "mipnerf360/garden"):
        capture = load(name, cache=folder.parents[1])
        assert (capture.name, len(capture.train), len(capture.test)) == ("garden", 7, 3)
        assert capture.metadata["source"] == "mipnerf360/garden"
    assert offline == []


def test_an_existing_folder_wins_over_a_name(offline, colmap, monkeypatch, tmp_path):
    folder = colmap(name="garden").write()
    monkeypatch.chdir(tmp_path)
    capture = load("garden", cache=tmp_path / "cache")
    assert capture.metadata["source"] == str(folder)
    assert offline == []
