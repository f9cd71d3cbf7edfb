"""A scene out of an archive: into a folder of its own, going on where an earlier call stopped."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO

from gart.datasets.fetch import Report, download
from gart.datasets.registry import Archive
from gart.datasets.remote_file import RemoteFile, WholeOnlyError
from gart.errors import GartError

Member = Callable[[str], "str | None"]
"""From a path in the archive to one in the scene's folder, or None to leave it out."""


def unpack(archive: Archive, folder: Path, member: Member, downloads: Path, report: Report) -> None:
    """Put the members that `member` chooses into `folder`.

    Of a zip archive only these are downloaded, where the server can send parts; a file that is
    there already with the archive's checksum is not downloaded again. Any other archive passes
    through `downloads`, where a download that was interrupted goes on.

    Raises:
        GartError: the archive is damaged, is not what it was, holds nothing of the scene, or the
            disk has no room for it.
        gart.datasets.fetch.FAILURES: the network failed.
    """
    with _opened(archive, downloads, report) as file:
        if file is None:
            return _unpack_tar(archive, downloads / archive.name, folder, member)
        try:
            with zipfile.ZipFile(file) as packed:
                _unpack_zip(packed, folder, _chosen(packed, archive, member), report)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            (downloads / archive.name).unlink(missing_ok=True)
            raise GartError(f"{archive.url} is damaged ({error}); try again") from error


def sizes(archive: Archive, member: Member) -> tuple[int, int]:
    """Bytes to download, and on disk, of the members that `member` chooses of a zip archive.

    Raises:
        GartError: it holds nothing of the scene, or its server sends whole files only.
        gart.datasets.fetch.FAILURES: the network failed.
    """
    with zipfile.ZipFile(_remote(archive)) as packed:
        chosen = _chosen(packed, archive, member)
    return sum(i.compress_size for i in chosen), sum(i.file_size for i in chosen)


@contextmanager
def _opened(archive: Archive, downloads: Path, report: Report) -> Iterator[IO[bytes] | Path | None]:
    """A zip archive, remote if possible; None for a tar archive, which is in `downloads`.

    What was downloaded whole is removed in the end if nothing failed.
    """
    if archive.kind == "zip":
        with suppress(WholeOnlyError):
            yield _remote(archive)
            return
    whole = downloads / archive.name
    if not whole.is_file():
        if archive.size is not None:
            require_room(downloads, archive.size)
        download(archive, whole, report)
    yield whole if archive.kind == "zip" else None
    whole.unlink()


def _remote(archive: Archive) -> IO[bytes]:
    # Buffered, for zipfile takes it that a read brings all that there is.
    return io.BufferedReader(RemoteFile(archive.url))


def _chosen(
    packed: zipfile.ZipFile, archive: Archive, member: Member
) -> dict[zipfile.ZipInfo, str]:
    chosen = {}
    for info in packed.infolist():
        target = member(info.filename)
        if target and not info.is_dir():
            chosen[info] = _safe(target, archive)
    if not chosen:
        raise GartError(f"{archive.url} has nothing of this scene; has the archive changed?")
    return chosen


def _unpack_zip(
    packed: zipfile.ZipFile, folder: Path, chosen: dict[zipfile.ZipInfo, str], report: Report
) -> None:
    total, done = sum(info.compress_size for info in chosen), 0
    require_room(folder, sum(info.file_size for info in chosen))
    for info, name in sorted(chosen.items(), key=lambda item: item[0].header_offset):
        target = folder / name
        if not _is_there(target, info):
            target.parent.mkdir(parents=True, exist_ok=True)
            with packed.open(info) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)  # raises where the checksum is wrong
        done += info.compress_size
        report(done, total)


def _is_there(target: Path, info: zipfile.ZipInfo) -> bool:
    if not target.is_file() or target.stat().st_size != info.file_size:
        return False
    with target.open("rb") as file:
        return _crc(file) == info.CRC


def _crc(file: IO[bytes]) -> int:
    value = 0
    while chunk := file.read(1 << 20):
        value = zlib.crc32(chunk, value)
    return value


def _unpack_tar(archive: Archive, path: Path, folder: Path, member: Member) -> None:
    try:
        with tarfile.open(path) as packed:
            found = False
            for info in packed:
                target = member(info.name.removeprefix("./"))
                if not target or not info.isfile():
                    continue
                found = True
                file = folder / _safe(target, archive)
                file.parent.mkdir(parents=True, exist_ok=True)
                source = packed.extractfile(info)
                assert source is not None
                with source, file.open("wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        path.unlink()
        raise GartError(f"{archive.url} is damaged ({error}); download it again") from error
    if not found:
        raise GartError(f"{archive.url} has nothing of this scene; has the archive changed?")


def _safe(name: str, archive: Archive) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise GartError(f"{archive.url} would write outside of its folder ({name}); refused")
    return name


def require_room(folder: Path, size: int) -> None:
    """Raise GartError unless `size` bytes fit on the disk of `folder`, which need not exist."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if size > free:
        raise GartError(
            f"{size / 1e6:,.0f} MB do not fit into {there}, which has {free / 1e6:,.0f} MB left; "
            "free some, or choose another place with --to or --cache"
        )
