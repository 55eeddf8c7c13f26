"""What this process holds and waits for: its leases, its waiters, its starts of the last window.

Nothing here waits or does I/O. What Redis must learn goes to :attr:`LocalState.outgoing`, which the coordinator sends.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from copy import copy

from brimful.errors import BudgetExhausted, FleetError
from brimful.runtime.aio import until_tick
from brimful_worker.admission.lease import Lease
from brimful_worker.admission.lease_table import LeaseTable
from brimful_worker.admission.policy import Limits, Rules, wire_lag
from brimful_worker.admission.turns import Flow
from brimful_worker.admission.waiters import Queue, Waiter, Waiters, is_start_only, name_of
from brimful_worker.admission.wire.outgoing import Outgoing
from brimful_worker.admission.wire.recent_starts import RecentStarts
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.liveness.watchdog import NAP_S, Watchdog

log = logging.getLogger(__name__)

_STALE_WARNING = 20  # unusable grants in a row that are logged


class LocalState:
    """Not thread-safe, except where a docstring says otherwise. Times are on ``boot_time()``."""

    def __init__(self, process: str, limits: Limits, clock: RedisClock, wake: Callable[[], None]) -> None:
        """``wake`` is called when a command should be sent at once."""
        self.limits = limits
        self.rules = Rules.from_fields(limits.fields(), limits.cooldown_s)
        self.leases = LeaseTable(self.rules)
        self.ending: dict[str, Lease] = {}
        """Lost leases whose bodies have not ended yet."""
        self._renaming: dict[str, tuple[Waiter, Lease]] = {}
        """Ticket → grant given to another request than the ticket names, until Redis has noted that."""
        self.waiting = Waiters(process)
        self.outgoing = Outgoing()
        self.recent_starts = RecentStarts()
        self._clock = clock
        self._wake = wake
        self._watchdog = Watchdog()
        self.learning = False  # whether the times of grants are reported, since the fleet learns its limits
        self.closed: FleetError | None = None  # why nothing will be granted any more
        self._stale = 0
        self._abort_timer: asyncio.TimerHandle | None = None

    # called by coroutines

    def ask(self, queue: Queue, flow: Flow, tokens: int, since: float, name: str = "") -> Waiter:
        """A waiter whose future becomes a Lease. Raises FleetError when nothing will be granted any more."""
        if self.closed is not None:
            raise copy(self.closed)
        waiter = self.waiting.add(queue, flow, tokens, since, asyncio.get_running_loop().create_future(), name)
        self.look_for_waiters(queue)
        return waiter

    def look_for_waiters(self, queue: Queue) -> None:
        if self.outgoing.urgent:
            return
        waits = self.waiting.behind(queue) and self.waiting.wants_registering(queue, self.rules.registered)
        if waits or self.outgoing.cancels:
            self._send_soon()

    def cancel(self, waiter: Waiter) -> None:
        """Stop waiting. The waiter's future must be done; a lease in it is given back."""
        if not waiter.future.cancelled() and waiter.future.exception() is None:
            lease = waiter.future.result()
            lease.given_back = True
            self.end(lease, failed=False)
        elif self.waiting.cancel(waiter):
            self.outgoing.cancels.append(waiter.id)
            self._send_soon()

    def end(self, lease: Lease, *, failed: bool) -> None:
        """The lease's request has ended: release its slot."""
        lease.end()
        self.ending.pop(lease.id, None)
        self.leases.drop(lease.id)
        other = () if lease.name is None else (lease.name,)
        named = (*(other or (name_of(lease.id),)), 1) if lease.deaths_forgotten else other
        if lease.given_back:
            self._count_stale(lease)
            self.recent_starts.drop(lease.id)
            self.outgoing.release(lease.id, 0.0, -1, -1, 1, *named)
            self._wake()
        elif not lease.start_only:
            self._stale = 0
            verdict = -1 if lease.ok is None else int(lease.ok)
            used = -1 if lease.tokens_used is None else lease.tokens_used
            if used >= 0:
                self.recent_starts.set_tokens(lease.id, used)
            self.outgoing.note_answer(lease, self.learning)
            self.outgoing.note_stated(lease.stated_starts)
            cooldown_s = lease.rest_s(self.limits.cooldown_s, failed)
            plain = verdict == 1 and not (self.learning or self.rules.tokens or self.rules.budget)
            if self.outgoing.release(lease.id, cooldown_s, verdict, used, 0, *named, may_wait=plain):
                self._wake()

    # called by the coordinator

    def granted(self, ticket: str, granted_ms: float, deaths: int = 0, lag_ms: float = 0) -> None:
        """A grant has arrived; it is given back if its waiter is gone. ``deaths``: as of :attr:`Lease.deaths`.
        ``lag_ms``: for how much longer than others its start counts, and may be used."""
        waiter = self.waiting.take(ticket, same_tokens=bool(self.rules.tokens or self.rules.budget))
        granted = self._clock.not_after(granted_ms)
        start_only = is_start_only(ticket) if waiter is None else waiter.queue is Queue.START_ONLY
        deadline = math.inf if start_only else granted + self.leases.lease_at(granted)
        timed = bool(self.rules.guard_s and (self.rules.starts or self.rules.tokens))
        counts = granted + lag_ms / 1000
        wire = min(deadline, counts + wire_lag(self.rules.guard_s)) if timed else deadline
        since = granted if waiter is None else waiter.since
        lease = Lease(ticket, max(0.0, boot_time() - since), wire, granted, self._watchdog)
        lease.start_only, lease.deadline, lease.deaths, lease.granted_ms = start_only, deadline, deaths, int(granted_ms)
        if waiter is None or waiter.future.done():
            lease.given_back = True
            self.end(lease, failed=False)
            return
        lease.size = waiter.tokens
        self.recent_starts.add(ticket, counts, lease.size)
        if not start_only and self.leases.add(lease):
            self._send_soon()
        if waiter.name == name_of(ticket):
            waiter.future.set_result(lease)
        else:  # Redis must know what it is used for before it is
            lease.name = waiter.name
            self._renaming[ticket] = waiter, lease
            self.outgoing.renames.append([ticket, waiter.name])
            self._send_soon()
        self.look_for_waiters(waiter.queue)

    def renamed(self, answers: Iterable[tuple[str, int]]) -> None:
        """Redis has noted which requests have these tickets' grants. ``answers``: ticket and :attr:`Lease.deaths`."""
        for ticket, deaths in answers:
            waiter, lease = self._renaming.pop(ticket)
            lease.deaths, lease.given_back = deaths, waiter.future.done()
            if lease.given_back:
                self.end(lease, failed=False)
            else:
                waiter.future.set_result(lease)

    def apply(self, rules: Rules) -> None:
        """The limits have changed."""
        self.rules, before = rules, self.rules
        self.leases.apply(rules)
        if rules.lease_s > before.lease_s:
            self._send_soon()
        elif rules.lease_s < before.lease_s:
            self._watchdog.look()

    def refused(self, ticket: str) -> None:
        """The token budget has no room for this waiter, and no request in flight could make room."""
        waiter = self.waiting.pop(ticket)
        self.outgoing.cancels.append(ticket)
        self._send_soon()
        if waiter is not None and not waiter.future.done():
            waiter.future.set_exception(BudgetExhausted("the fleet's token budget is at its end", "budget"))

    def lost(self, ticket: str) -> None:
        if (lease := self.leases.held.get(ticket)) is not None:
            self._lose(lease)

    def rejoined(self, first_sent: float, received: float) -> None:
        """A join first sent and answered at these times has registered the leases, from some moment in between. A lease
        that had ended by then may have been given to somebody else: its request is ended."""
        self._lose_ended(received)
        self.leases.renewed(first_sent)
        self._watchdog.look()

    def plan_aborts(self) -> None:
        """Set the timer for the first lease that ends unless it is renewed."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
            self._abort_timer = None
        if self.leases.held:
            delay = max(0.0, min(self.leases.first_end - boot_time(), until_tick(NAP_S)))
            self._abort_timer = asyncio.get_running_loop().call_later(delay, self._abort_overdue)

    def stop(self, error: FleetError, *, cancel: bool) -> None:
        """Grant nothing any more: :meth:`ask` raises ``error``. Waiters are cancelled, or get ``error`` too."""
        self.closed = error
        renaming = [waiter for waiter, _ in self._renaming.values() if not waiter.future.done()]
        for waiter in [*self.waiting.drain(), *renaming]:
            if cancel:
                waiter.future.cancel()
            else:
                waiter.future.set_exception(copy(error))

    def close(self) -> None:
        """End every lease, whether its body has ended or not."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._lose_ended(math.inf)
        self._watchdog.stop()

    def _send_soon(self) -> None:
        self.outgoing.urgent = True
        self._wake()

    def _abort_overdue(self) -> None:
        if lost := self._lose_ended(boot_time()):
            log.warning("admission: %d leases could not be renewed in time; their requests are ended", lost)
        self.plan_aborts()

    def _lose_ended(self, now: float) -> int:
        """Lose the leases that end at this time or before. Returns their number."""
        if now < self.leases.first_end:
            return 0
        ended = self.leases.ended(now)
        for lease in ended:
            self._lose(lease)
        self.leases.update_first_end()
        return len(ended)

    def _lose(self, lease: Lease) -> None:
        """Neither renew the lease nor report it as held any more, and end its body."""
        if not lease.ended:
            self.ending[lease.id] = lease
        self.leases.drop(lease.id)
        lease.deadline = min(lease.deadline, boot_time())  # the command that reported it lost had extended it
        self._watchdog.look()
        lease.lose()

    def _count_stale(self, lease: Lease) -> None:
        self._stale += boot_time() > lease.wire_deadline
        if self._stale == _STALE_WARNING:
            log.warning(
                "admission: %d grants in a row arrived too late to be used: the event loop is blocked, or the "
                "time to Redis varies more than a guard of %.3g s allows (BRIMFUL_GUARD_S)",
                self._stale,
                self.rules.guard_s,
            )
