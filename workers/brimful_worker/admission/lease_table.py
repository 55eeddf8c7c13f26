"""The slots that this process holds: when their leases end, and when they are renewed.

Nothing here waits or does I/O. Times are on ``boot_time()``.
"""

from __future__ import annotations

import math

from brimful_worker.admission.lease import Lease
from brimful_worker.admission.policy import Rules
from brimful_worker.liveness.boot_time import boot_time


class LeaseTable:
    """A lease ends here earlier than in Redis, so that its request has ended before anybody else gets the slot."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._whole_s = rules.local_lease_s
        self.held: dict[str, Lease] = {}
        """By ticket."""
        self.first_end = math.inf
        """No lease in :attr:`held` ends before this."""
        self._renewing: list[str] = []
        """The leases that the command in flight renews."""
        self._shorter: tuple[float, float] | None = None
        """Until when leases were shorter, and how long they lasted."""

    def add(self, lease: Lease) -> bool:
        """Returns whether it should be renewed at once, as its grant took long to arrive."""
        self.held[lease.id] = lease
        if lease.deadline < self.first_end:
            self.first_end = lease.deadline
        return self._age(lease.deadline) > self._rules.heartbeat_s / 2

    def drop(self, ticket: str) -> None:
        self.held.pop(ticket, None)
        if not self.held:
            self.first_end = math.inf

    def ended(self, now: float) -> list[Lease]:
        """The leases that end at this time or before."""
        return [lease for lease in self.held.values() if lease.deadline <= now]

    def apply(self, rules: Rules) -> None:
        """The limits have changed. When leases become shorter, those held end sooner. When they become longer, those
        held keep their end until they are renewed, which is due at once then."""
        now, short = boot_time(), self._whole_s
        self._rules, before = rules, self._rules
        self._whole_s = rules.local_lease_s
        if rules.lease_s > before.lease_s:
            if self._shorter is not None and now - self._shorter[0] < before.lease_s:
                short = min(short, self._shorter[1])
            self._shorter = now, short
        elif rules.lease_s < before.lease_s:
            for lease in self.held.values():
                lease.deadline = min(lease.deadline, lease.renewed + self._whole_s)
            self.update_first_end()

    def lease_at(self, at: float) -> float:
        """How long a lease lasts at least that Redis granted or renewed at this time."""
        if self._shorter is not None and at <= self._shorter[0]:
            return min(self._whole_s, self._shorter[1])
        return self._whole_s

    def to_renew(self) -> list[str]:
        """Tickets that the next command should renew: all that are not young, once the oldest is old enough."""
        self._renewing = []
        if self._age(self.first_end) >= self._rules.renew_after_s(len(self.held)):
            before = boot_time() + self._whole_s - self._rules.renew_least_s
            self._renewing = [ticket for ticket, lease in self.held.items() if lease.deadline <= before]
            self.update_first_end()
        return self._renewing

    def to_join(self, now: float) -> list[str]:
        """Tickets of the leases that have not ended, to be registered again by a join."""
        self._renewing = [ticket for ticket, lease in self.held.items() if lease.deadline > now]
        return self._renewing

    def renewed(self, sent: float) -> None:
        """A command sent at this time has renewed what :meth:`to_renew` or :meth:`to_join` returned."""
        deadline = sent + self.lease_at(sent)
        for ticket in self._renewing:
            if (lease := self.held.get(ticket)) is not None:
                lease.renewed, lease.deadline = sent, deadline
        if self._renewing:
            self._renewing = []
            self.update_first_end()

    def next_renewal(self) -> float | None:
        """When the next lease is due for renewal; None when none is held."""
        return self.first_end - self._whole_s + self._rules.heartbeat_s if self.held else None

    def stall_limit_s(self) -> float:
        """For how many seconds from now this process could stand still before a lease ended that it holds, or that it
        may be granted. Callable from any thread. Leases past their end are the watchdog's business."""
        left, end = self._whole_s - self._rules.heartbeat_s, self.first_end - boot_time()
        return min(left, end) if end > 0 else left

    def update_first_end(self) -> None:
        self.first_end = min((lease.deadline for lease in self.held.values()), default=math.inf)

    def _age(self, deadline: float) -> float:
        """Seconds since a lease with this deadline was renewed; more if it was granted for less than now."""
        return boot_time() + self._whole_s - deadline
