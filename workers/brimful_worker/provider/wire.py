"""The moment at which a request reaches the wire.

A grant is good for a short time only: what counts is not when a request was admitted but when its bytes leave. aiohttp
takes a connection first (from its pool, or a new one), and sends then; the hook sits between the two.

What was read in aiohttp 3.14 (``client_reqrep.py``): ``ClientRequest.send`` prepares the head and, before Python 3.12,
has head and body written by a task of its own, later. Here they are written at once, together, by the public
``StreamWriter``; so the body travels with the :class:`Wire`, and aiohttp is told its length alone.
"""

from __future__ import annotations

import time
from asyncio import TimerHandle, Transport, get_running_loop
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from aiohttp import ClientRequest, ClientResponse, ServerDisconnectedError
from aiohttp.http_writer import StreamWriter


class Grant(Protocol):
    """The part of a lease that matters here; see ``brimful_worker.admission.Lease``."""

    @property
    def wire_deadline(self) -> float:
        """On :func:`brimful_worker.admission.clock.steady`: the latest time at which bytes may leave."""

    @property
    def lost(self) -> bool:
        """The slot is no longer ours."""

    def sent(self) -> None:
        """Raises StaleGrant when it is too late; the grant is then given back."""

    def watch(self, transport: Transport) -> None:
        """The connection to be shut when the lease can no longer be renewed."""


class Wire:
    """One exchange's way onto the wire. ``grant`` None: the exchange takes no start."""

    __slots__ = (
        "_ended",
        "_on_sent",
        "_timer",
        "body",
        "expired",
        "grant",
        "reused",
        "sent_at",
        "timeout_s",
        "transport",
    )

    def __init__(
        self, grant: Grant | None, body: bytes, timeout_s: float, on_sent: Callable[[Wire], None] | None
    ) -> None:
        """``timeout_s`` after the first byte the connection is dropped, unless :meth:`end` comes before."""
        self.grant = grant
        self.body = body
        self.timeout_s = timeout_s
        self.expired = False
        """The timeout has come."""
        self.sent_at: float | None = None
        """``time.monotonic()`` of the first byte written; None: nothing was written."""
        self.reused = False
        """The connection had carried an exchange before."""
        self.transport: Transport | None = None
        self._on_sent = on_sent
        self._timer: TimerHandle | None = None
        self._ended = False

    def begin(self, transport: Transport) -> None:
        """Bytes are about to leave. Raises what ``grant.sent()`` raises: then none may."""
        if self._ended:
            raise ServerDisconnectedError("the exchange has ended")
        if self.sent_at is not None:
            # aiohttp sends a GET again by itself when its connection broke; a start pays for one sending only.
            raise ServerDisconnectedError("the connection broke after the request was sent")
        if self.grant is not None:
            self.grant.sent()
        self.sent_at = time.monotonic()
        self.transport = transport
        self._timer = get_running_loop().call_later(self.timeout_s, self._expire)
        if self._on_sent is not None:
            self._on_sent(self)
        if self.grant is not None:
            self.grant.watch(transport)

    def abort(self) -> None:
        """Drop the connection at once, whatever was still to be written or read."""
        if self.transport is not None:
            self.transport.abort()

    def end(self) -> None:
        """The exchange is over, and its timeout with it. Nothing is held on to: the timer knows the context that knows
        this object, and a ring of that kind would keep the whole request until the garbage collector comes by."""
        if self._timer is not None:
            self._timer.cancel()
        self._ended = True
        self._timer = self._on_sent = self.grant = self.transport = None

    def _expire(self) -> None:
        # Whoever reads meets the connection's end: as sure as a cancellation, at a fifth of what asyncio.timeout costs
        # a request.
        self.expired = True
        self.abort()


WIRE: ContextVar[Wire | None] = ContextVar("brimful_wire", default=None)
"""Set around each exchange; aiohttp has no other way to hand something to its request object."""


class WiredRequest(ClientRequest):
    """A request that asks its grant before it writes. Only within an exchange: it has no body of its own."""

    async def send(self, conn: Any) -> ClientResponse:
        wire, protocol = WIRE.get(), conn.protocol
        assert wire is not None
        target = str(self.url) if self.proxy and not self.is_ssl() else self.url.raw_path_qs
        writer = StreamWriter(protocol, self.loop)
        await writer.write_headers(f"{self.method} {target} HTTP/1.1", self.headers)  # kept back until the body comes
        try:
            transport = protocol.transport
            if transport is None or transport.is_closing():
                raise ServerDisconnectedError("the connection closed before the request was sent")
            wire.reused = getattr(protocol, "_brimful_used", False)
            wire.begin(transport)
        except BaseException:
            conn.release()  # nothing was written: the connection is as good as before, and waits for the next grant
            raise
        protocol._brimful_used = True
        await writer.write_eof(wire.body)
        protocol.start_timeout()
        return self.response_class(
            self.method,
            self.original_url,
            writer=None,
            continue100=None,
            timer=self._timer,
            request_info=self.request_info,
            traces=self._traces,
            loop=self.loop,
            session=self._session,
            stream_writer=writer,
        )
