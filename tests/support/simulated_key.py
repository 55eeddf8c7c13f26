"""Minutes of a key whose limits are learnt: the real admission script on a real server, at times that the test chooses.

One process asks for as much as it can; the provider is simulated. Times are in milliseconds, from the beginning.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis

from brimful_worker.admission import Limits, Refused
from brimful_worker.admission.policy import release_delay
from brimful_worker.gateway.limits import Window
from support.admission_script import Script

WIRE_MS = 2
MOST_DELAY_S = 0.02


@dataclass(slots=True)
class Sent:
    """A request on the wire."""

    at: int
    granted_at: int
    ends_at: int
    refused: Refused | None = None
    retry_ms: int = 0


@dataclass
class Provider:
    """``slots`` and ``starts`` (in a window): [(from this second on, so many)]. None: any number.

    ``retry_s``: the Retry-After of a 429 by the starts; None = when there is room, 0 = none. Of one by the slots: 1 s.
    ``noise``: the share of requests that a 429 refuses which names no limit.
    """

    slots: Sequence[tuple[int, int]] | None = None
    starts: Sequence[tuple[int, int]] | None = None
    window_s: int = 60
    latency_ms: int = 1000
    retry_s: int | None = None
    noise: float = 0

    def __post_init__(self) -> None:
        self._window = Window(self.window_s)
        self._ends: list[int] = []
        self._random = random.Random(7)

    def send(self, now: int, granted_at: int) -> Sent:
        while self._ends and self._ends[0] <= now:
            heapq.heappop(self._ends)
        refused = Sent(now, granted_at, now + 2 * WIRE_MS, Refused.SLOTS, 1000)
        if self.slots and len(self._ends) >= _at(now, self.slots):
            return refused
        if self._random.random() < self.noise:
            refused.refused, refused.retry_ms = Refused.EITHER, 0
            return refused
        wait_s = self._window.admit(now / 1000, _at(now, self.starts) if self.starts else None)
        if wait_s is not None:
            refused.refused = Refused.STARTS
            refused.retry_ms = 1000 * (math.ceil(wait_s) if self.retry_s is None else self.retry_s)
            return refused
        ends_at = now + round(self.latency_ms * self._random.uniform(0.8, 1.2))
        heapq.heappush(self._ends, ends_at)
        return Sent(now, granted_at, ends_at + WIRE_MS)


def _at(now: int, changes: Sequence[tuple[int, int]]) -> int:
    return max(change for change in changes if now >= 1000 * change[0])[1]


class SimulatedKey:
    """What became of so many seconds. ``limits``: of the process."""

    def __init__(self, client: redis.Redis, provider: Provider, seconds: int, waiting: int = 40, **limits: Any) -> None:
        self._script = Script(
            client, **cast("dict[str, Any]", Limits(**{"window_s": provider.window_s, **limits}).fields())
        )
        self._began = self._script.now
        self._provider, self._to_wait, self._waiting = provider, waiting, 0
        self._sent: dict[str, Sent] = {}
        self._seconds: Counter[int] = Counter()
        self.refused: list[int] = []
        """When each 429 came."""
        self.learnt: list[dict[str, int]] = []
        """The limits that were learnt, at the end of each second."""
        reply = self._script.join()
        while (now := self._script.now - self._began) < 1000 * seconds:
            ends_at = min((request.ends_at for request in self._sent.values()), default=math.inf)
            asked = reply.get("at", math.inf) - self._began
            due = min(ends_at, asked, now + self._script.limits["lease_ms"] // 3)
            self._script.later(max(1, int(due) - now))
            reply = self._turn(self._script.now - self._began)
            for _ in range(len(self.learnt), (self._script.now - self._began) // 1000):
                self.learnt.append(reply.get("learnt", {}))

    def _turn(self, now: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"release": [], "answers": {}}
        for ticket in [ticket for ticket, request in self._sent.items() if request.ends_at <= now]:
            request = self._sent.pop(ticket)
            delay_ms = round(1000 * release_delay(MOST_DELAY_S, (now - request.at) / 1000))
            fields["release"].append([ticket, delay_ms, -1 if request.refused else 1, -1, 0])
            fields["answers"][ticket] = [request.granted_at, request.refused or 0, now - request.at, 1]
            if request.refused is None:
                self._seconds[now // 1000] += 1
                continue
            self.refused.append(now)
            if request.retry_ms:
                fields["busy" if request.refused is Refused.SLOTS else "pause"] = [request.retry_ms, "429"]
        fields["ask"] = [[self._script.ticket(), 0] for _ in range(self._waiting, self._to_wait)]
        reply = self._script.turn(renew=list(self._sent), **{name: value for name, value in fields.items() if value})
        grants = reply.get("grants", ())
        self._waiting = self._to_wait - len(grants)
        for _, ticket, granted_at, *_ in grants:
            self._sent[ticket] = self._provider.send(now, granted_at)
        return reply

    def rate(self, start_s: int, end_s: int) -> float:
        """Answers a second between two seconds."""
        return sum(self._seconds[second] for second in range(start_s, end_s)) / (end_s - start_s)

    def most_refused(self, start_s: int, end_s: int) -> int:
        """The most 429s in a minute between two seconds."""
        times = [at for at in self.refused if 1000 * start_s <= at < 1000 * end_s]
        return max((sum(at <= other < at + 60_000 for other in times) for at in times), default=0)
