"""The moment at which a request reaches the wire.

A grant is good for a short time only: what counts is not when a request was admitted but when its bytes leave. aiohttp
takes a connection first (from its pool, or a new one), and writes then; the hook sits between the two.

What was read in aiohttp 3.14 (``client_reqrep.py``): ``ClientRequest.send`` prepares the head, and ``write_bytes``,
in a task of its own, writes head and body together; a request without a body is written by ``send`` itself.
"""

from __future__ import annotations

import time
from asyncio import TimerHandle, Transport, get_running_loop
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from aiohttp import ClientRequest, ClientResponse, ServerDisconnectedError

from brimful_worker.admission.clock import steady


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

    __slots__ = ("_ended", "_on_sent", "_timer", "expired", "grant", "reused", "sent_at", "timeout_s", "transport")

    def __init__(self, grant: Grant | None, timeout_s: float, on_sent: Callable[[Wire], None] | None) -> None:
        """``timeout_s`` after the first byte the connection is dropped, unless :meth:`end` comes before."""
        self.grant = grant
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

    def begin(self, transport: Transport | None) -> None:
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
        if self.grant is not None and transport is not None:
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
    """A request that asks its grant before it writes."""

    async def send(self, conn: Any) -> ClientResponse:
        wire = WIRE.get()
        if wire is None:
            return await super().send(conn)
        protocol = conn.protocol
        wire.reused = getattr(protocol, "_brimful_used", False)
        try:
            grant = wire.grant
            if not self._body or (grant is not None and steady() >= grant.wire_deadline):
                wire.begin(protocol.transport)
        except BaseException:
            conn.release()  # nothing was written: the connection is as good as before, and waits for the next grant
            raise
        protocol._brimful_used = True
        return await super().send(conn)

    async def write_bytes(self, writer: Any, conn: Any, content_length: int | None = None) -> None:
        wire = WIRE.get()
        if wire is not None and wire.sent_at is None:
            protocol = conn.protocol
            try:
                if protocol is None:
                    raise ServerDisconnectedError("the connection closed before the request was sent")
                wire.begin(protocol.transport)
            except Exception as error:
                # The reader waits on the protocol: it gets the error, and aiohttp closes the unused connection.
                if protocol is not None:
                    protocol.set_exception(error)
                return
        await super().write_bytes(writer, conn, content_length)
