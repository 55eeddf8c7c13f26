"""What is made of the times that clients saw: [asked, in, out] of every hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence

LIMIT = 16
"""Slots in every scenario but two."""


def peak(events: Sequence[Sequence[float]]) -> int:
    """Most holds at one moment, from [asked, in, out]; an end comes before a beginning of the same instant."""
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
    """Held slot-seconds of what the limit allows, from the first grant to the last: as long as somebody waits."""
    begun, ended = min(event[1] for event in events), max(event[1] for event in events)
    held = sum(min(out, ended) - entered for _, entered, out in events)
    return held / (LIMIT * (ended - begun))


def jain(counts: Sequence[int]) -> float:
    """Fairness: 1 = everybody got the same, 1/n = one got all."""
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts) or 1)
