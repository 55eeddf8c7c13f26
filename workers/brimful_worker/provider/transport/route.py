"""Where a request goes, and how its head reads: made once, for thousands of requests that differ in their body only."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import ClientRequest
from yarl import URL


class Route:
    """A method, a URL and the headers of a request. Make it on the loop that will use it."""

    def __init__(self, method: str, url: str, headers: Mapping[str, str], *, proxy: str | None = None) -> None:
        """Raises ValueError for a URL that is none, and for a header that would be more than one line."""
        self.target = ClientRequest(method, URL(url), headers=headers, proxy=None if proxy is None else URL(proxy))
        """What aiohttp's connector must know to open a connection or to find an open one; it is never sent itself."""
        self._bodiless = "Content-Length" in self.target.headers
        """A method that may have a body says so where there is none."""
        self.target.headers.pop("Content-Length", None)
        self._start = self._write()

    def head(self, body: bytes | None) -> bytes:
        """All before this body."""
        # An HTTP proxy's password comes with the first connection.
        start = self._start if self.target.proxy is None else self._write()
        if body is None and not self._bodiless:
            return b"%b\r\n" % start
        return b"%bContent-Length: %d\r\n\r\n" % (start, len(body or b""))

    def _write(self) -> bytes:
        target = self.target
        place = str(target.url) if target.proxy is not None and not target.is_ssl() else target.url.raw_path_qs
        lines = [f"{target.method} {place} HTTP/1.1", *(f"{name}: {value}" for name, value in target.headers.items())]
        if any(not line.isprintable() for line in lines):
            raise ValueError("a header may hold printable characters only")
        return "\r\n".join([*lines, ""]).encode("latin-1")
