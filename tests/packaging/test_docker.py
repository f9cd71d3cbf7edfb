"""The image's recipe, by those of hadolint's rules that can be checked by reading it."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "build_wheel.sh"
# Stands in for pip: builds a wheel of the files named in $CONTENTS, and tells what it was asked.
FAKE_PYTHON = f"""#!{sys.executable}
import os, sys, zipfile
if sys.argv[1:3] == ["-m", "zipfile"]:
    zipfile.main(sys.argv[3:])
else:
    folder = sys.argv[sys.argv.index("-w") + 1]
    os.makedirs(folder, exist_ok=True)
    with zipfile.ZipFile(folder + "/gart3d-0-py3-none-any.whl", "w") as wheel:
        for name in os.environ["CONTENTS"].split():
            wheel.writestr(name, "")
    print(*sys.argv[1:], "PINS", os.environ["PIP_BUILD_CONSTRAINT"])
"""
CPU, CUDA = "gart/native/libgart_cpu.so", "gart/native/libgart_cuda.so"


def instructions():
    """(instruction, its words in one line), without comments."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def all_of(name):
    return [words for instruction, words in instructions() if instruction == name]


def final_stage():
    steps = instructions()
    last = max(i for i, (name, _) in enumerate(steps) if name == "FROM")
    return steps[last:]


def test_base_images_are_pinned_and_alike():
    bases = [words.split()[0] for words in all_of("FROM")]
    tags = [
        re.fullmatch(r"nvidia/cuda:(13\.\d+\.\d+)-(devel|base)-(ubuntu[\d.]+)", b) for b in bases
    ]
    assert all(tags), bases
    assert [tag[2] for tag in tags] == ["devel", "base"]
    # The environment is copied from one to the other: same libc, same Python.
    assert len({(tag[1], tag[3]) for tag in tags}) == 1


def test_apt_installs_little_and_cleans_up():
    runs = [words for words in all_of("RUN") if "apt-get" in words]
    assert runs
    for words in runs:
        assert words.startswith("apt-get update && apt-get install -y --no-install-recommends ")
        assert "apt-get clean && rm -rf /var/lib/apt/lists/*" in words
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"\bsudo\b|\bapt \b|:latest|^(ADD|MAINTAINER)\b", text, re.MULTILINE)


def test_pip_keeps_no_cache():
    for words in all_of("RUN"):
        assert words.count("pip install") == words.count("pip install --no-cache-dir")


def test_shells_fail_with_the_pipe():
    assert [json.loads(words) for words in all_of("SHELL")] == [
        ["/bin/bash", "-o", "pipefail", "-c"]
    ]
    assert not any("|" in words.replace("||", "") for name, words in final_stage() if name == "RUN")


def test_the_image_runs_gart_as_a_user_of_its_own():
    stage = final_stage()
    assert all(words.startswith("/") for words in all_of("WORKDIR"))
    assert [words for name, words in stage if name == "USER"] == ["gart"]
    assert [json.loads(words) for words in all_of("ENTRYPOINT")] == [["gart"]]
    assert not all_of("CMD")
    (check,) = all_of("HEALTHCHECK")
    assert json.loads(check.partition("CMD ")[2]) == ["gart", "doctor"]
    (volumes,) = (json.loads(words) for words in all_of("VOLUME"))
    assert volumes == ["/data", "/runs"]
    # Docker copies a volume's owner from the image, if it was made before the volume was declared.
    names = [name for name, _ in stage]
    owning = next(i for i, (_, words) in enumerate(stage) if "-o gart -g gart /data /runs" in words)
    assert owning < names.index("VOLUME")


def test_the_wheel_is_for_every_architecture():
    (arches,) = re.findall(r'^CUDAARCHS="([\d;]+)"$', "\n".join(all_of("ARG")), re.MULTILINE)
    (default,) = re.findall(
        r"set\(CMAKE_CUDA_ARCHITECTURES ([\d ]+)\)", (ROOT / "CMakeLists.txt").read_text()
    )
    assert arches.split(";") == default.split()


def test_what_is_copied_exists_and_is_not_ignored():
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    sources = {
        source
        for words in all_of("COPY")
        if not words.startswith("--from")
        for source in words.split()[:-1]
    }
    assert sources == {line[1:] for line in ignore if line.startswith("!")}
    assert all((ROOT / source).exists() for source in sources)


def test_everything_builds_its_wheel_by_the_script():
    assert os.access(SCRIPT, os.X_OK)
    assert "scripts/build_wheel.sh /wheels" in (ROOT / "Dockerfile").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert "scripts/build_wheel.sh dist\n" in makefile
    assert "scripts/build_wheel.sh dist/cuda\n" in makefile
    ci = (ROOT / ".ci" / "run").read_text()  # builds with it, installs in a clean environment
    assert "make wheel" in ci
    assert "make build-cuda" in ci
    for text in (makefile, ci, (ROOT / "Dockerfile").read_text()):
        assert "pip wheel" not in text


@pytest.fixture
def build(tmp_path):
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)

    def run(*arguments, contents="", cuda="OFF"):
        return subprocess.run(
            [SCRIPT, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHON": str(python), "CONTENTS": contents, "GART_CUDA": cuda},
            capture_output=True,
            text=True,
        )

    return run


def test_the_script_builds_from_its_checkout_with_pins(build, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "gart3d-older-py3-none-any.whl").touch()
    done = build("out", contents=CPU)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == (
        f"-m pip wheel --no-deps -w out {ROOT} PINS {ROOT / 'constraints.txt'}"
    )
    (wheel,) = (tmp_path / "out").iterdir()
    assert zipfile.ZipFile(wheel).namelist() == [CPU]


def test_the_script_wants_the_libraries_in_the_wheel(build):
    assert build("out", contents=f"{CPU} {CUDA}", cuda="ON").returncode == 0
    for contents, cuda, lacking in [("", "OFF", CPU), (CPU, "ON", CUDA)]:
        done = build("out", contents=contents, cuda=cuda)
        assert done.returncode == 1
        assert done.stderr == f"error: the wheel in out lacks {lacking}\n"


def test_the_script_wants_a_folder(build):
    done = build()
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
