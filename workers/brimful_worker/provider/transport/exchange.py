"""One exchange of request and answer: its grant, its connection, and the time it may take."""

from __future__ import annotations

from asyncio import TimerHandle, Transport, get_running_loop
from collections.abc import Callable
from typing import Protocol


class Grant(Protocol):
    """The part of ``brimful_worker.admission.Lease`` that an exchange uses."""

    @property
    def lost(self) -> bool:
        """Whether the lease has ended, and its slot may be another's."""

    def sent(self) -> None:
        """Record the start. Raises StaleGrant if it comes too late; the grant is then given back."""

    def watch(self, transport: Transport) -> None:
        """Abort this connection when the lease can no longer be renewed."""

    def unwatch(self) -> None:
        """Stop watching: the connection may carry another request from now on."""


class HttpExchange:
    """The state of one exchange: its grant and its connection."""

    __slots__ = ("_on_sent", "_timeouts", "grant", "reused", "sent", "timed_out", "transport")

    def __init__(self, grant: Grant | None, timeouts: Timeouts, on_sent: Callable[[], None] | None) -> None:
        """``grant`` None: the exchange takes no start. The timeout runs from :meth:`start` to :meth:`finish`."""
        self.grant = grant
        self.timed_out = False
        self.sent = False
        self.reused = False
        """The connection had carried an exchange before."""
        self.transport: Transport | None = None
        self._timeouts = timeouts
        self._on_sent = on_sent

    def start(self, transport: Transport) -> None:
        """Call before the first byte is written. If ``grant.sent()`` raises, no byte may be written."""
        if self.grant is not None:
            self.grant.sent()
        self.sent = True
        self.transport = transport
        self._timeouts.add(self)
        if self._on_sent is not None:
            self._on_sent()
        if self.grant is not None:
            self.grant.watch(transport)

    def abort(self) -> None:
        """Drop the connection at once, with everything unsent and unread."""
        if self.transport is not None:
            self.transport.abort()

    def time_out(self) -> None:
        """Drop the connection: its reader sees it end."""
        self.timed_out = True
        self.abort()

    def finish(self) -> None:
        """End the timeout and release every reference.

        The grant refers to this object: a reference cycle would keep the request until the next garbage collection.
        """
        self._timeouts.discard(self)
        if self.grant is not None:
            self.grant.unwatch()
        self._on_sent = self.grant = self.transport = None


class Timeouts:
    """Ends the exchanges of one client that last too long. One timer serves all: they may all last equally long."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._ends: dict[HttpExchange, float] = {}
        """On the loop's clock, the next one first."""
        self._timer: TimerHandle | None = None

    def add(self, exchange: HttpExchange) -> None:
        loop = get_running_loop()
        self._ends[exchange] = loop.time() + self.timeout_s
        if self._timer is None:
            self._timer = loop.call_later(self.timeout_s, self._look)

    def discard(self, exchange: HttpExchange) -> None:
        self._ends.pop(exchange, None)

    def _look(self) -> None:
        self._timer = None
        loop = get_running_loop()
        while self._ends:
            exchange, end = next(iter(self._ends.items()))
            if end > loop.time():
                self._timer = loop.call_at(end, self._look)
                return
            del self._ends[exchange]
            loop.call_soon(exchange.time_out)  # in a step of its own: if one fails, the others are ended all the same
