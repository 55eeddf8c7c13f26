"""The end of the key's budget: requests whose hold does not fit wait for the holds of others to end.

A running request holds its tokens until it ends (ACS, "Handle the end of your Budget"). So a refusal says: with as
many in flight as there are now, one more does not fit. The gate learns that number, keeps this process's requests
under it, and lets it grow again slowly; a request that is refused with nothing else in flight has met the end.
Failure mode: two processes may each take the other's probe for a request in flight; both then wait a random while and
ask again, so the end is told a little later.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable

from brimful_worker.sampling import retry

_END_IS_NEWS_S = 10.0
"""For so long after the end, requests as large fail without asking; then somebody may have paid."""
_PROBE_FIRST_S, _PROBE_MOST_S = 0.5, 10.0
"""While no hold of this process ends, one request asks again so often: others' holds end too."""


class BudgetGate:
    """One process's. Open (the usual case) it only counts."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, uniform: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._uniform = uniform
        self._limit: float | None = None
        self._refusals = 0
        self._not_before = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ended: tuple[int, float] | None = None
        self.holding = 0
        """Requests of this process that hold tokens at the provider."""

    @property
    def limit(self) -> int | None:
        """Requests that fit at once, as far as is known; None = no refusal is remembered."""
        return None if self._limit is None else int(self._limit)

    def at_end(self, hold: int) -> bool:
        """Whether a request of this size has just been refused with nothing in flight."""
        if self._ended is None:
            return False
        smallest, when = self._ended
        return hold >= smallest and self._clock() - when < _END_IS_NEWS_S

    async def turn(self) -> None:
        """Returns when one more may be tried."""
        while self._closed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            timer = None
            if self.holding < int(self._limit or 1):
                timer = asyncio.get_running_loop().call_later(max(0.0, self._not_before - self._clock()), self._wake)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()
                raise
            finally:
                if timer is not None:
                    timer.cancel()

    @property
    def _closed(self) -> bool:
        return self._limit is not None and (self.holding >= int(self._limit) or self._clock() < self._not_before)

    def enter(self) -> bool:
        """A request is about to be sent; False where it must wait for its turn after all."""
        if self._closed:
            return False
        self.holding += 1
        return True

    def leave(self) -> None:
        """It has ended, and its hold with it."""
        self.holding -= 1
        self._wake()

    def fitted(self) -> None:
        """The provider took a request, and its hold is about to end: one more per round may fit."""
        self._ended = None
        if self._limit is not None:
            self._refusals, self._not_before = 0, 0.0
            self._limit += 1 / max(1.0, self._limit)
            if self._limit > 4 * (self.holding + len(self._waiting) + 1):
                self._limit = None  # nobody waits for it any more
            self._wake()

    def refused(self) -> None:
        """One more did not fit."""
        fits = max(1, self.holding - 1)
        self._limit = float(fits if self._limit is None else min(fits, max(1.0, self._limit)))
        if self._clock() < self._not_before:
            return  # one of a crowd that was refused together
        self._refusals += 1
        pause = retry.bound(self._refusals, base_s=_PROBE_FIRST_S, cap_s=_PROBE_MOST_S)
        self._not_before = self._clock() + pause * (0.5 + self._uniform() / 2)

    def end(self, hold: int) -> None:
        """Refused with nothing else in flight: those that wait may find it out at once."""
        smallest = hold if not self.at_end(hold) or self._ended is None else min(hold, self._ended[0])
        self._ended = (smallest, self._clock())
        self._limit, self._refusals, self._not_before = 1.0, 0, 0.0
        while self._waiting:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
