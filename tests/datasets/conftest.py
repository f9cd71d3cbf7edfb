import pytest
from captures import ColmapCapture
from file_server import FileServer


@pytest.fixture
def colmap(tmp_path):
    """Makes a `ColmapCapture` in a folder of this test: colmap(lens=..., ...)."""

    def make(name: str = "scene", **settings) -> ColmapCapture:
        return ColmapCapture(tmp_path / name, **settings)

    return make


@pytest.fixture
def serve():
    """Starts a `FileServer` of files {path: bytes}; it ends with the test."""
    servers = []

    def start(files: dict[str, bytes]) -> FileServer:
        servers.append(FileServer(files))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr("gart.datasets.fetch.PAUSE", 0.0)
