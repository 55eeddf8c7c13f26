"""How far away Redis is: the round trips of this process's last commands, and how old grants are when they arrive.

Two values go to Redis with the process's description: ``rtt_ms``, which ``status`` shows, and ``lag_ms``: each of its
starts counts for so much longer, so that a grant that took this long to arrive can still be used.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque

from brimful.limits import describe_cost, far_away, starts_share
from brimful_worker.admission.policy import Rules, wire_lag

log = logging.getLogger(__name__)

_KEPT = 32
_IGNORED_SHARE = 0.1
"""Of the oldest arrivals; those grants may be given back."""
_STEPS_MS = (0, *(round(20 * 1.25**n) for n in range(25)))
_CHANGED = 0.25
"""A change of the round trip by less is not reported."""
_COSTLY = 0.95
"""Share of the starts below which the log says so."""


class RoundTrips:
    """Times are in seconds. Failure mode: before the first reply both values are 0."""

    def __init__(self) -> None:
        self.rtt_ms = 0
        self.lag_ms = 0
        self._trips: deque[float] = deque(maxlen=_KEPT)
        self._ages: deque[float] = deque(maxlen=_KEPT)
        self._logged_ms, self._logged_costly = 0, False

    def note(self, trip: float, age: float) -> None:
        """A command was answered after ``trip``; a grant in its reply would be as old as ``age``."""
        self._trips.append(trip)
        self._ages.append(age)

    def note_push(self, age: float) -> None:
        """A message from Redis arrived that is as old as this."""
        self._ages.append(age)

    def update(self, rules: Rules) -> None:
        """Compute both values. Small changes are not worth a new description."""
        if not self._trips:
            return
        rtt_ms = statistics.median(self._trips) * 1000
        if abs(rtt_ms - self.rtt_ms) > max(2.0, _CHANGED * self.rtt_ms):
            self.rtt_ms = round(rtt_ms)
        lag_ms = lag_step(oldest(self._ages), rules)
        if lag_ms > self.lag_ms or lag_ms < 0.7 * self.lag_ms:
            self.lag_ms = lag_ms
        if self.lag_ms and (rules.starts or rules.tokens):
            self._log(rules)

    def _log(self, rules: Rules) -> None:
        """Also where the distance is as before, since limits are set and changed while a process runs."""
        costly = starts_share(rules.window_s, rules.guard_s, self.lag_ms / 1000) < _COSTLY
        if self.lag_ms <= 1.5 * self._logged_ms and costly <= self._logged_costly:
            return
        self._logged_ms, self._logged_costly = max(self.lag_ms, self._logged_ms), costly or self._logged_costly
        rtt_s, lag_s = self.rtt_ms / 1000, self.lag_ms / 1000
        what = "Redis is far away" if far_away(rtt_s, lag_s) else "some answers of Redis come late"
        text = describe_cost(rules.window_s, rules.guard_s, rtt_s, lag_s)
        log.log(logging.WARNING if costly else logging.INFO, "admission: %s: %s", what, text)


def oldest(ages: deque[float]) -> float:
    """The age that all but a tenth of the arrivals stay below."""
    return sorted(ages)[-1 - int(len(ages) * _IGNORED_SHARE)] if ages else 0.0


def lag_step(age_s: float, rules: Rules) -> int:
    """Milliseconds by which each start must count longer where grants arrive at this age.

    Half of what the guard leaves to the process is for arrivals, the rest for the request's way to the wire. At most a
    quarter of the lease: a reply that takes longer is not waited for.
    """
    most_ms = math.floor(rules.reply_timeout_s * 1000)
    needed_ms = (age_s - wire_lag(rules.guard_s) / 2) * 1000
    return min(next((step for step in _STEPS_MS if step >= needed_ms), math.floor(needed_ms)), most_ms)
