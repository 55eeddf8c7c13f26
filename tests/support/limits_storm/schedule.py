"""What happens in a storm over the limits, and when, as its seed says. Pure.

A shorter storm is the beginning of a longer one of the same seed, so that a finding can be narrowed down.
"""

from __future__ import annotations

import random

from support.storm.schedule import Event

PROCESSES: dict[str, tuple[int, float]] = {
    "newcomer": (6, 0),
    "kill": (4, 0),
    "kill and replace": (4, 0),
    "stop": (3, 1.0),
    "stop, then kill": (2, 1.0),
    "cut": (3, 0),
    "cut off": (5, 6.0),
    "freeze the way": (4, 6.0),
    "slow way": (3, 5.0),
    "lose a reply": (3, 0),
    "lose a command": (2, 0),
}
"""What happens to one process, or to its way to Redis. Kind → weight, and the seconds that it lasts at most."""
SERVER: dict[str, tuple[int, float]] = {
    "kill redis": (3, 3.0),
    "flush": (3, 0),
    "lose keys": (5, 0),
    "stale replica": (3, 3.0),
    "stop redis": (2, 3.0),
    "pause redis": (2, 2.0),
    "cut connections": (2, 0),
    "forget scripts": (1, 0),
}
"""What happens to Redis: one after the other."""
OTHERS: dict[str, tuple[int, float]] = {"step the clock": (6, 0), "step the clock, newcomer": (4, 0), "limits": (6, 0)}
FAULTS = {**PROCESSES, **SERVER, **OTHERS}
MEAN_GAP_S, TOGETHER = 1.3, 0.35
"""Seconds between faults, on average; and the share of faults that come at the same moment as the one before."""


def draw(seed: int, seconds: float) -> tuple[Event, ...]:
    """The faults in their order."""
    dice = random.Random(seed)
    kinds = list(FAULTS)
    weights = [weight for weight, _ in FAULTS.values()]
    faults: list[Event] = []
    at, server_free = 1.0, 0.0
    while True:
        at += 0.0 if dice.random() < TOGETHER else dice.expovariate(1 / MEAN_GAP_S)
        if at > seconds:
            return tuple(faults)
        (kind,) = dice.choices(kinds, weights)
        event = Event(at, kind, round(FAULTS[kind][1] * dice.uniform(0.1, 1), 2), dice.randrange(10**6))
        if kind in SERVER:
            if at < server_free:
                continue
            server_free = at + event.lasts + 1.0
        faults.append(event)
