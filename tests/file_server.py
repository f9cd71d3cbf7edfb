"""A server of files on this machine that knows Range, and can be told to misbehave."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Clients that hang up are part of the tests."""


@dataclass
class FileServer:
    """Serves `files`, path -> bytes; attributes may be changed at any time.

    Attributes:
        asked: (path, Range header) of each request, in order.
        sent: bytes of bodies sent.
        ranges: whether it sends parts.
        validator: the header that names a file's version, or None.
        headers: further ones, sent with every file.
        redirects: path -> (path, headers).
        break_after: closes the connection after so many bytes of a body, as often as `breaks` says.
        errors: status codes to answer the next requests with.
    """

    files: dict[str, bytes]
    asked: list[tuple[str, str]] = field(default_factory=list)
    sent: int = 0
    ranges: bool = True
    validator: str | None = "ETag"
    headers: dict[str, str] = field(default_factory=dict)
    redirects: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    break_after: int | None = None
    breaks: int = 1
    errors: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range", "")
        self.asked.append((request.path, wanted))
        if self.errors:
            return request.send_error(self.errors.pop(0))
        if request.path in self.redirects:
            path, headers = self.redirects[request.path]
            request.send_response(302)
            for name, value in {"Location": self.url + path, **headers}.items():
                request.send_header(name, value)
            return request.end_headers()
        if request.path not in self.files:
            return request.send_error(404)
        content = self.files[request.path]
        version = f'"{hashlib.sha1(content).hexdigest()}"'
        start, end = 0, len(content)
        same = request.headers.get("If-Range", version) == version
        if self.ranges and same and (span := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)):
            start = int(span[1])
            end = min(end, int(span[2]) + 1) if span[2] else end
            if start >= len(content):
                return request.send_error(416)
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        else:
            request.send_response(200)
        request.send_header("Content-Length", str(end - start))
        if self.validator:
            request.send_header(self.validator, version)
        for name, value in self.headers.items():
            request.send_header(name, value)
        request.end_headers()
        body = content[start:end]
        if self.break_after is not None and self.breaks > 0 and len(body) > self.break_after:
            self.breaks -= 1
            body = body[: self.break_after]
            request.close_connection = True
        request.wfile.write(body)
        self.sent += len(body)
        return None
