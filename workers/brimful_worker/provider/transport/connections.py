"""The connections to the provider: aiohttp's, with what thousands of requests and a long run want of them besides."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp import ClientRequest
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.streams import StreamReader

_KEEPALIVE_S = 50.0
"""Idle connections are kept this long: long enough for the next request of a busy fleet, and shorter than what the
load balancers in front of providers allow (60 s and more), so that ours is the side that closes."""
_DNS_TTL_S = 60

_OPENING = 128
"""Connections being made at once. Thousands of handshakes together would outlast each other's timeouts and drown the
provider's queue of new connections; so they follow one another, and each one's timeout begins with its own turn."""
RESOLVE_S = 60.0
"""Beyond it even a turn that never comes, or a name server that never answers, is a failure."""

_NEW_TRIES = 3
"""So many connections that no request was sent on may be spoken to first."""


class Protocol(ResponseHandler):
    """As aiohttp's, but whoever reads a body hears of the connection's end in every case.

    aiohttp 3.14 tells nobody where its parser failed within the body (a chunk's size that is none), nor where the
    connector is closed meanwhile: the reader would wait for ever, and hold its slot.
    """

    used = False
    """A request was sent on it before."""

    def connection_lost(self, exc: BaseException | None) -> None:
        body = self._payload
        super().connection_lost(exc)
        _cut(body)

    def close(self) -> None:
        body = self._payload
        super().close()
        _cut(body)

    def abort(self) -> None:
        body = self._payload
        super().abort()
        _cut(body)


def _cut(body: StreamReader | None) -> None:
    if body is not None and not body.is_eof() and body.exception() is None:
        body.set_exception(aiohttp.ClientPayloadError("the connection ended within the body"))


class Connector(aiohttp.TCPConnector):
    """As aiohttp's, but for the queue before new connections, and for what has come on a connection unasked."""

    def __init__(self, tls: ssl.SSLContext | bool) -> None:
        super().__init__(
            limit=0,  # admission decides how many; a second limit below it would only hide waiting from it
            limit_per_host=0,
            keepalive_timeout=_KEEPALIVE_S,
            ttl_dns_cache=_DNS_TTL_S,
            ssl=tls,
        )
        self._factory = cast("partial[ResponseHandler]", partial(Protocol, loop=self._loop))
        self._opening = asyncio.Semaphore(_OPENING)

    async def connect(self, req: ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout) -> Connection:
        """Not one on which something lies that nobody has asked for – a second answer, a 408 before the server closes:
        it would be taken for the next request's answer, and from then on each for the one's before."""
        new = 0
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None or not protocol.should_close:
                return connection
            connection.close()
            new += not getattr(protocol, "used", False)
            if new == _NEW_TRIES:
                raise aiohttp.ServerDisconnectedError("the server spoke first")

    async def _create_connection(self, *arguments: Any, **more: Any) -> Any:
        async with self._opening:
            return await super()._create_connection(*arguments, **more)
