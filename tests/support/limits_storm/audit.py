"""Which limits were in force when a request arrived, and whether it kept them. Pure. Times are on time.monotonic()."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from support.ledger import Visit

UNDER_WAY_S = 2.5
"""From a grant to the arrival of its request at most: a limit that was in force so long ago excuses it."""
TAUGHT_S = 3.0
"""A change of limits that is younger than this may be lost with Redis's memory: nobody else may know it yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``starts`` 0: no limit on starts."""

    slots: int
    starts: int


@dataclass(slots=True)
class _Change:
    began: float
    limits: Limits
    replaced: float = math.inf


class InForce:
    """The limits of a fleet over time. ``defaults``: the least of all, which the processes bring."""

    def __init__(self, defaults: Limits) -> None:
        self._defaults = defaults
        self._changes: list[_Change] = []
        self._lost = -math.inf

    def change(self, began: float, ended: float, limits: Limits, *, sure: bool = True) -> None:
        """The operator set them, by a command that was sent and answered at these times. If it has failed it is not
        ``sure``: it may have been carried out. Nor is one that met a loss of memory: it may be forgotten."""
        for change in self._changes:
            if sure and began > self._lost and change.replaced == math.inf:
                change.replaced = ended
        self._changes.append(_Change(began, limits))

    def memory_lost(self, at: float) -> None:
        """Redis may have forgotten the last change; then those before hold until the next."""
        self._lost = at
        for change in self._changes:
            if at - TAUGHT_S < change.replaced <= at:
                change.replaced = math.inf

    def at(self, moment: float) -> set[Limits]:
        """Those of which one must have been kept by a request that was sent then."""
        return {self._defaults} | {
            change.limits for change in self._changes if change.began <= moment <= change.replaced + UNDER_WAY_S
        }


def broken(visits: Sequence[Visit], in_force: InForce, window_s: float) -> list[tuple[Visit, str]]:
    """The visits that no limits in force allowed, each with what it exceeded."""
    found = []
    for visit, count in zip(visits, _in_windows(visits, window_s), strict=True):
        allowed = in_force.at(visit.sent)
        most = max(limits.slots for limits in allowed)
        if visit.active > most:
            found.append((visit, f"{visit.active} active, of {most} slots"))
        if all(limits.starts for limits in allowed) and count > (most := max(limits.starts for limits in allowed)):
            found.append((visit, f"{count} starts in {window_s:g} s, of {most}"))
    return found


def most_in_window(visits: Sequence[Visit], in_force: InForce, window_s: float) -> int:
    """The most starts in any window that ended while a limit on them was in force."""
    counts = zip(visits, _in_windows(visits, window_s), strict=True)
    return max((n for visit, n in counts if all(limits.starts for limits in in_force.at(visit.sent))), default=0)


def _in_windows(visits: Sequence[Visit], window_s: float) -> list[int]:
    """For each visit, how many were sent in the window that ends with it."""
    starts = sorted(visit.sent for visit in visits)
    return [
        bisect.bisect_right(starts, visit.sent) - bisect.bisect_right(starts, visit.sent - window_s) for visit in visits
    ]
