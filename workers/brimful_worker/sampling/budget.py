"""Waits at the end of the key's token budget: a request that is refused is sent again once other requests have ended.

A running request holds its tokens until it ends (ACS, "Handle the end of your Budget"), so a refusal means that one
more request does not fit beside those in flight. The gate learns that number, keeps this process's requests under it,
and lets it grow again slowly. A request that is refused with nothing else in flight has met the end of the budget.

Failure mode: two processes may each count the other's probe as a request in flight. Both then wait a random time and
ask again, so the end is found a little later.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable

from brimful_worker.admission import Admission
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.sampling import retry

log = logging.getLogger(__name__)

_END_KNOWN_S = 10.0
"""How long after the end requests as large fail without being sent. Later, somebody may have paid."""
_PROBE_FIRST_S, _PROBE_MOST_S = 0.5, 10.0
"""Pauses between probes while no hold of this process ends: other processes' holds end too."""


class BudgetGate:
    """The gate of one process. Until a request is refused it only counts."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, uniform: Callable[[], float] = random.random
    ) -> None:
        """``uniform`` draws from [0, 1)."""
        self._clock = clock
        self._uniform = uniform
        self.limit: float | None = None
        """Requests that fit at once, as far as is known; None while no refusal is remembered."""
        self._refusals = 0
        self._not_before = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ended: tuple[int, float] | None = None
        """The smallest hold that was refused with nothing in flight, and when."""
        self.holding = 0
        """Requests of this process that hold tokens at the provider."""

    def at_end(self, hold: int) -> bool:
        """Whether a request of this hold, in tokens, was just refused with nothing in flight."""
        if self._ended is None:
            return False
        smallest, when = self._ended
        return hold >= smallest and self._clock() - when < _END_KNOWN_S

    async def wait(self) -> None:
        """Returns when one more request may be tried."""
        while self._closed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            timer = None
            if self.holding < int(self.limit or 1):
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
        return self.limit is not None and (self.holding >= int(self.limit) or self._clock() < self._not_before)

    def enter(self) -> bool:
        """A request is about to be sent. Returns False if the gate has closed since :meth:`wait`."""
        if self._closed:
            return False
        self.holding += 1
        return True

    def leave(self) -> None:
        """The request has ended, and its hold with it."""
        self.holding -= 1
        self._wake()

    async def observe(self, answer: Classification, hold: int, admission: Admission) -> bool:
        """An attempt has ended. False: it was refused only because other requests held tokens."""
        if answer.kind is Kind.BUDGET:
            if await in_flight_elsewhere(admission, self) > 0:
                self.refused()
                return False
            self.end(hold)
        elif answer.completion is not None:
            self.fitted()
        return True

    def fitted(self) -> None:
        """The provider completed a request, and its hold is about to end: one more per round may fit."""
        self._ended = None
        if self.limit is not None:
            self._refusals, self._not_before = 0, 0.0
            self.limit += 1 / max(1.0, self.limit)
            if self.limit > 4 * (self.holding + len(self._waiting) + 1):
                self.limit = None  # no request waits for it any more
            self._wake()

    def refused(self) -> None:
        """One more did not fit."""
        fits = max(1, self.holding - 1)
        self.limit = float(fits if self.limit is None else min(fits, max(1.0, self.limit)))
        if self._clock() < self._not_before:
            return  # one of several that were refused together
        self._refusals += 1
        pause = retry.bound(self._refusals, base_s=_PROBE_FIRST_S, cap_s=_PROBE_MOST_S)
        self._not_before = self._clock() + pause * (0.5 + self._uniform() / 2)

    def end(self, hold: int) -> None:
        """Refused with nothing else in flight. All waiting requests are woken, to fail or to try a smaller hold."""
        smallest = hold if not self.at_end(hold) or self._ended is None else min(hold, self._ended[0])
        self._ended = (smallest, self._clock())
        self.limit, self._refusals, self._not_before = 1.0, 0, 0.0
        while self._waiting:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


async def in_flight_elsewhere(admission: Admission, budget: BudgetGate) -> int:
    """Requests of this key that hold tokens now, except the caller's; only this process's if Redis is away."""
    local = budget.holding - 1
    try:
        status = await admission.status()
    except Exception as error:
        log.debug("no status of the fleet: %s", type(error).__name__)
        return local
    return max(local, status.slots_used - status.cooling - 1)
