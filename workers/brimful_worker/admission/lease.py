"""A held slot with its start, in the hands of the code that sends the request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from brimful_worker.admission.errors import StaleGrant
from brimful_worker.liveness.boot_time import boot_time

if TYPE_CHECKING:
    from brimful_worker.liveness.watchdog import Watch, Watchdog


log = logging.getLogger(__name__)

_SETTLE_LEAST_S = 0.005
_SETTLE_SHARE = 0.01


class Term:
    """How long leases last that were granted or renewed together. Both times are on :func:`.boot_time`."""

    __slots__ = ("deadline", "renewed", "tickets")

    def __init__(self, renewed: float, deadline: float) -> None:
        self.renewed = renewed
        self.deadline = deadline
        """When they end unless they are renewed."""
        self.tickets: dict[str, None] = {}
        """Those that are held."""


class Lease:
    """Valid inside ``async with admission.slot(...) as lease``.

    Failure mode: when Redis cannot be reached for most of a lease, or says that the lease is lost, the body is
    cancelled and the ``async with`` raises LeaseLost; a watched connection is shut in any case.
    """

    def __init__(self, ticket: str, waited_s: float, wire_deadline: float, term: Term, watchdog: Watchdog) -> None:
        self.id = ticket
        self.waited_s = waited_s
        """Seconds from asking to the grant."""
        self.wire_deadline = wire_deadline
        """On :func:`.boot_time`: the request's bytes must be written before this."""
        self.term = term
        self.start_only = False
        """It holds no slot, and ends of itself."""
        self.lost = False
        self.ended = False
        self.given_back = False
        self.reported = False
        self.ok: bool | None = None
        self.tokens_used: int | None = None
        self.cooloff_s: float | None = None
        self.settle_s = 0.0
        self.wired = False
        self._wired_at = 0.0
        self._watchdog = watchdog
        self._watch: Watch | None = None
        self._on_lost: Callable[[], None] | None = None

    @property
    def deadline(self) -> float:
        """On :func:`.boot_time`: when the lease ends unless it is renewed."""
        return self.term.deadline

    def sent(self) -> None:
        """Say that the request's bytes are being written now. Raises StaleGrant when that is too late; the grant is
        then given back, slot and start, as the ``async with`` ends. A second sending needs a grant of its own: it
        raises too, and gives nothing back."""
        if self.wired:
            raise StaleGrant("this grant was used already; ask for a new one")
        now = boot_time()
        if now > self.wire_deadline:
            self.given_back = True
            raise StaleGrant("the grant came too late to the wire; ask for a new one")
        self.wired, self._wired_at = True, now

    def give_back(self) -> None:
        """Nothing was sent and nothing will be: slot and start return unused as the ``async with`` ends."""
        if not self.wired:
            self.given_back = True

    def watch(self, transport: asyncio.BaseTransport) -> None:
        """Shut this connection when the lease is lost. Watching another one lets go of the one before."""
        self.unwatch()
        sock = transport.get_extra_info("socket")
        descriptor = sock.fileno() if sock is not None else -1
        if descriptor < 0 or self.ended or self.start_only:
            return
        try:
            self._watch = self._watchdog.add(self, descriptor)
        except OSError as error:  # the event loop alone ends the request
            log.warning("admission: a connection cannot be watched: %s", error)

    def unwatch(self) -> None:
        """The connection is not this request's any more."""
        watch, self._watch = self._watch, None
        if watch is not None:
            self._watchdog.remove(watch)

    def report(
        self,
        *,
        ok: bool | None,
        tokens_used: int | None = None,
        cooloff_s: float | None = None,
        settle_s: float = 0.0,
    ) -> None:
        """What became of the request: ``ok`` feeds the breaker, None is neutral; ``tokens_used`` settles the estimate;
        ``cooloff_s`` lets the slot rest before it is given again. A body that raises without a report cools off.
        ``settle_s``: at most so long the slot of a request that ended normally is kept back (:meth:`settling`)."""
        self.reported = True
        self.ok, self.tokens_used, self.cooloff_s, self.settle_s = ok, tokens_used, cooloff_s, settle_s

    # the coordinator's side

    def on_lost(self, call: Callable[[], None] | None) -> None:
        self._on_lost = call

    def lose(self) -> None:
        """The lease has ended under its holder. On the event loop's thread."""
        if self.ended:
            return
        self.lost = True
        call, self._on_lost = self._on_lost, None
        if call is not None:
            call()

    def shut(self) -> None:
        """On the watchdog's thread: the connection is. The body is told by the loop, when that runs again."""
        self._watch = None
        self.lost = True

    def end(self) -> None:
        self.ended = True
        self.unwatch()

    def cooloff(self, default_s: float, failed: bool) -> float:
        """Seconds for which the slot rests after this lease's end."""
        if self.cooloff_s is not None:
            return self.cooloff_s
        return default_s if failed and not self.reported else 0.0

    def settling(self, now: float) -> float:
        """Seconds from ``now`` for which the slot is held on, where that was asked for: who has the last byte of an
        answer may be ahead of the provider's own count of it. One hundredth of the request's time, and 5 ms at least.
        """
        if not self.settle_s or not self.wired or self.start_only or self.lost or self.cooloff_s:
            return 0.0
        return min(self.settle_s, max(_SETTLE_LEAST_S, _SETTLE_SHARE * (now - self._wired_at)))
