"""An event loop whose clock stands still until a test moves it."""

from __future__ import annotations

import asyncio


class StillLoop(asyncio.SelectorEventLoop):
    now = 0.0
    """Seconds; what ``time()`` returns."""

    def time(self) -> float:
        return self.now
