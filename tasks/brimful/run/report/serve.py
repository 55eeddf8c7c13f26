"""``brimful report --serve``: the page of a run of any size, on this machine only.

The browser gets the columns of all rollouts, and their texts by page as they are looked at; memory here holds no text.
The server listens on loopback, and every address has a random token in it, so that no other user and no other page can
read the run.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from brimful.run.report.columns import little_endian
from brimful.run.report.groups import Groups
from brimful.run.report.page import columns, shell
from brimful.run.report.prompts import Prompts
from brimful.run.report.reading import read_run
from brimful.run.report.search import Search
from brimful.runtime.json_bytes import encode

_MOST_GROUPS = 256
"""In one answer."""
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


class ReportServer:
    """Use it as a context manager. ``port`` 0 takes a free one. Raises what ``write_report`` does."""

    def __init__(self, output: Path, other: Path | None = None, inputs: tuple[str, ...] = (), *, port: int = 0) -> None:
        run = read_run(output, other)
        self._stack = ExitStack()
        prompts = Prompts.of(output, run, inputs)
        self._stack.callback(prompts.close)
        self._groups = self._stack.enter_context(Groups(run, prompts))
        self._search = Search(run, prompts)
        places, self._columns = columns(run)
        self._page = b"".join(shell(run, places, prompts.note, served=True)) + b"</body>\n</html>\n"
        self._reading = threading.Lock()
        self._searches = 0
        """Began so far: a newer one ends an older one."""
        self._token = secrets.token_urlsafe(18)
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True

    def __enter__(self) -> ReportServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()
        self._stack.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{self._token}/"

    def serve(self) -> None:
        """Answer until :meth:`stop`, or until an exception of a signal handler."""
        self._server.serve_forever()

    def stop(self) -> None:
        """From another thread than :meth:`serve`'s."""
        self._server.shutdown()

    def answer(self, host: str, target: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, media type and body for a request's Host header and target."""
        parts = urlsplit(target)
        token, _, name = parts.path.removeprefix("/").partition("/")
        if host not in {f"{each}:{self._server.server_port}" for each in ("127.0.0.1", "localhost")}:
            return HTTPStatus.FORBIDDEN, "text/plain", b"another host\n"
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return HTTPStatus.NOT_FOUND, "text/plain", b"not found\n"
        asked = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        answers: dict[str, Callable[[dict[str, str]], tuple[str, bytes]]] = {
            "": lambda _: ("text/html; charset=utf-8", self._page),
            "columns": lambda _: ("application/octet-stream", self._columns),
            "groups": self._texts,
            "search": self._found,
        }
        if name not in answers:
            return HTTPStatus.NOT_FOUND, "text/plain", b"not found\n"
        try:
            kind, body = answers[name](asked)
        except (KeyError, ValueError) as error:
            return HTTPStatus.BAD_REQUEST, "text/plain", f"{error!r}\n".encode()
        return HTTPStatus.OK, kind, body

    def _texts(self, asked: dict[str, str]) -> tuple[str, bytes]:
        first, end = int(asked["from"]), int(asked["to"])
        if not 0 <= first <= end <= first + _MOST_GROUPS:
            raise ValueError("from, to")
        with self._reading:
            groups = [encode(self._groups.get(number)) for number in range(first, min(end, len(self._groups)))]
        return "application/json", b"[" + b",".join(groups) + b"]"

    def _found(self, asked: dict[str, str]) -> tuple[str, bytes]:
        self._searches = mine = self._searches + 1
        rows = self._search.find(asked["q"], lambda: self._searches != mine)
        return "application/octet-stream", b"" if rows is None else little_endian(rows)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, kind, body = server.answer(self.headers.get("Host", ""), self.path)
                self.send_response(status)
                for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet: the log would hold the token."""

        return Handler
