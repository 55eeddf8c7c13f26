"""Outcomes back: read from the run's stream, and handed over in batches, each once.

What a slow consumer does not take stays in Redis, and so does what was handed over until it is said to be
:meth:`~Inbox.written`: should this process die, the run's next submitter finds it there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from brimful.dispatch.inflight import Outstanding
from brimful.dispatch.intake import Intake
from brimful.dispatch.ledger import Result, RunLedger
from brimful.dispatch.outcomes import STOPS, Outcomes
from brimful.dispatch.stop import Ending
from brimful.errors import RequestTooLarge
from brimful.packing.batcher import Batcher
from brimful.packing.units import Delivered, DriveStatus, Failed, Unit
from brimful.state.redis_retry import REDIS_ERRORS, reraise_cancellation, retry_until_available

_BLOCK_MS = 1000
_CHOICES_AT_ONCE = 4096
"""About so many rollouts are read from Redis at a time."""


class Inbox:
    """``collect`` as a task; ``next`` gives what came, ``written`` says what need not be kept any more."""

    def __init__(
        self,
        ledger: RunLedger,
        outcomes: Outcomes,
        planner: Batcher,
        out: Outstanding,
        intake: Intake,
        ending: Ending,
        status: DriveStatus,
        *,
        on_stop: Callable[[str], None],
    ) -> None:
        """``on_stop(cause)`` is called once, when an outcome tells that nothing more is worth asking."""
        self._ledger = ledger
        self._outcomes = outcomes
        self._planner = planner
        self._out = out
        self._intake = intake
        self._ending = ending
        self._status = status
        self._on_stop = on_stop
        self._batches: asyncio.Queue[tuple[list[Delivered | Failed], str]] = asyncio.Queue()
        self._taken = asyncio.Event()
        self._last = "0"
        self._to_forget = "0"

    def begin_after(self, entry: str) -> None:
        """The stream was read up to ``entry`` by somebody else, who has delivered what was in it."""
        self._last = self._to_forget = entry

    async def collect(self) -> None:
        """Never ends by itself. Raises FleetError when Redis refuses."""
        while True:
            while self._batches.qsize() >= 2:  # its consumer is slow: what is not read stays in Redis
                self._taken.clear()
                await self._taken.wait()
            self._intake.plan()
            self._ending.end_if_done()
            count = max(8, min(256, _CHOICES_AT_ONCE // max(1, self._planner.pack)))
            # A stalled input is to be noticed soon, though no outcome comes.
            block_ms = 100 if not self._intake.fed and self._intake.room() else _BLOCK_MS
            results = await retry_until_available(lambda: self._ledger.results(self._last, count, block_ms))  # noqa: B023
            if results:
                self._last = results[-1].entry
                self.take(results)

    def take(self, results: list[Result]) -> None:
        batch: list[Delivered | Failed] = []
        for result in results:
            packed = self._out.end(result.id)
            if packed is None:
                continue  # it came before, or it was withdrawn and is asked anew
            known = result.id not in self._out.foreign
            records = self._outcomes.records(packed, result.outcome, known_lines=known)
            batch += records
            failure = result.outcome.failure
            if records and failure is not None and failure.cause in STOPS and self._status.stopping is None:
                self._on_stop(failure.cause.value)
        self._intake.plan()
        self._batches.put_nowait((batch, results[-1].entry))

    def refuse(self, unit: Unit, error: RequestTooLarge) -> None:
        """A line of which no request can be made: its failure comes with the others'."""
        self._batches.put_nowait(([self._outcomes.refused(unit, str(error))], self._to_forget))

    async def next(self) -> tuple[list[Delivered | Failed], str] | None:
        """A batch, and the entry it goes up to. None: it is over, and all is delivered."""
        if self._batches.empty():
            over = self._ending.over
            getting, ending = asyncio.create_task(self._batches.get()), asyncio.create_task(over.wait())
            try:
                await asyncio.wait((getting, ending), return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    return getting.result()
            finally:
                getting.cancel()
                ending.cancel()
        return None if self._batches.empty() else self._batches.get_nowait()

    async def written(self, entry: str) -> None:
        """What was handed over, up to ``entry``, is on disk."""
        self._to_forget = entry
        self._taken.set()
        await self.acknowledge()

    async def acknowledge(self) -> None:
        """What was taken is written down. Should Redis be away, the next one does it."""
        if self._to_forget != "0":
            with contextlib.suppress(*REDIS_ERRORS):
                await reraise_cancellation(lambda: self._ledger.forget(self._to_forget))
