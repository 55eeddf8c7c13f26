"""What a process holds and wants: its leases, its waiting tickets, its starts of the last window.

Nothing here waits or talks; what Redis must hear goes to the outbox, which the coordinator empties.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from brimful.errors import BudgetExhausted, FleetError
from brimful_worker.admission.lease import Lease, Term
from brimful_worker.admission.lease_table import LeaseTable
from brimful_worker.admission.policy import Limits, Rules, abort_margin, wire_lag
from brimful_worker.admission.recent_starts import History
from brimful_worker.admission.waiters import Queue, Waiter, Waiting, is_start_only
from brimful_worker.admission.wire.outgoing import Outbox
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.liveness.watchdog import NAP_S, Watchdog

log = logging.getLogger(__name__)

_TIMER_S = 0.001
"""uvloop's timers count whole milliseconds, and come up to one too soon."""
_STALE_MANY = 20
"""So many unusable grants in a row are worth a warning."""


class LocalState:
    """``speak_soon`` is called when something shall be said at once."""

    def __init__(self, process: str, limits: Limits, clock: RedisClock, speak_soon: Callable[[], None]) -> None:
        self.limits = limits
        self.rules = Rules.from_fields(limits.fields())
        self.held = LeaseTable()
        self.ending: dict[str, Lease] = {}
        """Lost leases whose requests have not ended yet."""
        self._ending_first = math.inf
        """No lost lease whose connection may still be open ends before, on the steady clock."""
        self._settling: dict[str, tuple[Lease, float, asyncio.TimerHandle]] = {}
        """Leases whose requests have ended, held and renewed for a moment more; until when, on the steady clock."""
        self.waiting = Waiting(process)
        self.outbox = Outbox()
        self.history = History()
        self._clock = clock
        self._speak_soon = speak_soon
        self._watchdog = Watchdog(self._first_end)
        self.closed = ""
        """Why nothing is granted any more."""
        self._stale = 0
        self._abort_timer: asyncio.TimerHandle | None = None
        self._told: list[Term] = []
        """What the turn under way renews."""
        self._renew_all = False
        """With the next turn, however young they are."""
        self._shorter: tuple[float, float] | None = None
        """Until when, on the steady clock, leases were shorter than now, and how long they lasted then."""

    # what coroutines say

    def ask(self, queue: Queue, tokens: int, since: float) -> Waiter:
        """A ticket whose future becomes a Lease. Raises FleetError when nothing will ever be granted."""
        if self.closed:
            raise FleetError(self.closed)
        ticket = self.waiting.add(queue, tokens, since, asyncio.get_running_loop().create_future())
        if self.waiting.wants_registering(queue, self.rules.registered):
            self._speak_soon()
        return ticket

    def cancel(self, ticket: Waiter) -> None:
        """A ticket is no longer wanted. Its future must be done; a lease in it is given back."""
        if not ticket.future.cancelled() and ticket.future.exception() is None:
            lease = ticket.future.result()
            lease.given_back = True
            self.end(lease, failed=False)
        elif self.waiting.cancel(ticket):
            self.outbox.cancels.append(ticket.id)
            self._speak_soon()

    def end(self, lease: Lease, *, failed: bool) -> None:
        """The lease's request is over. The slot is free at once, or after the moment that it is to settle."""
        lease.end()
        if self.ending.pop(lease.id, None) is not None and not self.ending:
            self._ending_first = math.inf
        now = boot_time()
        rest = lease.settling(now) if lease.id in self.held else 0.0
        if rest and not self.closed:
            timer = asyncio.get_running_loop().call_later(rest + _TIMER_S, self._settled, lease.id)
            self._settling[lease.id] = lease, now + rest, timer
        else:
            self._release(lease, rest or lease.cooloff(self.limits.cooloff_s, failed))

    def settle_all(self) -> None:
        """Nothing is kept back any more: what is left of the moment rests in Redis."""
        now = boot_time()
        for lease, until, timer in self._settling.values():
            timer.cancel()
            self._release(lease, max(0.0, until - now))
        self._settling.clear()

    def _settled(self, ticket: str) -> None:
        lease, until, _ = self._settling[ticket]
        left = until - boot_time()
        if left > 0:  # a busy loop's timers count from when its turn began, and come that much too soon
            timer = asyncio.get_running_loop().call_later(left, self._settled, ticket)
            self._settling[ticket] = lease, until, timer
            return
        del self._settling[ticket]
        self._release(lease, 0.0)

    def _release(self, lease: Lease, cooloff_s: float) -> None:
        """What Redis must hear of a request's end."""
        self.held.pop(lease.id)
        if lease.start_only and not lease.given_back:
            return
        if lease.given_back:
            self._note_stale(lease)
            self.history.drop(lease.id)
            self.outbox.releases.append([lease.id, 0, -1, -1, 1])
        else:
            self._stale = 0
            verdict = -1 if lease.ok is None else int(lease.ok)
            used = -1 if lease.tokens_used is None else lease.tokens_used
            cool_ms = math.ceil(cooloff_s * 1000)
            if used >= 0:
                self.history.settle(lease.id, used)
            self.outbox.releases.append([lease.id, cool_ms, verdict, used, 0])
        self._speak_soon()

    # what Redis says

    def granted(self, ticket_id: str, granted_ms: float) -> None:
        """A grant has come. Nobody wants it any more: it is given back."""
        ticket = self.waiting.pop(ticket_id)
        granted = self._clock.not_after(granted_ms)
        start_only = is_start_only(ticket_id)
        deadline = math.inf if start_only else granted + self._lease_at(granted)
        timed = bool(self.rules.guard_s and (self.rules.starts or self.rules.tokens))
        wire = min(deadline, granted + wire_lag(self.rules.guard_s)) if timed else deadline
        since = granted if ticket is None else ticket.since
        lease = Lease(ticket_id, max(0.0, boot_time() - since), wire, Term(granted, deadline), self._watchdog)
        lease.start_only = start_only
        if ticket is None or ticket.future.done():
            lease.given_back = True
            self.end(lease, failed=False)
            return
        if self.rules.starts or self.rules.tokens:
            self.history.add(ticket_id, granted, ticket.tokens)
        if not start_only:
            self._hold(lease)
        ticket.future.set_result(lease)
        if self.waiting.wants_registering(ticket.queue, self.rules.registered):
            self._speak_soon()

    def _hold(self, lease: Lease) -> None:
        self.held.add(lease)
        granted = lease.term.renewed
        short = self._shorter is not None and granted <= self._shorter[0]
        self._renew_all |= short
        if short or boot_time() - granted > self.rules.heartbeat_s / 2:  # it was long on its way
            self._speak_soon()

    def obey(self, rules: Rules) -> None:
        """Limits have changed. Leases that were granted under a shorter one than we knew end the sooner; those granted
        before it became longer last no longer for that, and are renewed at once."""
        now, short = boot_time(), self._lease_s()
        self.rules, before = rules, self.rules
        if rules.lease_s > before.lease_s:
            if self._shorter is not None and now - self._shorter[0] < before.lease_s:
                short = min(short, self._shorter[1])
            self._shorter, self._renew_all = (now, short), True
            self._speak_soon()
        elif rules.lease_s < before.lease_s:
            self.held.shorten(self._lease_s())
            self._watchdog.look()

    def refused(self, ticket_id: str) -> None:
        """The token budget has no room for this ticket, and nothing in flight that could make room."""
        ticket = self.waiting.pop(ticket_id)
        self.outbox.cancels.append(ticket_id)
        self._speak_soon()
        if ticket is not None and not ticket.future.done():
            ticket.future.set_exception(BudgetExhausted("the fleet's token budget is at its end", "budget"))

    def lost(self, ticket_id: str) -> None:
        if (lease := self.held.get(ticket_id)) is not None:
            self._lose(lease)

    # renewals, and leases that end under their holders

    def to_renew(self, now: float) -> list[str]:
        """Waiters worth renewing with a turn that happens anyway."""
        self._told = self.held.due(now if self._renew_all else now - self.rules.renew_after_s)
        self._renew_all = False
        return self.held.told(self._told)

    def live(self, now: float) -> list[str]:
        """Waiters to be registered anew."""
        self._told = self.held.alive(now)
        return self.held.told(self._told)

    def renewed(self, sent: float) -> None:
        """A turn sent at this steady time has renewed what was told last."""
        told, self._told = self._told, []
        self.held.renew(told, sent, sent + self._lease_at(sent))

    def rejoined(self, first_sent: float, received: float) -> None:
        """A turn first sent and answered at these times has registered them anew, as held from some time between. One
        that had ended by then may have been given on: its request ends."""
        for lease in self.held.ended(received):
            self._lose(lease)
        self.renewed(first_sent)
        self._watchdog.look()

    def next_renewal(self) -> float | None:
        """When the next lease must be renewed, on the steady clock; None when none is held."""
        oldest = self.held.oldest
        return None if oldest is None else oldest.renewed + self.rules.heartbeat_s

    def patience(self) -> float:
        """Seconds from now in which no lease ends that is held now or may be granted, if this process stood still.
        From any thread. A lease that is past its end is the watchdog's."""
        now, left = boot_time(), self._lease_s() - self.rules.heartbeat_s
        oldest = self.held.oldest
        if oldest is not None and oldest.deadline > now:
            left = min(left, oldest.deadline - now)
        return left

    def _first_end(self) -> float:
        """No lease whose connection may be open ends before. From any thread: in the middle of a renewal, and where
        nothing is held, nothing can be said."""
        oldest = self.held.oldest
        return -math.inf if oldest is None else min(oldest.deadline, self._ending_first)

    def plan_aborts(self) -> None:
        """Looks again when the first lease ends unless it is renewed."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
            self._abort_timer = None
        if (oldest := self.held.oldest) is not None:
            delay = max(0.0, min(oldest.deadline - boot_time(), NAP_S))
            self._abort_timer = asyncio.get_running_loop().call_later(delay, self._abort_overdue)

    def close(self) -> None:
        """Nothing is held any more, whatever its holders think."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        for lease in self.held:
            self._lose(lease)
        self._watchdog.stop()

    def fail(self, fault: Exception) -> None:
        """Nothing will ever be granted: whoever waits is told."""
        self.closed = f"the admission failed: {fault}"
        for ticket in self.waiting.drain():
            ticket.future.set_exception(FleetError(self.closed))

    def _abort_overdue(self) -> None:
        for lease in self.held.ended(boot_time()):
            log.warning("admission: a lease could not be renewed in time; its request is ended")
            self._lose(lease)
        self.plan_aborts()

    def _lose(self, lease: Lease) -> None:
        """Neither renewed nor told as held any more; its body is ended, and says so when it has ended."""
        now = boot_time()
        if not lease.ended:
            self._ending_first = min(self._ending_first, now)
            self.ending[lease.id] = lease
        self.held.pop(lease.id)
        lease.term.deadline = min(lease.term.deadline, now)  # the turn that told of it had put it off
        self._watchdog.look()
        lease.lose()

    def _lease_at(self, at: float) -> float:
        """How long, at least, a lease lasts that Redis gave or renewed at this steady time."""
        whole = self._lease_s()
        return min(whole, self._shorter[1]) if self._shorter is not None and at <= self._shorter[0] else whole

    def _lease_s(self) -> float:
        return self.rules.lease_s - abort_margin(self.rules.lease_s, self.limits.cooloff_s)

    def _note_stale(self, lease: Lease) -> None:
        self._stale += boot_time() > lease.wire_deadline
        if self._stale == _STALE_MANY:
            log.warning(
                "admission: %d grants in a row came too late to be used: the loop is blocked, or Redis too far for a "
                "guard of %.3g s (BRIMFUL_GUARD_S)",
                self._stale,
                self.rules.guard_s,
            )
