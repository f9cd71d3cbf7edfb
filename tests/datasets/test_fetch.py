import base64
import hashlib
import http.client
import io
import urllib.error
import zipfile

import numpy as np
import pytest

from gart.datasets import remote_file
from gart.datasets.fetch import RETRIES, download
from gart.datasets.registry import Archive
from gart.datasets.remote_file import RemoteFile, WholeOnlyError
from gart.errors import GartError

CONTENT = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()
PATH = "/data/file.bin"


@pytest.fixture
def server(serve):
    return serve({PATH: CONTENT})


def fetch(server, folder, sha256="", path=PATH):
    """What `download` reports."""
    seen = []
    archive = Archive(server.url + path, "file", sha256=sha256)
    download(archive, folder / "file.bin", lambda done, total: seen.append((done, total)))
    return seen


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole(server, tmp_path):
    seen = fetch(server, tmp_path, hashlib.sha256(CONTENT).hexdigest()[:8])
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["file.bin"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_broken_connection_goes_on_where_it_broke(server, tmp_path):
    server.break_after, server.breaks = 1_200_000, 2
    fetch(server, tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == ["", "bytes=1200000-", "bytes=2400000-"]
    assert server.sent == len(CONTENT)


def test_a_later_call_goes_on_where_an_earlier_one_was_stopped(server, tmp_path):
    def stop(done, total):
        if done > 1_000_000:
            raise KeyboardInterrupt

    archive = Archive(server.url + PATH, "file")
    with pytest.raises(KeyboardInterrupt):
        download(archive, tmp_path / "file.bin", stop)
    assert names(tmp_path) == ["file.bin.part", "file.bin.part.json"]
    begun = (tmp_path / "file.bin.part").stat().st_size
    assert begun > 0
    fetch(server, tmp_path)
    assert server.asked[-1] == (PATH, f"bytes={begun}-")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["file.bin"]


def test_a_file_that_changed_meanwhile_starts_over(server, tmp_path):
    server.break_after, server.errors = 1_200_000, []
    server.breaks = 1

    def change(done, total):
        server.files[PATH] = CONTENT[::-1]

    download(Archive(server.url + PATH, "file"), tmp_path / "file.bin", change)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("change", [{"ranges": False}, {"validator": None}])
def test_servers_that_cannot_resume_send_it_again(server, tmp_path, change):
    for name, value in change.items():
        setattr(server, name, value)
    server.break_after = 1_200_000
    fetch(server, tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_what_was_complete_but_not_placed_is_not_asked_for_again(server, tmp_path):
    fetch(server, tmp_path)
    (tmp_path / "file.bin").rename(tmp_path / "file.bin.part")
    notes = '{"url": "%s", "validator": "x", "size": %d, "digests": {}}'
    (tmp_path / "file.bin.part.json").write_text(notes % (server.url + PATH, len(CONTENT)))
    server.asked.clear()
    fetch(server, tmp_path)
    assert server.asked == []
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_server_errors_pass_and_refusals_do_not(server, tmp_path):
    server.break_after = 1_200_000
    server.errors = []

    def fail_next(done, total):
        if done == 1_048_576:
            server.errors = [503, 500]

    download(Archive(server.url + PATH, "file"), tmp_path / "file.bin", fail_next)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(server, tmp_path / "other", path="/nothing")
    assert names(tmp_path / "other") == []


def test_a_server_that_stays_broken_is_given_up(server, tmp_path):
    server.break_after, server.breaks = 1_048_576, 1
    with pytest.raises(urllib.error.HTTPError, match="503"):
        download(
            Archive(server.url + PATH, "file"),
            tmp_path / "file.bin",
            lambda done, total: server.errors.extend([503] * 20),
        )
    assert len(server.asked) == 1 + RETRIES
    assert "file.bin" not in names(tmp_path)


@pytest.mark.parametrize("source", ["registry", "md5", "redirect"])
def test_damaged_files_are_refused_and_removed(server, tmp_path, source):
    path, sha256 = PATH, ""
    if source == "registry":
        sha256 = "0" * 8
    elif source == "md5":
        wrong = base64.b64encode(bytes(16)).decode()
        server.headers["x-goog-hash"] = f"crc32c=AAAAAA==,md5={wrong}"
    else:
        path = "/linked"
        server.redirects[path] = (PATH, {"X-Linked-ETag": f'"{"0" * 64}"'})
    with pytest.raises(GartError, match=r"arrived damaged \(its (sha256|md5) is \w+, not 0+\)"):
        fetch(server, tmp_path, sha256, path)
    assert names(tmp_path) == []


def test_right_digests_of_the_server_are_accepted(server, tmp_path):
    digest = base64.b64encode(hashlib.md5(CONTENT).digest()).decode()
    server.headers["x-goog-hash"] = f"md5={digest}"
    server.redirects["/linked"] = (PATH, {"X-Linked-ETag": hashlib.sha256(CONTENT).hexdigest()})
    fetch(server, tmp_path, path="/linked")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_two_downloads_of_one_file(server, tmp_path):
    def again(done, total):
        with pytest.raises(GartError, match="another process is downloading"):
            fetch(server, tmp_path)

    download(Archive(server.url + PATH, "file"), tmp_path / "file.bin", again)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(remote_file, "_BLOCK", 10_000)


def test_a_remote_file_reads_like_a_local_one(server, small_blocks):
    remote, local = io.BufferedReader(RemoteFile(server.url + PATH)), io.BytesIO(CONTENT)
    for offset, whence, count in [(5, 0, 100), (9_990, 0, 20), (-7, 2, 50), (-50_000, 1, 30_000)]:
        assert remote.seek(offset, whence) == local.seek(offset, whence)
        assert remote.read(count) == local.read(count)
        assert remote.tell() == local.tell()
    remote.seek(2_990_000)
    assert remote.read() == CONTENT[2_990_000:]
    remote.seek(len(CONTENT) + 5)
    assert remote.read(1) == b""


def test_of_a_zip_archive_only_what_is_read_is_fetched(serve, small_blocks):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for i in range(10):
            file.writestr(f"{i}.bin", CONTENT[i * 100_000 : (i + 1) * 100_000])
    server = serve({"/a.zip": packed.getvalue()})
    remote = RemoteFile(f"{server.url}/a.zip")
    with zipfile.ZipFile(io.BufferedReader(remote)) as file:
        assert file.read("4.bin") == CONTENT[400_000:500_000]
    assert 100_000 < remote.received < 150_000


def test_a_remote_file_outlives_errors_but_not_changes(server, small_blocks):
    remote = RemoteFile(server.url + PATH)
    server.errors = [500, 503]
    assert remote.read(10) == CONTENT[:10]
    server.break_after = 100
    remote.seek(50_000)
    assert remote.read(10) == CONTENT[50_000:50_010]
    server.files[PATH] = CONTENT + b"more"
    remote.seek(90_000)
    with pytest.raises(GartError, match="changed while it was read"):
        remote.read(10)


def test_servers_without_ranges_have_no_remote_files(server):
    server.ranges = False
    with pytest.raises(WholeOnlyError, match="only be downloaded whole"):
        RemoteFile(server.url + PATH)


def test_a_short_answer_is_no_file(server, tmp_path):
    server.break_after, server.breaks = 1000, 100
    with pytest.raises(http.client.IncompleteRead):
        RemoteFile(server.url + PATH).read(10)


def test_an_empty_file_is_refused(serve, tmp_path):
    with pytest.raises(GartError, match=r"file.bin is an empty file; try again later"):
        fetch(serve({PATH: b""}), tmp_path)
    assert names(tmp_path) == []
