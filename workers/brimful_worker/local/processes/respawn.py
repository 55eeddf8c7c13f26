"""When a worker that ended is started again, and when that is given up."""

from __future__ import annotations

import signal
from dataclasses import dataclass

STEADY_S = 20.0
"""A worker that lived this long was healthy: what befell it is no sign that the next one will end too."""
GIVE_UP = 5
"""Short lives in a row, ended by the worker's own doing, after which it is given up."""
_BASE_S = 0.2
_CAP_S = 5.0
_USAGE_EXIT = 2
_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


@dataclass(slots=True)
class Respawn:
    """One worker's history. Killed from outside (the out-of-memory killer, an operator), it always comes back."""

    short_lives: int = 0
    faults: int = 0

    def after(self, returncode: int, lived_s: float) -> float | None:
        """Seconds until it is started again, or None when it is not worth trying."""
        if lived_s >= STEADY_S:
            self.short_lives = self.faults = 0
        else:
            self.short_lives += 1
            if returncode not in _OUTSIDE and returncode != 0:
                self.faults += 1
        if returncode == _USAGE_EXIT or self.faults >= GIVE_UP:
            return None
        return 0.0 if not self.short_lives else min(_CAP_S, _BASE_S * 2.0 ** (self.short_lives - 1))
