"""Reads outcomes from the run's results stream, and hands their records to the consumer, each once.

Outcomes stay in the stream until the consumer has written them down. If this process dies, the run's next submitter
finds them there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from brimful.dispatch.deliveries import Deliveries
from brimful.dispatch.inflight import InFlight, Shard
from brimful.dispatch.intake import Intake
from brimful.dispatch.ledger import Result, RunLedger
from brimful.dispatch.outcomes import REFUSED, STOPS, Outcomes
from brimful.dispatch.stops.stop import Stop
from brimful.packing.units import Delivered, Failed
from brimful.runtime.aio import until_tick
from brimful.state.redis_retry import retry_until_available

_BLOCK_S = 5.0
"""How long a read waits for an outcome. What else makes room for requests plans them itself."""
_STARVED_BLOCK_MS = 100
_CHOICES_AT_ONCE = 4096
"""About how many rollouts are read from Redis at once."""
_GATHER_S, _GATHER_PER_REQUEST_S = (0.005, 0.1), 2e-5
"""Seconds between two reads that find few outcomes: a read costs as much as several of them."""


@dataclass(eq=False)
class ResultsReader:
    """``run`` as a task."""

    ledger: RunLedger
    outcomes: Outcomes
    in_flight: InFlight
    intake: Intake
    deliveries: Deliveries
    stop: Stop
    stop_if_refused: bool
    """Whether to send nothing more once the provider has refused all requests in the same words, unless some for
    another endpoint or model are known."""

    async def run(self) -> None:
        """Never returns. Raises FleetError when Redis refuses."""
        last = self.deliveries.written
        while True:
            await self.deliveries.room()
            self.intake.plan()
            self.stop.end_if_done()
            count = max(8, min(256, _CHOICES_AT_ONCE // self.outcomes.pack))
            # An input that stalls must be noticed soon, even if no outcome comes.
            block_ms = _STARVED_BLOCK_MS if self.intake.starved else int(1000 * until_tick(_BLOCK_S))
            results = await retry_until_available(lambda: self.ledger.results(last, count, block_ms))  # noqa: B023
            if results:
                last = results[-1].entry
                self.deliveries.put(self._records(results), last)
                if seconds := pause_s(len(self.in_flight), count - len(results)):
                    await asyncio.sleep(seconds)

    async def read_again(self) -> None:
        """Deliver outcomes of requests in flight that are in the stream behind the place that was read last."""
        entry = "0"
        while results := await retry_until_available(lambda: self.ledger.results(entry, 64, None)):  # noqa: B023
            entry = results[-1].entry
            self.deliveries.put(self._records(results))

    def end_revoked(self, shards: list[Shard]) -> None:
        """Deliver failures for the requests of revoked shards. Outcomes that come all the same are dropped."""
        for shard in shards:
            for id in list(shard.requests):
                if (packed := self.in_flight.end(id)) is not None:
                    adopted = id in self.in_flight.adopted
                    self.deliveries.put(self.outcomes.revoked(packed, shard.id, adopted=adopted))
        self.intake.plan()
        self.stop.end_if_done()

    def _records(self, results: list[Result]) -> list[Delivered | Failed]:
        records: list[Delivered | Failed] = []
        for result in results:
            packed = self.in_flight.end(result.id)
            if packed is None:
                continue  # its outcome came before, or it was withdrawn and planned again
            adopted = result.id in self.in_flight.adopted
            ended = self.outcomes.records(packed, result.outcome, adopted=adopted)
            records += ended
            failure = result.outcome.failure
            if ended and failure is not None and failure.cause in STOPS:
                self.stop.begin_by(failure.cause.value)
        if self.stop_if_refused and self.outcomes.refuses_all(self.in_flight.requests):
            self.stop.begin_by(REFUSED)
        self.intake.plan()
        return records


def pause_s(in_flight: int, missing: int) -> float:
    """Seconds before the next read, so that it finds more outcomes. ``missing``: how many fewer the last read found
    than it may take. Nobody waits for an outcome while ``in_flight`` other requests are under way."""
    least, most = _GATHER_S
    seconds = min(in_flight * _GATHER_PER_REQUEST_S, most)
    return seconds if missing > 0 and seconds >= least else 0.0
