"""`gart data`: captures and data sets, before anything is trained."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gart.cli.interrupts import INTERRUPTED, TERMINATED, WORDS
from gart.cli.options import Help, JsonFile
from gart.cli.progress import DownloadProgress, ImageProgress
from gart.cli.train import InterruptedRunError
from gart.errors import GartError, UsageError

if TYPE_CHECKING:
    from gart.datasets.registry import Archive

data = typer.Typer(
    name="data",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_help_option=False,  # see cli/options.py
)

Scene = Annotated[
    str, typer.Argument(metavar="SCENE", help="Scene name, dataset/scene, or `lpips`.")
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Cache of data sets.  [default: $GART_DATA or ~/.cache/nerfbaselines/datasets]",
        show_default=False,
    ),
]


@data.callback()
def _options(wants_help: Help = False) -> None:
    """List, download and check captures."""


@data.command("list")
def list_scenes(cache: Cache = None) -> None:
    """List what can be downloaded, with size, licence and source."""
    from gart.datasets.downloads import scene_folder, size_of
    from gart.datasets.registry import DATASETS, LPIPS, LPIPS_FILES, LPIPS_LICENCE

    for name, source in DATASETS.items():
        archives = {source.archive(scene) for scene in source.scenes}
        known = sorted({size_of(archive) for archive in archives if archive.size})
        print(f"{name}: {source.title}, {source.photographs}")
        print(f"  size     {'; '.join(known) or 'gart data info SCENE asks the server'}")
        print(f"  licence  {source.licence}")
        print(f"  source   {source.homepage}")
        names = textwrap.wrap(" ".join(source.scenes), 68)
        print("  scenes   " + "\n           ".join(names))
        for scene in source.scenes:
            if (folder := scene_folder(name, scene, cache)).is_dir():
                print(f"  there    {folder}")
    print(f"{LPIPS}: weights of the classifiers that LPIPS compares images with")
    print(f"  size     {sum(archive.size or 0 for archive in LPIPS_FILES) / 1e9:.2f} GB")
    print(f"  licence  {LPIPS_LICENCE}")
    print(f"  source   {LPIPS_FILES[0].url.rpartition('/')[0]}")


@data.command()
def info(scene: Scene, cache: Cache = None) -> None:
    """Say what a download would bring, from where, and under which licence."""
    from gart.datasets.downloads import lpips_folder, scene_folder
    from gart.datasets.registry import DATASETS, LPIPS, LPIPS_FILES, LPIPS_LICENCE

    if scene == LPIPS:
        print("lpips: weights of the classifiers that LPIPS compares images with")
        for archive in LPIPS_FILES:
            print(f"  source   {archive.url}, {_ask_size(archive)}")
        print(f"  licence  {LPIPS_LICENCE}")
        print(f"  folder   {lpips_folder()}")
        return
    dataset, name = _named(scene)
    source, folder = DATASETS[dataset], scene_folder(dataset, name, cache)
    print(f"{dataset}/{name}: {source.title}, {source.photographs}")
    print(f"  source   {source.archive(name).url}")
    print(f"  size     {_scene_size(dataset, name)}")
    print(f"  licence  {source.licence}")
    print(f"  authors  {source.homepage}")
    print(f"  folder   {folder}{', downloaded' if folder.is_dir() else ''}")


@data.command()
def download(
    scene: Scene,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder that becomes the scene's.  [default: its place in the cache]",
            show_default=False,
        ),
    ] = None,
    cache: Cache = None,
) -> None:
    """Download a scene, or the LPIPS weights; again goes on where it stopped."""
    from gart.datasets.downloads import (
        check_origin,
        download_lpips,
        download_scene,
        lpips_folder,
        scene_folder,
    )
    from gart.datasets.registry import LPIPS

    info(scene, cache)
    try:
        if scene == LPIPS:
            folder = to or lpips_folder()
            with DownloadProgress() as progress:
                download_lpips(folder, progress)
            if to is not None:
                print(f"set GART_LPIPS_WEIGHTS={to.absolute()} for gart eval to find them")
        else:
            dataset, name = _named(scene)
            folder = to or scene_folder(dataset, name, cache)
            if to is None and folder.is_dir() and any(folder.iterdir()):
                check_origin(dataset, folder)
                print(f"{dataset}/{name} is there already: {folder}")
                return
            with DownloadProgress() as progress:
                download_scene(dataset, name, folder, progress)
    except (KeyboardInterrupt, SystemExit) as stop:
        code = TERMINATED if isinstance(stop, SystemExit) else INTERRUPTED
        raise InterruptedRunError(f"{WORDS[code]}; the same command goes on", code) from None
    print(f"placed {folder}")


@data.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a capture.")],
    json: JsonFile = None,
) -> None:
    """Examine a capture and say what of it is used; exit code 1 when it cannot be trained on."""
    from gart.cli.checks import report
    from gart.datasets.check import check_capture

    with ImageProgress("reading photographs") as progress:
        checks = check_capture(folder, progress)
    report(checks, json)


def _named(scene: str) -> tuple[str, str]:
    from gart.datasets.names import DEMO, find_name, unknown_name

    if scene == DEMO:
        raise UsageError("demo is built in and needs no download: gart train demo")
    found = find_name(scene)
    if found is None:
        raise unknown_name(scene)
    return found


def _scene_size(dataset: str, scene: str) -> str:
    """As the server says, or as recorded."""
    from zipfile import BadZipFile

    from gart.datasets import fetch, unpack
    from gart.datasets.downloads import chooser, size_of
    from gart.datasets.registry import DATASETS

    archive = DATASETS[dataset].archive(scene)
    if archive.kind != "zip":
        return _ask_size(archive)
    try:
        packed, unpacked = unpack.sizes(archive, chooser(dataset, scene))
    except (GartError, BadZipFile, *fetch.FAILURES):
        return size_of(archive)
    return f"{packed / 1e9:.2f} GB to download, {unpacked / 1e9:.2f} GB on disk"


def _ask_size(archive: Archive) -> str:
    from gart.datasets import fetch
    from gart.datasets.downloads import size_of

    try:
        answer = fetch.ask(archive.url, 0, 1)
        answer.stream.close()
    except fetch.FAILURES:
        return f"{size_of(archive)} (the server does not answer)"
    return f"{answer.size / 1e9:.2f} GB" if answer.size else size_of(archive)
