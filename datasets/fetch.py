"""Files over HTTP, whole ones: resumed, verified, and placed when they are complete."""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import http.client
import io
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gart.datasets.registry import Archive
from gart.errors import GartError

Report = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""

SECONDS = 30.0
"""A server that says nothing for this long is taken for gone."""
RETRIES = 5
"""Attempts in a row that may bring nothing before a download that has begun is given up."""
PAUSE = 2.0
"""Seconds before the first retry; twice as long before each next one."""
_CHUNK = 1 << 20

_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

FAILURES = (OSError, http.client.HTTPException)
"""What the network raises, and the disk."""


@dataclass
class Answer:
    """A server's answer to a request for a file.

    Attributes:
        stream: the open response.
        start: position of its first byte in the file.
        size: bytes of the whole file, None where the server does not say.
        validator: names this version of the file, "" where the server gives none.
        digests: algorithm -> hexadecimal digest of the whole file, as the server states it.
    """

    stream: Any
    start: int
    size: int | None
    validator: str
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def is_part(self) -> bool:
        """Whether the server sends the part asked for, and not the whole file."""
        return bool(self.stream.status == 206)


def ask(url: str, start: int = 0, end: int | None = None, validator: str = "") -> Answer:
    """Request the bytes from `start` to `end` (exclusive; None: the last) of a file.

    Args:
        validator: an `Answer.validator`; if the file has changed since, the answer is all of it.

    Raises:
        FAILURES: no connection, or the server's error (urllib.error.HTTPError).
    """
    headers = {"User-Agent": "gart", "Accept-Encoding": "identity"}
    if start or end is not None:
        headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if validator:
            headers["If-Range"] = validator
    redirects = _Redirects()
    opener = urllib.request.build_opener(redirects)
    stream = opener.open(urllib.request.Request(url, headers=headers), timeout=SECONDS)
    got = stream.headers
    length = got.get("Content-Length", "")
    answer = Answer(stream, 0, int(length) if length.isdigit() else None, _validator(got))
    if answer.is_part:
        span, _, whole = got.get("Content-Range", "").removeprefix("bytes ").partition("/")
        answer.start = int(span.partition("-")[0] or 0)
        answer.size = int(whole) if whole.isdigit() else None
    if redirects.sha256:
        answer.digests["sha256"] = redirects.sha256
    for entry in ",".join(got.get_all("x-goog-hash", [])).split(","):
        name, _, value = entry.strip().partition("=")
        if name == "md5":
            answer.digests["md5"] = base64.b64decode(value).hex()
    return answer


def _validator(headers: Any) -> str:
    """A strong one: a weak tag is no proof of equal bytes."""
    tag: str = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Keeps what hubs say of a file only in the answer that redirects to its storage."""

    def __init__(self) -> None:
        self.sha256 = ""

    def redirect_request(
        self, request: Any, stream: Any, code: int, message: str, headers: Any, address: str
    ) -> Any:
        """As the base class does, after a look at the headers."""
        linked = headers.get("X-Linked-ETag", "").strip('"')
        if len(linked) == 64:
            self.sha256 = linked
        return super().redirect_request(request, stream, code, message, headers, address)


def is_final(error: Exception) -> bool:
    """Whether trying again at once is of no use: the server refuses, or the disk fails."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500
    return is_local(error)


def is_local(error: Exception) -> bool:
    """Whether this machine's disk failed and not the network; only its errors name a file."""
    if not isinstance(error, OSError) or isinstance(error, urllib.error.URLError):
        return False
    return error.filename is not None or error.errno in _DISK_IS_FULL


def download(archive: Archive, target: Path, report: Report) -> None:
    """Place a file at `target`: whole and verified, or not at all.

    What arrives lies in `target`.part until then, and a later call goes on from there if the
    server still has the same file.

    Raises:
        GartError: the bytes are not those that the server or the registry states, or another
            process is downloading it.
        FAILURES: the network failed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    notes = target.with_name(target.name + ".part.json")
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GartError(
                f"another process is downloading {target}; wait for it, or end it"
            ) from None
        try:
            digests = _receive(archive.url, file, notes, report)
        finally:
            if file.seek(0, os.SEEK_END) == 0:
                part.unlink()
                notes.unlink(missing_ok=True)
        if not part.exists():
            raise GartError(f"{archive.url} is an empty file; try again later")
        os.fsync(file.fileno())
        if archive.sha256:
            digests["sha256"] = archive.sha256
        if wrong := _mismatch(part, digests):
            part.unlink()
            notes.unlink(missing_ok=True)
            raise GartError(f"{archive.url} arrived damaged ({wrong}); download it again")
        part.replace(target)
    notes.unlink(missing_ok=True)


def _receive(url: str, file: io.BufferedWriter, notes: Path, report: Report) -> dict[str, str]:
    """Append to `file` until it is complete; what the server says that its digests are."""
    began, failures = False, 0
    while True:
        before = file.seek(0, os.SEEK_END)
        try:
            return _receive_once(url, file, notes, report)
        except FAILURES as error:
            got_some = file.seek(0, os.SEEK_END) > before
            began = began or got_some
            failures = 1 if got_some else failures + 1
            if not began or failures > RETRIES or is_final(error):
                raise
            time.sleep(PAUSE * 2 ** (failures - 1))


def _receive_once(url: str, file: io.BufferedWriter, notes: Path, report: Report) -> dict[str, str]:
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        known = json.loads(notes.read_text(encoding="utf-8"))
    done = file.seek(0, os.SEEK_END)
    if known.get("url") != url or not known.get("validator"):
        done = file.truncate(0)
    elif done == known["size"]:
        return dict(known["digests"])
    answer = ask(url, done, None, known["validator"] if done else "")
    with answer.stream:
        if answer.start != done:  # the file has changed, or the server sends whole files only
            done = file.truncate(0)
        about = {"url": url, "validator": answer.validator, "size": answer.size}
        notes.write_text(json.dumps({**about, "digests": answer.digests}), encoding="utf-8")
        while chunk := answer.stream.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            report(done, answer.size or done)
    file.flush()
    if answer.size is not None and done != answer.size:
        raise http.client.IncompleteRead(b"", answer.size - done)
    return answer.digests


def _mismatch(path: Path, digests: dict[str, str]) -> str:
    """What is wrong with the file, or nothing."""
    hashes = {name: hashlib.new(name) for name in digests}
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            for value in hashes.values():
                value.update(chunk)
    for name, expected in digests.items():
        if not (found := hashes[name].hexdigest()).startswith(expected):
            return f"its {name} is {found}, not {expected}"
    return ""
