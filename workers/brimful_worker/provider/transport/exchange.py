"""One HTTP exchange: its grant is checked in the same event-loop step in which its bytes are written.

A grant expires soon after it is given, so it is checked when the connection is ready, not when the request enters.
"""

from __future__ import annotations

import time
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
    """The state of one exchange: its grant, its connection and its timeout."""

    __slots__ = ("_on_sent", "_timer", "grant", "reused", "sent_at", "timed_out", "timeout_s", "transport")

    def __init__(self, grant: Grant | None, timeout_s: float, on_sent: Callable[[HttpExchange], None] | None) -> None:
        """``grant`` None: the exchange takes no start. ``timeout_s`` runs from :meth:`start` to :meth:`finish`."""
        self.grant = grant
        self.timeout_s = timeout_s
        self.timed_out = False
        self.sent_at: float | None = None
        """``time.monotonic()`` of the first byte; None if none was written."""
        self.reused = False
        """The connection had carried an exchange before."""
        self.transport: Transport | None = None
        self._on_sent = on_sent
        self._timer: TimerHandle | None = None

    def start(self, transport: Transport) -> None:
        """Call before the first byte is written. If ``grant.sent()`` raises, no byte may be written."""
        if self.grant is not None:
            self.grant.sent()
        self.sent_at = time.monotonic()
        self.transport = transport
        self._timer = get_running_loop().call_later(self.timeout_s, self._time_out)
        if self._on_sent is not None:
            self._on_sent(self)
        if self.grant is not None:
            self.grant.watch(transport)

    def abort(self) -> None:
        """Drop the connection at once, with everything unsent and unread."""
        if self.transport is not None:
            self.transport.abort()

    def finish(self) -> None:
        """Cancel the timeout and release every reference.

        The timer and the grant refer to this object: a reference cycle would keep the request until the next garbage
        collection.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self.grant is not None:
            self.grant.unwatch()
        self._timer = self._on_sent = self.grant = self.transport = None

    def _time_out(self) -> None:
        # The reader sees the connection end. asyncio.timeout would cost five times as much per request.
        self.timed_out = True
        self.abort()
