"""What a process holds and wants: its leases, its waiting tickets, its starts of the last window.

Nothing here waits or talks; what Redis must hear goes to the outbox, which the speaker empties.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable

from brimful.errors import BudgetExhausted, FleetError
from brimful_worker.admission.clock import RedisClock, steady
from brimful_worker.admission.history import History
from brimful_worker.admission.lease import Lease
from brimful_worker.admission.outbox import Outbox
from brimful_worker.admission.policy import Limits, Rules, abort_margin, wire_lag
from brimful_worker.admission.tickets import Queue, Ticket, Waiting, is_start_only
from brimful_worker.admission.watchdog import NAP_S, Watchdog

log = logging.getLogger(__name__)

_STALE_MANY = 20
"""So many unusable grants in a row are worth a warning."""


class Holdings:
    """``speak_soon`` is called when something shall be said at once."""

    def __init__(self, process: str, limits: Limits, clock: RedisClock, speak_soon: Callable[[], None]) -> None:
        self.limits = limits
        self.rules = Rules.from_fields(limits.fields())
        self.held: OrderedDict[str, Lease] = OrderedDict()
        """Live leases by ticket, the longest not renewed first, save for grants that came late (``_soonest``)."""
        self.ending: dict[str, Lease] = {}
        """Lost leases whose requests have not ended yet."""
        self._settling: dict[str, tuple[Lease, float, asyncio.TimerHandle]] = {}
        """Leases whose requests have ended, held and renewed for a moment more; until when, on the steady clock."""
        self.waiting = Waiting(process)
        self.outbox = Outbox()
        self.history = History()
        self._clock = clock
        self._speak_soon = speak_soon
        self._watchdog = Watchdog()
        self.closed = ""
        """Why nothing is granted any more."""
        self._stale = 0
        self._abort_timer: asyncio.TimerHandle | None = None
        self._soonest = math.inf
        """No later than the first end of the leases that are out of order in ``held``."""

    # what coroutines say

    def ask(self, queue: Queue, tokens: int, since: float) -> Ticket:
        """A ticket whose future becomes a Lease. Raises FleetError when nothing will ever be granted."""
        if self.closed:
            raise FleetError(self.closed)
        ticket = self.waiting.add(queue, tokens, since, asyncio.get_running_loop().create_future())
        if self.waiting.wants_registering(self.rules.registered):
            self._speak_soon()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
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
        self.ending.pop(lease.id, None)
        now = steady()
        rest = lease.settling(now) if lease.id in self.held else 0.0
        if rest and not self.closed:
            timer = asyncio.get_running_loop().call_later(rest, self._settled, lease.id)
            self._settling[lease.id] = lease, now + rest, timer
        else:
            self._release(lease, rest or lease.cooloff(self.limits.cooloff_s, failed))

    def settle_all(self) -> None:
        """Nothing is kept back any more: what is left of the moment rests in Redis."""
        now = steady()
        for lease, until, timer in self._settling.values():
            timer.cancel()
            self._release(lease, max(0.0, until - now))
        self._settling.clear()

    def _settled(self, ticket: str) -> None:
        lease, until, _ = self._settling[ticket]
        left = until - steady()
        if left > 0:  # a busy loop's timers count from when its turn began, and come that much too soon
            timer = asyncio.get_running_loop().call_later(left, self._settled, ticket)
            self._settling[ticket] = lease, until, timer
            return
        del self._settling[ticket]
        self._release(lease, 0.0)

    def _release(self, lease: Lease, cooloff_s: float) -> None:
        """What Redis must hear of a request's end."""
        self.held.pop(lease.id, None)
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
        deadline = math.inf if start_only else granted + self._lease_s()
        timed = bool(self.rules.guard_s and (self.rules.starts or self.rules.tokens))
        wire = min(deadline, granted + wire_lag(self.rules.guard_s)) if timed else deadline
        since = granted if ticket is None else ticket.since
        lease = Lease(ticket_id, max(0.0, steady() - since), wire, deadline, self._watchdog)
        lease.renewed = granted
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
        if self.waiting.wants_registering(self.rules.registered):
            self._speak_soon()

    def _hold(self, lease: Lease) -> None:
        last = next(reversed(self.held.values()), None)
        self.held[lease.id] = lease
        if last is not None and lease.renewed < last.renewed:
            self._soonest = min(self._soonest, lease.deadline)
        if steady() - lease.renewed > self.rules.heartbeat_s / 2:  # it was long on its way: renewed first, and now
            self.held.move_to_end(lease.id, last=False)
            self._speak_soon()

    def obey(self, rules: Rules) -> None:
        """Limits have changed. Leases that were granted under a shorter one than we knew end the sooner."""
        self.rules, before = rules, self.rules
        if rules.lease_s < before.lease_s:
            for lease in self.held.values():
                lease.deadline = min(lease.deadline, lease.renewed + self._lease_s())
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
        """Tickets worth renewing with a turn that happens anyway."""
        renew = []
        for lease in self.held.values():
            if now - lease.renewed < self.rules.renew_after_s:
                break
            renew.append(lease.id)
        return renew

    def renewed(self, tickets: Iterable[str], sent: float) -> None:
        """A turn sent at this steady time has renewed them."""
        deadline = sent + self._lease_s()
        for ticket in list(tickets):
            if (lease := self.held.get(ticket)) is not None:
                lease.renewed = sent
                lease.deadline = deadline
                self.held.move_to_end(ticket)

    def rejoined(self, tickets: Iterable[str], first_sent: float, received: float) -> None:
        """A turn first sent and answered at these times has registered them anew, as held from some time between. One
        that had ended by then may have been given on: its request ends."""
        for ticket in list(tickets):
            if (lease := self.held.get(ticket)) is not None and lease.deadline <= received:
                self._lose(lease)
        self.renewed(tickets, first_sent)
        self._watchdog.look()

    def next_renewal(self) -> float | None:
        """When the next lease must be renewed, on the steady clock; None when none is held."""
        if not self.held:
            return None
        return next(iter(self.held.values())).renewed + self.rules.heartbeat_s

    def patience(self) -> float:
        """Seconds from now in which no lease ends that is held now or may be granted, if this process stood still.
        From any thread. A lease that is past its end is the watchdog's."""
        now, left = steady(), self._lease_s() - self.rules.heartbeat_s
        with contextlib.suppress(StopIteration, RuntimeError):  # the loop changes what is held at this very moment
            first = min(self._soonest, next(iter(self.held.values())).deadline)
            if first > now:
                left = min(left, first - now)
        return left

    def live(self, now: float) -> list[str]:
        return [lease.id for lease in self.held.values() if lease.deadline > now]

    def plan_aborts(self) -> None:
        """Looks again when the first lease ends unless it is renewed."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
            self._abort_timer = None
        if self.held:
            first = min(self._soonest, next(iter(self.held.values())).deadline)
            delay = max(0.0, min(first - steady(), NAP_S))
            self._abort_timer = asyncio.get_running_loop().call_later(delay, self._abort_overdue)

    def close(self) -> None:
        """Nothing is held any more, whatever its holders think."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        for lease in list(self.held.values()):
            self._lose(lease)
        self._watchdog.stop()

    def fail(self, fault: Exception) -> None:
        """Nothing will ever be granted: whoever waits is told."""
        self.closed = f"the admission failed: {fault}"
        for ticket in self.waiting.drain():
            ticket.future.set_exception(FleetError(self.closed))

    def _abort_overdue(self) -> None:
        now, out_of_order = steady(), self._soonest <= steady()
        if out_of_order:
            self._soonest = math.inf
        for lease in list(self.held.values()):
            if lease.deadline > now:
                if out_of_order:
                    continue
                break
            log.warning("admission: a lease could not be renewed in time; its request is ended")
            self._lose(lease)
        self.plan_aborts()

    def _lose(self, lease: Lease) -> None:
        """Neither renewed nor told as held any more; its body is ended, and says so when it has ended."""
        self.held.pop(lease.id, None)
        if not lease.ended:
            self.ending[lease.id] = lease
        lease.lose()

    def _lease_s(self) -> float:
        return self.rules.lease_s - abort_margin(self.rules.lease_s, self.limits.cooloff_s)

    def _note_stale(self, lease: Lease) -> None:
        self._stale += steady() > lease.wire_deadline
        if self._stale == _STALE_MANY:
            log.warning(
                "admission: %d grants in a row came too late to be used: the loop is blocked, or Redis too far for a "
                "guard of %.3g s (BRIMFUL_GUARD_S)",
                self._stale,
                self.rules.guard_s,
            )
