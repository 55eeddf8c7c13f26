"""Figures computed from the times that clients recorded: [asked, in, out] of every hold of a slot."""

from __future__ import annotations

from collections.abc import Sequence

LIMIT = 16
"""Slots in all scenarios but two."""


def peak(events: Sequence[Sequence[float]]) -> int:
    """Most holds at the same time. An end sorts before a beginning of the same instant."""
    changes = sorted([(entered, 1) for _, entered, _ in events] + [(out, -1) for _, _, out in events])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def most_in_window(starts: Sequence[float], window_s: float) -> int:
    """Most starts in any half-open window."""
    ordered = sorted(starts)
    most = first = 0
    for last, start in enumerate(ordered):
        while start - ordered[first] >= window_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def in_use(events: Sequence[Sequence[float]]) -> float:
    """Share of the allowed slot-seconds that was held, from the first grant to the last, while somebody waits."""
    begun, ended = min(event[1] for event in events), max(event[1] for event in events)
    held = sum(min(out, ended) - entered for _, entered, out in events)
    return held / (LIMIT * (ended - begun))


def jain(counts: Sequence[int]) -> float:
    """Jain's index of fairness: 1 = all got the same, 1/n = one got everything."""
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts) or 1)
