"""A granted slot and start, as the code that sends the request uses it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextvars import ContextVar
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from brimful_worker.admission.errors import StaleGrant
from brimful_worker.liveness.boot_time import boot_time

if TYPE_CHECKING:
    from brimful_worker.liveness.watchdog import Watch, Watchdog

log = logging.getLogger(__name__)


class HasSocket(Protocol):
    """asyncio's transports, and network streams of other libraries."""

    def get_extra_info(self, name: str, /) -> Any: ...


class Refused(IntEnum):
    """The limit by which the provider refused a request (429)."""

    SLOTS = 1
    STARTS = 2
    EITHER = 3
    """The refusal does not say."""


class Lease:
    """A slot and a start, valid inside ``async with admission.slot(...) as lease``.

    Failure mode: when Redis cannot be reached for most of a lease, or reports the lease as lost, the body is cancelled
    and the ``async with`` raises LeaseLost. A watched connection is shut even if the event loop is blocked. While the
    whole process is stopped (SIGSTOP, a debugger, a frozen container) nothing in it can end its request: see
    :class:`Admission`, ``guardian``.
    """

    __slots__ = (  # a process that holds thousands reads and renews them all every few seconds
        *("id", "name", "waited_s", "wire_deadline", "renewed", "granted_ms", "deadline", "sent_at", "size"),
        *("deaths", "deaths_forgotten", "start_only", "companions", "lost", "ended", "given_back"),
        *("ok", "tokens_used", "cooldown_s", "refused", "stated_starts"),
        *("_reported", "_watchdog", "_watch", "_on_lost"),
    )

    def __init__(self, ticket: str, waited_s: float, wire_deadline: float, granted: float, watchdog: Watchdog) -> None:
        self.id = ticket
        self.waited_s = waited_s
        """Seconds from asking to the grant."""
        self.wire_deadline = wire_deadline
        """On ``boot_time()``: the request's bytes must be written before this."""
        self.renewed = granted
        """On ``boot_time()``: when it was granted or last renewed."""
        self.granted_ms = 0
        """On Redis's clock."""
        self.deadline = math.inf
        """On ``boot_time()``: when it ends unless it is renewed."""
        self.deaths_forgotten = False
        self.deaths = 0
        """Processes that have died while they held a lease of this request; 0 if it has no name."""
        self.name: str | None = None
        """Digest of its request's name if the ticket names another request; else None."""
        self.start_only = False
        """It holds no slot, and needs no renewal."""
        self.companions: tuple[Lease, ...] = ()
        """Leases in other windows that the same request needs: it is sent under all of them or under none."""
        self.lost = False
        self.ended = False
        self.given_back = False
        self.ok: bool | None = None
        self.tokens_used: int | None = None
        self.cooldown_s: float | None = None
        self.refused: Refused | None = None
        self.stated_starts = 0
        self.sent_at = 0.0
        """On ``boot_time()``: when :meth:`sent` was called; 0 = not yet."""
        self.size = 0
        """Tokens that the request may use, where they were given; latencies of like sizes are compared."""
        self._reported = False
        self._watchdog = watchdog
        self._watch: Watch | None = None
        self._on_lost: Callable[[], None] | None = None

    def sent(self) -> None:
        """Call this when the request's bytes are written.

        Raises StaleGrant if that is too late: slot and start are given back when the ``async with`` ends. Raises it
        for a second request too, which needs a grant of its own; nothing is given back then.
        """
        if self.sent_at:
            raise StaleGrant("this grant was used already; ask for a new one")
        now, late = boot_time(), False
        together = (self, *self.companions)
        for lease in together:
            late = late or now > lease.wire_deadline
        if late:
            for lease in together:
                lease.given_back = True
            raise StaleGrant("the grant reached the wire too late; ask for a new one")
        for lease in together:
            lease.sent_at = now

    def give_back(self) -> None:
        """Return slot and start unused when the ``async with`` ends. Does nothing after :meth:`sent`."""
        if not self.sent_at:
            for lease in (self, *self.companions):
                lease.given_back = True

    def forget_deaths(self) -> None:
        """Count :attr:`deaths` from zero again after this lease's end: its request has failed for good."""
        self.deaths_forgotten = True

    def watch(self, transport: HasSocket) -> None:
        """Shut this connection when the lease is lost. Replaces the connection watched before.

        ``transport``: anything whose ``get_extra_info("socket")`` is its socket: asyncio's transports, and httpcore's
        network streams. ``LeaseConnector`` calls this for aiohttp.
        """
        self.unwatch()
        sock = transport.get_extra_info("socket")
        descriptor = sock.fileno() if sock is not None else -1
        if descriptor < 0 or self.ended or self.start_only:
            return
        try:
            self._watch = self._watchdog.add(self, descriptor)
        except OSError as error:
            log.warning("admission: cannot watch a connection, only the event loop can end its request: %s", error)

    def unwatch(self) -> None:
        """Stop watching: the connection no longer serves this request."""
        watch, self._watch = self._watch, None
        if watch is not None:
            self._watchdog.remove(watch)

    def shut_now(self) -> None:
        """Shut the watched connection at once, and take the lease for lost: for a request in a thread, which cannot be
        cancelled."""
        self.lost = True
        if (watch := self._watch) is not None:
            self._watchdog.shut(watch)

    def report(
        self,
        *,
        ok: bool | None,
        tokens_used: int | None = None,
        cooldown_s: float | None = None,
        refused: Refused | None = None,
        stated_starts: int = 0,
    ) -> None:
        """What became of the request, for the fleet.

        ``ok`` feeds the circuit breaker; None is neutral. ``tokens_used`` replaces the estimate. For ``cooldown_s``
        seconds after its end the slot stays taken: the provider may still count the request. If the body raises
        without a report, that is :attr:`Limits.cooldown_s`. ``refused``: the request was refused (429) by this limit of
        the provider's, from which the fleet learns it. ``stated_starts``: starts a minute that the provider states.
        """
        self._reported = True
        self.ok, self.tokens_used, self.cooldown_s, self.refused = ok, tokens_used, cooldown_s, refused
        self.stated_starts = stated_starts
        for lease in self.companions:
            lease.report(ok=None, tokens_used=tokens_used)

    # what local_state and the watchdog call

    def on_lost(self, call: Callable[[], None] | None) -> None:
        self._on_lost = call

    def lose(self) -> None:
        """The lease has ended before its request. Called on the event loop's thread."""
        if self.ended:
            return
        self.lost = True
        call, self._on_lost = self._on_lost, None
        if call is not None:
            call()

    def shut(self) -> None:
        """The watchdog is shutting the connection. Called on any thread; the event loop ends the body when it runs."""
        self._watch = None
        self.lost = True

    def end(self) -> None:
        self.ended = True
        self.unwatch()

    def rest_s(self, default_s: float, failed: bool) -> float:
        """Seconds for which the slot stays taken after this lease's end."""
        if self.cooldown_s is not None:
            return self.cooldown_s
        return default_s if failed and not self._reported else 0.0


current_lease: ContextVar[Lease | None] = ContextVar("brimful_lease", default=None)
"""The lease of the innermost ``async with admission.slot()`` block around the running code."""
