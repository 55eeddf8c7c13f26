"""Maps the admission's clock (Redis's, in ms) to this process's ``boot_time()`` (in seconds).

Each command shows that the clock read ``now`` at some time between its sending and its reply. The latest of the early
ends is the tightest lower bound, and deadlines are built on it: they are never later than true.
"""

from __future__ import annotations

from collections import deque

_KEPT = 16
_SLACK_S = 0.25
"""How far the clock may run ahead of this process's before that counts as a step; less than the network's part of the
guard. A command that takes this much longer than the slowest of those kept is sent again: see :meth:`stepped`."""
_SLACK_SHARE = 0.005


class RedisClock:
    """Failure mode: no estimate before the first reply of an epoch."""

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=_KEPT)
        self._last_sent = 0.0

    def reset(self) -> None:
        self._offsets.clear()

    def note(self, sent: float, now_ms: float) -> None:
        """A command sent at this time was answered with ``now_ms``."""
        self._offsets.append(sent - now_ms / 1000)
        self._last_sent = sent

    def not_after(self, at_ms: float) -> float:
        """A ``boot_time()`` not later than the moment at which the clock showed ``at_ms``."""
        return max(self._offsets) + at_ms / 1000

    def bound_ms(self, sent: float) -> int | None:
        """The most the clock can show when a command sent now is carried out, unless it was stepped forward."""
        if not self._offsets:
            return None
        slack = _SLACK_S + _SLACK_SHARE * (sent - self._last_sent)
        return int((sent - min(self._offsets) + slack) * 1000)

    def stepped(self, received: float, now_ms: float) -> bool:
        """Whether a reply received at this time shows more than the clock can without a step forward.

        If not, a stall of Redis or of the network explains why its command was carried out past its bound.
        """
        bound = self.bound_ms(received)
        return bound is not None and now_ms > bound
