"""Where the admission's clock (Redis's, in ms) stands on this process's own steady one (seconds).

Each turn says: when the clock showed ``now``, the steady one stood between the sending and the reply. The latest
of the early ends is the tightest bound from below, and every deadline is built on it: never later than true.
"""

from __future__ import annotations

from collections import deque

_KEPT = 16
_SLACK_S = 0.25
"""How far the clock may run ahead of this process's before it is called a step: less than the network's part of the
guard. A turn that takes so much longer than the slowest of those kept looks like a step, and the clock waits for it."""
_SLACK_SHARE = 0.005


class RedisClock:
    """Failure mode: with no turn yet there is no estimate; :meth:`reset` at every new epoch."""

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=_KEPT)
        self._last_sent = 0.0

    def reset(self) -> None:
        self._offsets.clear()

    def note(self, sent: float, now_ms: float) -> None:
        """A turn sent at this steady time showed ``now_ms``."""
        self._offsets.append(sent - now_ms / 1000)
        self._last_sent = sent

    def not_after(self, at_ms: float) -> float:
        """A steady time that is not later than when the clock showed ``at_ms``."""
        return max(self._offsets) + at_ms / 1000

    def bound_ms(self, sent: float) -> int | None:
        """The furthest the clock can be when a turn sent now is carried out, unless it was stepped forward."""
        if not self._offsets:
            return None
        slack = _SLACK_S + _SLACK_SHARE * (sent - self._last_sent)
        return int((sent - min(self._offsets) + slack) * 1000)
