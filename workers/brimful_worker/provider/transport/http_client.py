"""HTTP to the provider: one pool of connections, and one exchange at a time on each.

Connections – names, TLS, proxies, their pool – and the parser of answers are aiohttp's. What its ``ClientSession`` does
around them for every request (cookies, redirects, headers put together and taken apart, a request and an answer object,
and before Python 3.12 a task for the body) costs more than all the rest of an exchange, and is of no use here: the head
is always the same, and a request's bytes must leave in the step in which its grant is asked. What was read in aiohttp
3.14: ``client.py``, ``_connect_and_send_request``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError

from brimful.outcome import Cause
from brimful_worker.provider.answers.answer import Answer, TransportError
from brimful_worker.provider.transport.connections import RESOLVE_S, Connector, Protocol
from brimful_worker.provider.transport.exchange import Grant, HttpExchange
from brimful_worker.provider.transport.route import Route

_SENT_AT_ONCE = 65_536
"""Bytes. A larger body may not have left whole when it is refused, and the next request would wait behind its rest:
so each such refusal costs a connection. (How much has left, TLS does not tell.)"""


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
        self._headers = headers
        self._proxy = proxy
        self._max_bytes = max_bytes
        self._connector = Connector(tls)
        # From the wire on, the timeout is the exchange's own; before it, only connecting is bounded.
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=connect_timeout_s + RESOLVE_S, sock_connect=connect_timeout_s
        )

    async def aclose(self) -> None:
        await self._connector.close()

    def route(self, method: str, url: str, headers: Mapping[str, str]) -> Route:
        """Raises ValueError for a URL that is none."""
        return Route(method, url, {**self._headers, **headers}, proxy=self._proxy)

    async def exchange(
        self,
        route: Route,
        body: bytes | None,
        *,
        timeout_s: float,
        grant: Grant | None,
        on_wire: Callable[[HttpExchange], None] | None = None,
    ) -> Answer | TransportError:
        """Send one request and read its whole answer; redirects are not followed.

        ``timeout_s`` runs from the first byte written to the last byte read. What ``grant.sent()`` raises comes
        through, with nothing written. Cancelled, the connection is dropped at once.
        """
        wire = HttpExchange(grant, timeout_s, on_wire)
        connection = None
        try:
            connection = await self._connector.connect(route.target, [], self._timeout)
            self._send(connection, route, body, wire)
            answer = await self._read(connection)
            if answer.too_large or (answer.status >= 400 and body is not None and len(body) > _SENT_AT_ONCE):
                wire.abort()  # the provider may still be sending, or not have taken all of the body yet
            # Without a length, a body ends as its connection does: also by our own hand.
            return _timed_out(wire) if wire.expired else answer
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            wire.abort()
            error.__traceback__ = None  # the connection keeps the error, and with it would keep this request
            return _timed_out(wire) if wire.expired else _no_answer(error, wire)
        except BaseException:
            wire.abort()
            raise
        finally:
            wire.end()
            if connection is not None:
                connection.release()  # closes it where its answer was not read to the end

    def _send(self, connection: Connection, route: Route, body: bytes | None, wire: HttpExchange) -> None:
        """Nothing is written where this raises: the connection is as good as before, and waits for the next grant."""
        protocol = connection.protocol
        transport = None if protocol is None else protocol.transport
        if not isinstance(protocol, Protocol) or transport is None or transport.is_closing():
            raise aiohttp.ServerDisconnectedError("the connection closed before the request was sent")
        protocol.set_response_params(read_until_eof=True)
        wire.reused = protocol.used
        wire.begin(transport)
        protocol.used = True
        transport.write(route.head(body) + (body or b""))

    async def _read(self, connection: Connection) -> Answer:
        protocol = connection.protocol
        assert protocol is not None
        message, content = await protocol.read()
        while 100 <= message.code < 200 and message.code != 101:  # an early hint: the answer is still to come
            message, content = await protocol.read()
        chunks: list[bytes] = []
        size = 0
        while chunk := await content.readany():
            size += len(chunk)
            if size > self._max_bytes:
                return Answer(message.code, message.headers, b"", too_large=True)
            chunks.append(chunk)
        return Answer(message.code, message.headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))


def _timed_out(wire: HttpExchange) -> TransportError:
    return TransportError(Cause.TIMEOUT, f"no whole answer within {wire.timeout_s:g} s of sending", abandoned=True)


def _no_answer(error: BaseException, wire: HttpExchange) -> TransportError:
    """A network error in our own words: what broke and when.

    aiohttp's texts are not quoted where they may hold more than an errno: some show a proxy's password or raw bytes.
    """
    if isinstance(error, TimeoutError) and not error.errno:
        return TransportError(Cause.CONNECTION, "no connection within the connect timeout")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return TransportError(
            Cause.CONNECTION,
            f"the provider's certificate does not verify: {_reason(error.certificate_error)}; "
            "SSL_CERT_FILE can name the authority's file",
            permanent=True,
        )
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return TransportError(Cause.CONNECTION, f"no connection to the proxy: {_reason(error.os_error)}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return TransportError(
            Cause.CONNECTION, f"no connection to {error.host}:{error.port}: {_reason(error.os_error)}"
        )
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return TransportError(
            Cause.CONNECTION, f"the proxy refused the connection: HTTP {error.status}", permanent=error.status == 407
        )
    if isinstance(error, aiohttp.InvalidURL):
        return TransportError(Cause.BAD_REQUEST, "the provider's URL is none", permanent=True)
    if isinstance(error, aiohttp.ClientPayloadError):
        return TransportError(Cause.CONNECTION, "the connection broke off within the answer's body")
    if isinstance(error, (aiohttp.ClientResponseError, HttpProcessingError)):
        return TransportError(Cause.BAD_ANSWER, "what came back is no HTTP")
    if isinstance(error, (aiohttp.ClientConnectionError, OSError)):
        when = "before the request was sent" if wire.sent_at is None else "before an answer came"
        how = _reason(error) if isinstance(error, OSError) else "by the server"
        return TransportError(Cause.CONNECTION, f"the connection closed {when}: {how}", stale=wire.reused)
    if isinstance(error, ValueError):
        return TransportError(Cause.BAD_REQUEST, f"the request cannot be sent: {type(error).__name__}", permanent=True)
    return TransportError(Cause.CONNECTION, _reason(error))


def _reason(error: BaseException) -> str:
    """An operating system's or TLS library's own words."""
    if isinstance(error, OSError) and error.strerror:
        return " ".join(error.strerror.split())[:200]
    if isinstance(error, ssl.SSLError) or not isinstance(error, aiohttp.ClientError):
        return " ".join(str(error).split())[:200] or type(error).__name__
    return type(error).__name__
