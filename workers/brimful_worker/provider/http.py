"""HTTP to the provider: one shared session, and one exchange at a time on it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import orjson

from brimful.outcome import Cause
from brimful_worker.provider.answer import Answer, NoAnswer
from brimful_worker.provider.wire import WIRE, Grant, Wire, WiredRequest

_KEEPALIVE_S = 50.0
"""Idle connections are kept this long: long enough for the next request of a busy fleet, and shorter than what the
load balancers in front of providers allow (60 s and more), so that ours is the side that closes."""
_DNS_TTL_S = 60


_OPENING = 128
"""Connections being made at once. Thousands of handshakes together would outlast each other's timeouts and drown the
provider's queue of new connections; so they follow one another, and each one's timeout begins with its own turn."""
_RESOLVE_S = 60.0
"""Beyond it even a turn that never comes, or a name server that never answers, is a failure."""


def encode(body: Mapping[str, Any]) -> bytes:
    """JSON bytes. orjson where it can; the standard library where a string holds a lone surrogate (as ``\\ud800``)."""
    try:
        return orjson.dumps(body)
    except (orjson.JSONEncodeError, TypeError):
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")


class _Connector(aiohttp.TCPConnector):
    """As aiohttp's, but for the queue before new connections."""

    def __init__(self, tls: ssl.SSLContext | bool) -> None:
        super().__init__(
            limit=0,  # admission decides how many; a second limit below it would only hide waiting from it
            limit_per_host=0,
            keepalive_timeout=_KEEPALIVE_S,
            ttl_dns_cache=_DNS_TTL_S,
            ssl=tls,
        )
        self._opening = asyncio.Semaphore(_OPENING)

    async def _create_connection(self, *arguments: Any, **more: Any) -> Any:
        async with self._opening:
            return await super()._create_connection(*arguments, **more)


class Http:
    """One process's connections to one provider. Open it on the loop that will use it."""

    def __init__(
        self,
        *,
        headers: Mapping[str, str],
        connect_timeout_s: float,
        max_bytes: int,
        tls: ssl.SSLContext | bool = True,
        proxy: str | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._session = aiohttp.ClientSession(
            connector=_Connector(tls),
            headers=headers,
            # From the wire on, the timeout is the exchange's own; before it, only connecting is bounded.
            timeout=aiohttp.ClientTimeout(
                total=None, connect=connect_timeout_s + _RESOLVE_S, sock_connect=connect_timeout_s
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=WiredRequest,
            auto_decompress=True,
            proxy=proxy,
        )

    async def aclose(self) -> None:
        await self._session.close()

    async def exchange(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        grant: Grant | None,
        on_wire: Callable[[Wire], None] | None = None,
    ) -> Answer | NoAnswer:
        """Send one request and read its whole answer; redirects are not followed.

        ``timeout_s`` runs from the first byte written to the last byte read. What ``grant.sent()`` raises comes
        through, with nothing written. Cancelled, the connection is dropped at once.
        """
        wire = Wire(grant, body or b"", timeout_s, on_wire)
        token = WIRE.set(wire)
        if body is not None:
            headers = {**(headers or {}), "Content-Length": str(len(body))}
        try:
            async with self._session.request(method, url, headers=headers, allow_redirects=False) as response:
                answer = await self._read(response)
            # Without a length, a body ends as its connection does: also by our own hand.
            return _timed_out(wire) if wire.expired else answer
        except (aiohttp.ClientError, OSError, ValueError) as error:
            wire.abort()
            return _timed_out(wire) if wire.expired else _no_answer(error, wire)
        except BaseException:
            wire.abort()
            raise
        finally:
            wire.end()
            WIRE.reset(token)

    async def _read(self, response: aiohttp.ClientResponse) -> Answer:
        headers = response.headers
        content = response.content
        chunks: list[bytes] = []
        size = 0
        while chunk := await content.readany():
            size += len(chunk)
            if size > self._max_bytes:
                response.close()
                return Answer(response.status, headers, b"", too_large=True)
            chunks.append(chunk)
        return Answer(response.status, headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))


def _timed_out(wire: Wire) -> NoAnswer:
    return NoAnswer(Cause.TIMEOUT, f"no whole answer within {wire.timeout_s:g} s of sending", abandoned=True)


def _no_answer(error: BaseException, wire: Wire) -> NoAnswer:
    """A network error in our own words: what broke and when.

    aiohttp's texts are not quoted where they may hold more than an errno: some show a proxy's password or raw bytes.
    """
    if isinstance(error, aiohttp.ServerTimeoutError):
        return NoAnswer(Cause.CONNECTION, "no connection within the connect timeout")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return NoAnswer(
            Cause.CONNECTION,
            f"the provider's certificate does not verify: {_reason(error.certificate_error)}; "
            "SSL_CERT_FILE can name the authority's file",
            permanent=True,
        )
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return NoAnswer(Cause.CONNECTION, f"no connection to the proxy: {_reason(error.os_error)}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return NoAnswer(Cause.CONNECTION, f"no connection to {error.host}:{error.port}: {_reason(error.os_error)}")
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return NoAnswer(
            Cause.CONNECTION, f"the proxy refused the connection: HTTP {error.status}", permanent=error.status == 407
        )
    if isinstance(error, aiohttp.InvalidURL):
        return NoAnswer(Cause.BAD_REQUEST, "the provider's URL is none", permanent=True)
    if isinstance(error, aiohttp.ClientPayloadError):
        return NoAnswer(Cause.CONNECTION, "the connection broke off within the answer's body")
    if isinstance(error, aiohttp.ClientResponseError):
        return NoAnswer(Cause.BAD_ANSWER, "what came back is no HTTP")
    if isinstance(error, (aiohttp.ClientConnectionError, ConnectionError)):
        when = "before the request was sent" if wire.sent_at is None else "before an answer came"
        how = _reason(error) if isinstance(error, OSError) else "by the server"
        return NoAnswer(Cause.CONNECTION, f"the connection closed {when}: {how}", stale=wire.reused)
    if isinstance(error, ValueError):
        return NoAnswer(Cause.BAD_REQUEST, f"the request cannot be sent: {type(error).__name__}", permanent=True)
    return NoAnswer(Cause.CONNECTION, _reason(error))


def _reason(error: BaseException) -> str:
    """An operating system's or TLS library's own words."""
    if isinstance(error, OSError) and error.strerror:
        return " ".join(error.strerror.split())[:200]
    if isinstance(error, ssl.SSLError) or not isinstance(error, aiohttp.ClientError):
        return " ".join(str(error).split())[:200] or type(error).__name__
    return type(error).__name__
