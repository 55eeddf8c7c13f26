"""A process that always has more to send, and a provider with limits: simulated time around the real admission script.

For tests of learnt limits that would take minutes: each command runs on a real server, at a time that the simulation
chooses. Times are in milliseconds.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from brimful_worker.admission import Limits, Refused
from brimful_worker.admission.policy import release_delay
from brimful_worker.gateway.limits import Window
from support.admission_script import Script

WIRE_MS = 2
WAITING = 40


@dataclass(slots=True)
class Sent:
    at: int
    granted: int
    refused: Refused | None = None
    retry_ms: int = 0


@dataclass
class SimulatedKey:
    """What the provider allows. ``slots``: [(from this second, so many)]; ``starts``: in a window, 0 = any number."""

    slots: Sequence[tuple[int, int]] = ((0, 10**6),)
    starts: int = 0
    window_s: int = 60
    latency_ms: int = 1000
    spread: float = 0.2
    retry_s: float | None = None
    """Of each 429; None = when there is room, 0 = none."""
    answered: list[int] = field(default_factory=list)
    """When each answer came."""
    refused: list[int] = field(default_factory=list)
    """When each 429 came."""
    levels: list[dict[str, int]] = field(default_factory=list)
    """The learnt limits of each second."""

    def run(self, client: redis.Redis, seconds: int, **limits: Any) -> SimulatedKey:
        """A process with these Limits asks for as much as it can."""
        random_ = random.Random(7)
        script = Script(client, **Limits(**{"window_s": self.window_s, **limits}).fields())
        script.join()
        window, active, began = Window(self.window_s), 0, script.now
        sent: dict[str, Sent] = {}
        ends: list[tuple[int, str]] = []
        leaves: list[int] = []
        waiting = 0
        poll: int | None = began
        heartbeat = script.limits["lease_ms"] // 3
        while script.now < began + seconds * 1000:
            due = [ends[0][0]] if ends else []
            due += [script.now + heartbeat] if poll is None else [max(poll, script.now), script.now + heartbeat]
            script.now = max(script.now + 1, min(due))
            now = script.now
            release, answers, pauses = [], {}, {}
            while ends and ends[0][0] <= now:
                _, ticket = heapq.heappop(ends)
                request = sent.pop(ticket)
                took_s = (now - request.at) / 1000
                rest = round(1000 * release_delay(0.02, took_s))
                release.append([ticket, rest, -1 if request.refused else 1, 0, 0])
                answers[ticket] = [request.granted, int(request.refused or 0), now - request.at, 1]
                if request.refused is None:
                    self.answered.append(now - began)
                else:
                    self.refused.append(now - began)
                    kind = "busy" if request.refused is Refused.SLOTS else "pause"
                    if request.retry_ms > pauses.get(kind, [0])[0]:
                        pauses[kind] = [request.retry_ms, "429"]
            ask = [[script.ticket(), 0] for _ in range(WAITING - waiting)]
            waiting = WAITING
            fields = {"release": release, "answers": answers, "ask": ask, "renew": list(sent), **pauses}
            reply = script.turn(**{name: value for name, value in fields.items() if value})
            poll = reply.get("at")
            for _, ticket, granted, *_ in reply.get("grants", ()):
                waiting -= 1
                request = sent[ticket] = Sent(now, granted)
                while leaves and leaves[0] <= now:
                    heapq.heappop(leaves)
                    active -= 1
                wait_s = None
                if active >= next(slots for since, slots in reversed(self.slots) if now - began >= since * 1000):
                    request.refused, request.retry_ms = Refused.SLOTS, 1000
                elif self.starts and (wait_s := window.admit(now / 1000, self.starts)) is not None:
                    request.refused, request.retry_ms = Refused.STARTS, 1000 * math.ceil(wait_s)
                else:
                    active += 1
                    took = round(self.latency_ms * (1 + self.spread * (2 * random_.random() - 1)))
                    heapq.heappush(leaves, now + took)
                    heapq.heappush(ends, (now + took + WIRE_MS, ticket))
                if request.refused is not None:
                    if self.retry_s is not None:
                        request.retry_ms = round(1000 * self.retry_s)
                    heapq.heappush(ends, (now + 2 * WIRE_MS, ticket))
            while len(self.levels) <= (now - began) // 1000:
                self.levels.append(reply.get("learnt") or {})
        return self

    def rate(self, start_s: int, end_s: int) -> float:
        """Answers a second."""
        return sum(1000 * start_s <= at < 1000 * end_s for at in self.answered) / (end_s - start_s)

    def most_refused(self, start_s: int, end_s: int) -> int:
        """Most 429s in any 60 s between two seconds."""
        times = [at for at in self.refused if 1000 * start_s <= at < 1000 * end_s]
        return max((sum(at <= other < at + 60_000 for other in times) for at in times), default=0)
