"""A file on a server, read where it is asked for: zipfile takes one scene out of many with it."""

from __future__ import annotations

import http.client
import io
import os
import time
from collections import OrderedDict
from typing import Any

from gart.datasets import fetch
from gart.errors import GartError

_BLOCK, _BLOCKS = 4 << 20, 8
"""Bytes that are asked for at once, and how many of such blocks are kept."""


class WholeOnlyError(GartError):
    """The server cannot send parts of a file."""


class RemoteFile(io.RawIOBase):
    """Reads blocks of a file by HTTP's Range.

    Attributes:
        size: bytes of the file.
        received: bytes that have come over the network.

    Raises:
        WholeOnlyError: the server cannot send parts of it.
        GartError: the file changes between two reads.
        gart.datasets.fetch.FAILURES: the network failed.
    """

    def __init__(self, url: str) -> None:
        self.received = 0
        self._url = url
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        answer = fetch.ask(url, 0, 1)
        answer.stream.close()
        if not answer.is_part or answer.size is None:
            raise WholeOnlyError(f"{url} can only be downloaded whole")
        self.size, self._validator = answer.size, answer.validator

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move without reading."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read to the end of a block at most."""
        if self._at >= self.size:
            return 0
        index, skip = divmod(self._at, _BLOCK)
        piece = self._block(index)[skip : skip + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _block(self, index: int) -> bytes:
        if index not in self._blocks:
            self._blocks[index] = self._fetch(index)
            if len(self._blocks) > _BLOCKS:
                self._blocks.popitem(last=False)
        return self._blocks[index]

    def _fetch(self, index: int) -> bytes:
        start, end = index * _BLOCK, min((index + 1) * _BLOCK, self.size)
        attempt = 0
        while True:
            try:
                answer = fetch.ask(self._url, start, end, self._validator)
                with answer.stream:
                    if answer.start != start or answer.size != self.size:
                        raise GartError(f"{self._url} changed while it was read; start again")
                    data: bytes = answer.stream.read(end - start)
                if len(data) < end - start:
                    raise http.client.IncompleteRead(data, end - start - len(data))
                self.received += len(data)
                return data
            except fetch.FAILURES as error:
                attempt += 1
                if attempt > fetch.RETRIES or fetch.is_final(error):
                    raise
                time.sleep(fetch.PAUSE * 2 ** (attempt - 1))
