"""The moment at which a request reaches the wire.

A grant is good for a short time only: what counts is not when a request was admitted but when its bytes leave. So it is
asked with a connection in hand, in the same step in which the bytes are written.
"""

from __future__ import annotations

import time
from asyncio import TimerHandle, Transport, get_running_loop
from collections.abc import Callable
from typing import Protocol


class Grant(Protocol):
    """The part of a lease that matters here; see ``brimful_worker.admission.Lease``."""

    @property
    def lost(self) -> bool:
        """The slot is no longer ours."""

    def sent(self) -> None:
        """Raises StaleGrant when it is too late; the grant is then given back."""

    def watch(self, transport: Transport) -> None:
        """The connection to be shut when the lease can no longer be renewed."""

    def unwatch(self) -> None:
        """It may be another request's from now on."""


class HttpExchange:
    """One exchange's way onto the wire. ``grant`` None: the exchange takes no start."""

    __slots__ = ("_on_sent", "_timer", "expired", "grant", "reused", "sent_at", "timeout_s", "transport")

    def __init__(self, grant: Grant | None, timeout_s: float, on_sent: Callable[[HttpExchange], None] | None) -> None:
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

    def begin(self, transport: Transport) -> None:
        """Bytes are about to leave. Raises what ``grant.sent()`` raises: then none may."""
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
        """The exchange is over, and its timeout with it. Nothing is held on to: the timer and the grant know this
        object, and a ring would keep the whole request until the garbage collector comes by."""
        if self._timer is not None:
            self._timer.cancel()
        if self.grant is not None:
            self.grant.unwatch()
        self._timer = self._on_sent = self.grant = self.transport = None

    def _expire(self) -> None:
        # Whoever reads meets the connection's end: as sure as a cancellation, at a fifth of what asyncio.timeout costs
        # a request.
        self.expired = True
        self.abort()
