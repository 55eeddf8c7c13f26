"""Connections to the provider and the heads of its requests, on aiohttp's connector and response parser.

This is the only module that uses parts of aiohttp that its documentation does not promise. They were read in aiohttp
3.14.5, and ``tests/unit/test_provider_upstream.py`` fails when a release changes one:

- ``connector.TCPConnector``: ``connect(req, traces, timeout)``, ``_create_connection``, ``_factory``, ``_loop``
- ``connector.Connection``: ``protocol``, ``close()``, ``release()``
- ``client_proto.ResponseHandler``: ``set_response_params``, ``read``, ``should_close``, ``data_received``,
  ``pause_reading``, ``resume_reading``, ``connection_lost``, ``close``, ``abort``, ``exception``, ``_payload``
- ``streams.StreamReader``: ``is_eof``, ``exception``, ``set_exception``
- ``client_reqrep.ClientRequest``: made without a session; ``headers``, ``is_ssl()``, ``proxy``, ``connection_key``
- ``http_exceptions.HttpProcessingError``: raised by ``ResponseHandler.read``, and ``LineTooLong``, its cause;
  ``ContentEncodingError``, the cause of the body's ``ClientPayloadError``
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader
from yarl import URL

__all__ = [
    "Connection",
    "Connector",
    "ContentEncodingError",
    "HttpProcessingError",
    "LineTooLong",
    "ResponseProtocol",
    "Route",
]

_KEEPALIVE_S = 50.0
"""How long an idle connection is kept: shorter than the 60 s and more of the load balancers in front of providers, so
that the client closes first."""
_DNS_TTL_S = 60

_MAX_CONNECTING = 128
"""Concurrent connection attempts. Thousands of handshakes at once would time out together and overflow the provider's
backlog; each attempt's timeout starts with its own turn."""
_QUEUE_S = 60.0
"""Added to the connect timeout for the wait for a turn and for DNS."""

_MAX_FRESH_TRIES = 3
"""How often a request may be moved to a fresh connection when the server sent data on a new one."""


class _Target(ClientRequest):
    @cached_property
    def connection_key(self) -> Any:
        """The key of its connections in the pool, which aiohttp makes for each request."""
        return super().connection_key


class Route:
    """Method, URL and headers, prepared once for all requests that differ only in their body.

    Make it on the loop that uses it.
    """

    def __init__(self, method: str, url: str, headers: Mapping[str, str], *, proxy: str | None = None) -> None:
        """Raises ValueError for an invalid URL, and for a header with characters that are not printable."""
        self.target = _Target(method, URL(url), headers=headers, proxy=None if proxy is None else URL(proxy))
        """What the connector needs to open or find a connection. It is never sent itself."""
        # aiohttp sets it for the methods that may have a body, as a request without one must then say.
        self._length_without_body = "Content-Length" in self.target.headers
        self.target.headers.pop("Content-Length", None)
        self._start = self._write()

    def head(self, body: bytes | None, more: bytes = b"") -> bytes:
        """The request line and headers of a request with this body; ``more``: header lines of this request alone."""
        # The connector adds an HTTP proxy's password when it opens the first connection.
        start = self._start if self.target.proxy is None else self._write()
        if body is None and not self._length_without_body:
            return b"%b%b\r\n" % (start, more)
        return b"%b%bContent-Length: %d\r\n\r\n" % (start, more, len(body or b""))

    def _write(self) -> bytes:
        target = self.target
        path = str(target.url) if target.proxy is not None and not target.is_ssl() else target.url.raw_path_qs
        lines = [f"{target.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in target.headers.items())]
        if any(not line.isprintable() for line in lines):
            raise ValueError("a header may hold printable characters only")
        return "\r\n".join([*lines, ""]).encode("latin-1")


class ResponseProtocol(ResponseHandler):
    """aiohttp's response protocol that reports the end of the connection to the body's reader in every case.

    aiohttp 3.14 does not when its parser fails within the body (an invalid chunk size), nor when the connector is
    closed meanwhile: the reader would wait forever and keep its slot.
    """

    used = False
    """Whether a request was sent on this connection."""
    received = 0
    """Bytes since the last request was sent, compressed and with their framing."""
    most = 0
    """When more are received, the connection is aborted: endless framing never reaches the reader of the body.
    0 while no request is under way."""
    overflowed = False
    was_paused = False
    """Whether reading was paused since the connection was opened."""

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.received > self.most and self.used:
            self.overflowed = True
            self.abort()
            return
        body = self._payload
        super().data_received(data)
        if isinstance(fault := self.exception(), HttpProcessingError):  # a body that came in two reads
            _fail(body, fault)

    def answered(self) -> None:
        """The answer was read. What comes before the next request is no answer, and ends the connection."""
        self.received = self.most = 0

    def pause_reading(self) -> None:
        self.was_paused = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        # Called with each read. Where nothing was ever paused, aiohttp's own asks the parser and the transport in vain.
        # A parser that was paused at the end of a chunk still stops at the next one, when reading goes on already.
        if self.was_paused:
            super().resume_reading(resume_parser)

    def connection_lost(self, exc: BaseException | None) -> None:
        body = self._payload
        super().connection_lost(exc)
        _fail(body)

    def close(self) -> None:
        body = self._payload
        super().close()
        _fail(body)

    def abort(self) -> None:
        body = self._payload
        super().abort()
        _fail(body)


def _fail(body: StreamReader | None, fault: BaseException | None = None) -> None:
    """The body's reader gets ``fault``; without one, that the connection ended."""
    if body is not None and not body.is_eof() and body.exception() is None:
        body.set_exception(fault or aiohttp.ClientPayloadError("the connection ended within the body"))


class Connector(aiohttp.TCPConnector):
    """aiohttp's connection pool with a bounded number of connection attempts and a check for unsolicited data."""

    def __init__(self, tls: ssl.SSLContext | bool, connect_timeout_s: float) -> None:
        super().__init__(
            limit=0,  # admission is the limit; a lower one here would hide the waiting from it
            limit_per_host=0,
            keepalive_timeout=_KEEPALIVE_S,
            ttl_dns_cache=_DNS_TTL_S,
            ssl=tls,
        )
        self._factory = cast("partial[ResponseHandler]", partial(ResponseProtocol, loop=self._loop))
        self._connecting = asyncio.Semaphore(_MAX_CONNECTING)
        # No total: once a request is sent, the timeout is the exchange's own.
        self._connect_timeout = aiohttp.ClientTimeout(
            total=None, connect=connect_timeout_s + _QUEUE_S, sock_connect=connect_timeout_s
        )

    async def open(self, route: Route) -> Connection:
        """A connection without unread data, from the pool or new. Raises aiohttp.ClientError, OSError or TimeoutError.

        Unsolicited data (a second answer, a 408 before the server closes) would be read as the answer to the next
        request, and every later answer would be one off.
        """
        fresh_tries = 0
        while True:
            connection = await self.connect(route.target, [], self._connect_timeout)
            protocol = connection.protocol
            if protocol is None or not protocol.should_close:
                return connection
            connection.close()
            fresh_tries += not getattr(protocol, "used", False)
            if fresh_tries == _MAX_FRESH_TRIES:
                raise aiohttp.ServerDisconnectedError("the server sent data before the request")

    async def _create_connection(self, *arguments: Any, **more: Any) -> Any:
        async with self._connecting:
            return await super()._create_connection(*arguments, **more)
