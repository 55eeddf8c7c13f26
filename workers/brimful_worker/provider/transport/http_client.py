"""HTTP client for the provider: a pool of connections, and one exchange at a time on each.

aiohttp's connector and response parser are used without its ``ClientSession``, whose per-request work (cookies,
redirects, merging of headers, request and response objects) costs more than the rest of an exchange. The head is always
the same here. And a grant expires soon after it is given, so it is checked when the connection is ready, in the step of
the event loop in which the bytes are written. The exchange follows aiohttp 3.14's ``_connect_and_send_request``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping

import aiohttp
from aiohttp import StreamReader

from brimful.outcome import Cause
from brimful.runtime.tracing import traceparent
from brimful_worker.provider.answers.answer import Answer, TransportError
from brimful_worker.provider.transport.bodies import Bodies, BodyRefused
from brimful_worker.provider.transport.connections import (
    Connection,
    Connector,
    ContentEncodingError,
    HttpProcessingError,
    LineTooLong,
    ResponseProtocol,
    Route,
)
from brimful_worker.provider.transport.exchange import Grant, HttpExchange, Timeouts

_SENT_AT_ONCE = 65_536
"""Bytes. When a larger request is refused, its body may not have left completely (TLS does not show it), and the next
request would wait behind the rest: so the connection is dropped."""
_MAX_HINTS = 16
"""Interim responses (1xx) to one request."""
_MAX_LINE_BYTES = 131_072
_MAX_HEADERS = 2048
"""Of an answer's head. aiohttp's own limits, 8,190 bytes and 128 headers, are below what gateways send."""
_MAX_HEAD_BYTES = 4 * 2**20
"""Of an answer's whole head, and of what comes with its end."""


Listen = Callable[[int, Mapping[str, str]], Callable[[bytes], bool] | None]
"""Called with an answer's status and headers. Returns None if the body is to be read whole, or a function that gets the
body as it comes, and an empty chunk at its end. It returns True when it needs nothing more; the connection is then kept
if the body ends soon."""
_TRAILING_S = 1.0
"""Seconds in which the body must end once nothing more of it is needed."""


class HttpClient:
    """One process's connections to one provider. Make it on the loop that uses it."""

    def __init__(
        self,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        connect_timeout_s: float,
        max_bytes: int,
        tls: ssl.SSLContext | bool = True,
        proxy: str | None = None,
    ) -> None:
        """``headers`` are sent with every request; a body of more than ``max_bytes`` is refused (:mod:`.bodies`).

        ``timeout_s`` runs from the first byte written to the last byte read.
        """
        self._headers = headers
        self._timeouts = Timeouts(timeout_s)
        self._proxy = proxy
        self._bodies = Bodies(max_bytes)
        self._connector = Connector(tls, connect_timeout_s)

    async def aclose(self) -> None:
        await self._connector.close()

    def route(self, method: str, url: str, headers: Mapping[str, str]) -> Route:
        """Raises ValueError for an invalid URL or header."""
        return Route(method, url, {**self._headers, **headers}, proxy=self._proxy)

    async def exchange(
        self,
        route: Route,
        body: bytes | None,
        grant: Grant | None,
        on_sent: Callable[[], None] | None = None,
        listen: Listen | None = None,
    ) -> Answer | TransportError:
        """Send one request and read the complete answer. Redirects are not followed.

        An exception of ``grant.sent()`` is raised with nothing written. A cancellation drops the connection at once.
        ``listen`` may take the body as it comes; the Answer's own is then empty.
        """
        exchange = HttpExchange(grant, self._timeouts, on_sent)
        connection = None
        try:
            connection = await self._connector.open(route)
            protocol = _send(connection, route, body, exchange)
            answer = await self._read(protocol, listen)
            protocol.answered()
            if answer.status >= 400 and body is not None and len(body) > _SENT_AT_ONCE:
                exchange.abort()
            # A body without a length ends with its connection, also when our timeout ended it.
            return self._timed_out() if exchange.timed_out else answer
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            exchange.abort()
            error.__traceback__ = None  # the connection keeps the error, which would keep this frame
            if connection is not None and getattr(connection.protocol, "overflowed", False):
                error = BodyRefused("the answer's head, or its framing, is larger than brimful reads")
            return self._timed_out() if exchange.timed_out else _transport_error(error, exchange)
        except BaseException:
            exchange.abort()
            raise
        finally:
            exchange.finish()
            if connection is not None:
                connection.release()  # closes it if its answer was not read to the end

    def _timed_out(self) -> TransportError:
        return TransportError(
            Cause.TIMEOUT, f"no complete answer within {self._timeouts.timeout_s:g} s", abandoned=True
        )

    async def _read(self, protocol: ResponseProtocol, listen: Listen | None) -> Answer:
        message, content = await protocol.read()
        hints = 0
        while 100 <= message.code < 200 and message.code != 101:  # an early hint; the answer follows
            hints += 1
            if hints > _MAX_HINTS:
                raise BodyRefused(f"more than {_MAX_HINTS} interim responses (HTTP {message.code})")
            message, content = await protocol.read()
        protocol.most = 2 * self._bodies.max_bytes + _MAX_HEAD_BYTES
        if listen is not None and (feed := listen(message.code, message.headers)) is not None:
            await _pass_on(content, feed)
            return Answer(message.code, message.headers, b"")
        body = await self._bodies.read(content, error=not 200 <= message.code < 300)
        return Answer(message.code, message.headers, body)


async def _pass_on(content: StreamReader, feed: Callable[[bytes], bool]) -> None:
    while not content.at_eof():
        chunk = await content.readany()
        if chunk and feed(chunk):
            break
    else:
        feed(b"")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_TRAILING_S):
            while not content.at_eof():
                await content.readany()


def _send(connection: Connection, route: Route, body: bytes | None, exchange: HttpExchange) -> ResponseProtocol:
    """Write the request; returns what reads its answer.

    If this raises, nothing was written, and the connection can carry the next grant's request.
    """
    protocol = connection.protocol
    transport = None if protocol is None else protocol.transport
    if not isinstance(protocol, ResponseProtocol) or transport is None or transport.is_closing():
        raise aiohttp.ServerDisconnectedError("the connection closed before the request was sent")
    # A new parser for each answer: the last one may hold the beginning of a second, unsolicited answer, whose end would
    # then be taken for the answer to this request.
    protocol.set_response_params(
        read_until_eof=True, max_line_size=_MAX_LINE_BYTES, max_field_size=_MAX_LINE_BYTES, max_headers=_MAX_HEADERS
    )
    exchange.reused = protocol.used
    exchange.start(transport)
    protocol.used = True
    protocol.received, protocol.most = 0, _MAX_HEAD_BYTES
    span = traceparent()
    transport.write(route.head(body, b"" if span is None else b"traceparent: %b\r\n" % span) + (body or b""))
    return protocol


def _transport_error(error: BaseException, exchange: HttpExchange) -> TransportError:
    """What failed, and when. aiohttp's own texts are not quoted: some contain a proxy's password or raw bytes."""
    cause, permanent, stale, abandoned = Cause.CONNECTION, False, False, False
    match error:
        case TimeoutError() if not error.errno:
            message = "no connection within the connect timeout"
        case aiohttp.ClientConnectorCertificateError():
            permanent = True
            reason = _reason(error.certificate_error)
            message = f"the provider's certificate does not verify: {reason}; set SSL_CERT_FILE to its authority's file"
        case aiohttp.ClientProxyConnectionError():
            message = f"no connection to the proxy: {_reason(error.os_error)}"
        case aiohttp.ClientConnectorError():
            message = f"no connection to {error.host}:{error.port}: {_reason(error.os_error)}"
        case aiohttp.ClientHttpProxyError():
            permanent = error.status == 407
            message = f"the proxy refused the connection: HTTP {error.status}"
        case aiohttp.InvalidURL():
            cause, permanent = Cause.BAD_REQUEST, True
            message = "invalid provider URL"
        case aiohttp.ClientPayloadError() if isinstance(error.__cause__, ContentEncodingError):
            cause = Cause.BAD_ANSWER
            message = "the answer's compression cannot be decoded"
        case aiohttp.ClientPayloadError():
            message = "the connection ended within the answer's body"
        case HttpProcessingError() if isinstance(error.__cause__, LineTooLong):
            # The provider's next answers would be the same, and each of them is paid for.
            cause, permanent = Cause.BAD_ANSWER, True
            message = f"the answer's head is longer than brimful reads ({_MAX_LINE_BYTES:,} bytes a header)"
        case HttpProcessingError() if "content-encoding" in str(error.message).lower():
            cause = Cause.BAD_ANSWER
            message = "the answer's compression cannot be decoded"
        case aiohttp.ClientResponseError() | HttpProcessingError():
            cause = Cause.BAD_ANSWER
            message = "the answer is not HTTP"
        case aiohttp.ClientConnectionError() | OSError():
            stale = exchange.reused
            when = "before the request was sent" if not exchange.sent else "before an answer came"
            message = f"connection closed {when}: {_reason(error) if isinstance(error, OSError) else 'by the server'}"
        case BodyRefused():
            cause, permanent, abandoned = Cause.BAD_ANSWER, not error.again, not error.complete
            message = str(error)
        case ValueError():
            cause, permanent = Cause.BAD_REQUEST, True
            message = f"the request cannot be sent: {type(error).__name__}"
        case _:
            message = _reason(error)
    return TransportError(cause, message, permanent=permanent, stale=stale, abandoned=abandoned)


def _reason(error: BaseException) -> str:
    """The operating system's or the TLS library's message."""
    if isinstance(error, OSError) and error.strerror:
        return " ".join(error.strerror.split())[:200]
    if isinstance(error, ssl.SSLError) or not isinstance(error, aiohttp.ClientError):
        return " ".join(str(error).split())[:200] or type(error).__name__
    return type(error).__name__
