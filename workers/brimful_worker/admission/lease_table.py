"""The leases a process holds, in terms: what was renewed together shares one end, and is renewed together again.

With thousands of leases a renewal costs what telling their names costs, and touches none of them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from operator import attrgetter

from brimful_worker.admission.lease import Lease, Term

_BY_RENEWAL = attrgetter("renewed")


class LeaseTable:
    """Live leases by ticket. A term renewed later never ends sooner than one renewed before it."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._terms: list[Term] = []
        """The longest not renewed first; none is empty."""
        self._last: Term | None = None
        """Of the last lease that was added, while others may join it."""

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._leases

    def __iter__(self) -> Iterator[Lease]:
        """All of them, whatever becomes of them meanwhile."""
        return iter(list(self._leases.values()))

    def get(self, ticket: str) -> Lease | None:
        return self._leases.get(ticket)

    @property
    def oldest(self) -> Term | None:
        """The term that ends first. From any thread."""
        try:
            return self._terms[0]
        except IndexError:
            return None

    def add(self, lease: Lease) -> None:
        """It joins the term of the one before where both were granted together."""
        term, last = lease.term, self._last
        if last is not None and last.renewed == term.renewed and last.deadline == term.deadline and last.tickets:
            term = lease.term = last
        else:
            insort(self._terms, term, key=_BY_RENEWAL)
            self._last = term
        term.tickets[lease.id] = None
        self._leases[lease.id] = lease

    def pop(self, ticket: str) -> Lease | None:
        """The lease, with an end of its own from now on: that of its term may be put off for the others."""
        lease = self._leases.pop(ticket, None)
        if lease is not None:
            term = lease.term
            del term.tickets[ticket]
            if not term.tickets:
                self._terms.remove(term)
            lease.term = Term(term.renewed, term.deadline)
        return lease

    def told(self, terms: list[Term]) -> list[str]:
        """The tickets of some terms, to be told to Redis: nothing joins these terms from now on."""
        if self._last in terms:
            self._last = None
        return [ticket for term in terms for ticket in term.tickets]

    def due(self, before: float) -> list[Term]:
        """Terms not renewed since."""
        return self._terms[: bisect_right(self._terms, before, key=_BY_RENEWAL)]

    def alive(self, now: float) -> list[Term]:
        return [term for term in self._terms if term.deadline > now]

    def ended(self, now: float) -> list[Lease]:
        """Leases past their end."""
        return [self._leases[ticket] for term in self._terms if term.deadline <= now for ticket in term.tickets]

    def renew(self, terms: list[Term], renewed: float, deadline: float) -> None:
        """Put off the end of terms that were told; they are one from now on."""
        terms = [term for term in terms if term.tickets]
        if not terms:
            return
        whole = max(terms, key=lambda term: len(term.tickets))
        rest = [term for term in self._terms if term not in terms]
        place = bisect_right(rest, renewed, key=_BY_RENEWAL)
        # In this order, and the list in one step: the watchdog's thread may read along at any time.
        self._terms = [*rest[:place], whole, *rest[place:]]
        whole.renewed, whole.deadline = renewed, deadline
        for term in terms:
            if term is not whole:
                for ticket in term.tickets:
                    self._leases[ticket].term = whole
                whole.tickets.update(term.tickets)

    def shorten(self, lease_s: float) -> None:
        """No term lasts longer than this after its renewal."""
        for term in self._terms:
            term.deadline = min(term.deadline, term.renewed + lease_s)
