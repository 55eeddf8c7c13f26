"""Maps the admission's clock (Redis's, in ms) to this process's ``boot_time()`` (in seconds).

Each command shows that the clock read ``now`` at some time between its sending and its reply. The latest of the early
ends is the tightest lower bound, and deadlines are built on it: they are never later than true.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from brimful_worker.liveness.boot_time import boot_time

_KEPT = 16
_SLACK_S = 0.25
"""How far the clock may run ahead of this process's before that counts as a step; less than the network's part of the
guard. A command that takes this much longer than the slowest of those kept is sent again: see :meth:`stepped`."""
_SLACK_SHARE = 0.005
_TICK_S = 0.002
"""Redis's clock is read in whole milliseconds."""


class _Frozen(NamedTuple):
    """The first reply that showed this reading of a clock that stood still."""

    now_ms: int
    clock: str
    time_ms: int
    sent: float
    received: float


class RedisClock:
    """Failure mode: no estimate before the first reply of an epoch."""

    def __init__(self) -> None:
        self.id = ""
        """Of the clock that was read last; empty before the first reply. It stays the same over most epochs."""
        self.read_ms = 0
        """What it showed in the last answer; 0 before the first. It never goes back: a server whose clock shows less
        has forgotten that answer."""
        self._readings: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """The least and the most by which ``boot_time()`` is ahead, by each reading."""
        self._ahead: float | None = None
        """The most of the least; None until it is asked for, as it is for each grant."""
        self._last_sent = 0.0
        self._frozen: _Frozen | None = None

    def reset(self) -> None:
        self._readings.clear()
        self._ahead = None
        self.read_ms = 0

    def note(self, sent: float, received: float, now_ms: int) -> None:
        """A command sent and answered at these times was answered with ``now_ms``."""
        least, most = sent - now_ms / 1000, received - now_ms / 1000
        # A clock that lost time, by a step backward, might regain it by one forward: older readings would allow that.
        kept = [reading for reading in self._readings if reading[1] >= least - _TICK_S]
        self._readings = deque([*kept, (least, most)], maxlen=_KEPT)
        self._ahead = None
        self._last_sent = sent
        self._frozen = None
        self.read_ms = now_ms

    def note_frozen(self, sent: float, received: float, reply: Mapping[str, Any]) -> None:
        """A reply that shows ``now``, though more time may have passed."""
        if self._frozen is None or self._frozen.now_ms != reply["now"]:
            self._frozen = _Frozen(reply["now"], reply.get("clock", ""), reply["real"], sent, received)

    def waited(self, sent: float) -> tuple[int, int, str, int] | None:
        """Of a clock that was frozen: its reading, for how many milliseconds that is known, and its id. And the most
        that Redis's own TIME shows when a command sent now is carried out, unless it is stepped."""
        if (frozen := self._frozen) is None:
            return None
        since = sent - frozen.sent
        most_ms = frozen.time_ms + (since + _SLACK_S + _SLACK_SHARE * since) * 1000
        return frozen.now_ms, int((sent - frozen.received) * 1000), frozen.clock, int(most_ms)

    def not_after(self, at_ms: float) -> float:
        """A ``boot_time()`` not later than the moment at which the clock showed ``at_ms``."""
        if self._ahead is None:
            self._ahead = max(least for least, _ in self._readings)
        return self._ahead + at_ms / 1000

    def sent_at(self, now_ms: float, at_ms: float) -> float:
        """The ``boot_time()`` at which to send a command that is to be carried out at ``at_ms``, or a moment later. It
        is the clock's lower bound, so that no round trip is lost. ``now_ms``: what the clock shows now."""
        return min(self.not_after(at_ms), boot_time() + (at_ms - now_ms) / 1000) + _TICK_S / 2

    def bound_ms(self, sent: float, *, stepped: bool = False) -> int | None:
        """The most the clock can show when a command sent now is carried out, unless it was stepped forward.

        ``stepped``: what it would show without the step that is known of, if the command takes as long as the fastest.
        """
        if not self._readings:
            return None
        if stepped:
            return math.ceil((sent - max(least for least, _ in self._readings)) * 1000)
        slack = _SLACK_S + _SLACK_SHARE * (sent - self._last_sent)
        return int((sent - min(least for least, _ in self._readings) + slack) * 1000)

    def least_ms(self, sent: float) -> int | None:
        """The least that the clock can show when a command sent now is carried out, unless it has lost time."""
        if not self._readings:
            return None
        slack = _TICK_S + _SLACK_SHARE * (sent - self._last_sent)
        return int((sent - min(most for _, most in self._readings) - slack) * 1000)

    def stepped(self, received: float, now_ms: float) -> bool:
        """Whether a reply received at this time shows more than the clock can without a step forward.

        If not, a stall of Redis or of the network explains why its command was carried out past its bound.
        """
        bound = self.bound_ms(received)
        return bound is not None and now_ms > bound
