import pytest
from captures import ColmapCapture


@pytest.fixture
def colmap(tmp_path):
    """Makes a `ColmapCapture` in a folder of this test: colmap(lens=..., ...)."""

    def make(name: str = "scene", **settings) -> ColmapCapture:
        return ColmapCapture(tmp_path / name, **settings)

    return make
