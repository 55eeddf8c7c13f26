"""What happens in a storm, and when, as its seed says. Pure: the same seed and length give the same schedule."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

FAULTS: dict[str, tuple[int, float]] = {
    "kill workers": (8, 0),
    "stop workers": (4, 0),
    "add a worker": (2, 0),
    "freeze a worker": (1, 0),
    "kill redis": (2, 2),
    "pause redis": (2, 4),
    "cut connections": (3, 0),
    "refuse: READONLY": (1, 4),
    "refuse: OOM": (1, 4),
    "refuse: NOREPLICAS": (1, 4),
    "refuse: MISCONF": (1, 4),
    "flush redis": (0, 0),
    "provider: 429": (2, 3),
    "provider: 500": (2, 4),
    "provider: reset": (2, 4),
    "provider: hang": (2, 3),
    "malformed messages": (5, 0),
    "poison": (1, 0),
    "remove output": (1, 0),
    "replace output": (1, 0),
    "cut output": (1, 0),
    "move output": (1, 0),
    "kill submitter": (3, 0),
    "stop submitter": (3, 0),
}
"""Kind → how often compared with the others (0: once a storm), and the seconds that it lasts at most."""
REQUESTS = ("delay", "delay", "stranger", "async", "async", "countdown", "eta", "expires", "revoke")
"""Kinds of single requests; one that stands twice is drawn twice as often."""
REQUESTS_PER_S = 3.0
SERVER = ("kill redis", "pause redis", "refuse", "flush redis")
"""Faults of Redis. They begin with these words, and do not overlap."""
_GAP_S = 1.0
"""Between two faults of one machine."""


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    """Seconds after the storm's begin."""
    kind: str
    """Of :data:`FAULTS` or :data:`REQUESTS`."""
    lasts: float = 0.0
    number: int = 0
    """Which of the machines, messages or lines; a place in a list, modulo its length."""

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.kind}" + (f" for {self.lasts:.1f} s" if self.lasts else "")


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    seconds: float
    faults: tuple[Event, ...]
    requests: tuple[Event, ...]

    def __str__(self) -> str:
        lines = [
            f"storm: seed {self.seed}, {self.seconds:g} s, {len(self.faults)} faults, {len(self.requests)} singles"
        ]
        return "\n".join([*lines, *map(str, self.faults)])


def draw(seed: int, seconds: float, faults_per_s: float = 0.3) -> Schedule:
    """Each kind of fault at least once, the others by their weights; none in the last tenth."""
    dice = random.Random(seed)
    kinds = list(FAULTS)
    count = max(len(kinds), int(seconds * faults_per_s))
    kinds += dice.choices(kinds, [FAULTS[kind][0] for kind in kinds], k=count - len(kinds))
    dice.shuffle(kinds)
    end = 0.9 * seconds
    at = sorted(dice.uniform(0.02 * seconds, end) for _ in kinds)
    # A poison is lost by a flush, and needs several deaths of workers until it is given up.
    for kind, fifth in (("flush redis", 0), ("poison", 1)):
        place, other = kinds.index(kind), len(kinds) * fifth // 5 + dice.randrange(len(kinds) // 5)
        kinds[place], kinds[other] = kinds[other], kinds[place]
    faults = [
        Event(moment, kind, round(FAULTS[kind][1] * dice.uniform(0.3, 1), 1), dice.randrange(10**6))
        for moment, kind in zip(at, kinds, strict=True)
    ]
    for part in (SERVER, ("provider",), ("poison",)):
        faults = _one_at_a_time(faults, lambda event, part=part: event.kind.startswith(part), end)  # type: ignore[misc]
    requests = [
        Event(dice.uniform(0, seconds), dice.choice(REQUESTS), number=dice.randrange(10**6))
        for _ in range(int(seconds * REQUESTS_PER_S))
    ]
    return Schedule(seed, seconds, _in_order(faults), _in_order(requests))


def _one_at_a_time(faults: list[Event], concerned: Callable[[Event], bool], end: float) -> list[Event]:
    """Faults of one machine one after the other; those that come too late are left out, unless their kind would be."""
    kept: list[Event] = []
    free = 0.0
    for event in sorted(faults, key=lambda each: each.at):
        if not concerned(event):
            kept.append(event)
            continue
        at = max(event.at, free)
        if at > end and any(each.kind == event.kind for each in kept):
            continue
        kept.append(Event(at, event.kind, event.lasts, event.number))
        free = at + event.lasts + _GAP_S
    return kept


def _in_order(events: list[Event]) -> tuple[Event, ...]:
    return tuple(sorted(events, key=lambda event: event.at))
