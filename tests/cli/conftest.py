from collections.abc import Callable
from pathlib import Path

import pytest

from gart.cli.app import run

TINY = ("--iterations", "6", "--budget", "300", "--downscale", "4", "--device", "cpu")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `gart train demo` ran for a few iterations; tests only add to it."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["train", "demo", *TINY]) == 0
    return folder


@pytest.fixture
def there(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the trained run, as the working folder."""
    monkeypatch.chdir(trained)
    return trained


@pytest.fixture
def gart(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run one command line: exit code, standard output, standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
