"""The parts of a run's driver on a real Redis, put together as the driver does it. Nothing runs by itself."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis

from brimful.addresses import FleetAddress
from brimful.dispatch.deliveries import Deliveries
from brimful.dispatch.enqueue import Enqueuer
from brimful.dispatch.inflight import InFlight, Shard
from brimful.dispatch.intake import Intake
from brimful.dispatch.ledger import RunLedger, result_fields
from brimful.dispatch.outcomes import Outcomes
from brimful.dispatch.reconcile import Reconciler
from brimful.dispatch.results import ResultsReader
from brimful.dispatch.stops.hold import Hold
from brimful.dispatch.stops.stop import Stop
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import Delivered, Failed, PackOption, manifest_message
from brimful.state.redis_url import redis_client
from support.packed import ACS, packed
from support.stub_fleet import completion

REFUSED = Failure(Cause.BAD_REQUEST, "HTTP 404: no such model", 404, permanent=True)


class Parts:
    """A driver's parts."""

    def __init__(
        self,
        client: Redis,
        url: str,
        *,
        run: str = "r",
        sweep_s: float = 50.0,
        weight: float = 1.0,
        slots: int = 48,
        pack: PackOption = "off",
        timeout_s: float = 120.0,
    ) -> None:
        limits, auto = Limits(slots, None, 60.0), pack == "auto"
        self.client = client
        self.now = 1000.0 + int(time.monotonic())
        """The reconciler's clock. What the enqueuer has sent is old by it."""
        self.sizer, self.slot_model = PackSizer(limits, timeout_s), SlotModel(limits, adapting=auto)
        self.batcher = Batcher(ACS, pack, self.sizer, self.slot_model)
        self.in_flight = InFlight(self.sizer, self.slot_model, None)
        self.status = self.in_flight.status
        self.deliveries = Deliveries()
        self.ledger = RunLedger(client, run)
        address = FleetAddress(url)
        self.enqueuer = Enqueuer(address, run, self.ledger, self.in_flight, weight)
        self.intake = Intake(self.batcher, self.sizer, self.in_flight, self.deliveries, auto=auto)
        self.stop = Stop(self.ledger, self.in_flight, self.intake, self.deliveries)
        self.hold = Hold(self.ledger, self.in_flight, self.intake)
        self.outcomes = Outcomes(self.batcher, self.sizer, self.status)
        self.results = ResultsReader(
            self.ledger, self.outcomes, self.in_flight, self.intake, self.deliveries, self.stop, True
        )
        self.reconciler = Reconciler(
            address,
            self.ledger,
            self.in_flight,
            self.intake,
            self.enqueuer,
            self.results,
            self.stop,
            clock=lambda: self.now,
        )
        self.reconciler.sweep_s = sweep_s

    def add(self, *requests: PackedRequest) -> list[Shard]:
        """Of 48 slots, two requests share a shard."""
        for each in requests:
            self.in_flight.reserve(each)
        before = set(self.in_flight.shards)
        self.in_flight.add(requests)
        return [shard for id, shard in self.in_flight.shards.items() if id not in before]

    async def enqueued(self, *requests: PackedRequest, age_s: float = 100.0) -> list[Shard]:
        """Shards that were enqueued so long ago."""
        shards = self.add(*requests)
        await self.enqueuer.enqueue([self.in_flight.unsent.get_nowait() for _ in shards])
        for shard in shards:
            shard.enqueued_at = self.now - age_s
        return shards

    async def claim(self, shard: Shard) -> None:
        await self.client.set(self.ledger.keys.claim(shard.id), "token")
        await self.client.incr(self.ledger.keys.tries(shard.id))

    async def end(self, request: PackedRequest, **outcome: Any) -> None:
        """A worker stores the request's outcome: a completion, if no other is given."""
        outcome = outcome or {"completion": completion(request.request), "attempts": 1}
        fields: Any = result_fields(request.id, manifest_message(request.manifest), Outcome(request.id, **outcome))
        await self.client.xadd(self.ledger.keys.results, fields)

    async def messages(self) -> list[dict[str, Any]]:
        """All that was enqueued and is in a queue, the oldest first."""
        found = []
        for queue in ("interactive", "batch"):
            for raw in reversed(await self.client.lrange(queue, 0, -1)):
                message = json.loads(raw)
                args, _, _ = json.loads(b64decode(message["body"]))
                headers = message["headers"]
                assert headers["ignore_result"], "its outcomes are in the ledger"
                found.append({"queue": queue, "task": headers["id"], "args": args})
        return found

    @asynccontextmanager
    async def running(self, *parts: Any) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(part.run()) for part in parts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def batch(self) -> list[Delivered | Failed]:
        batch = await asyncio.wait_for(self.deliveries.next(), 60)
        assert batch is not None
        return batch.records


@asynccontextmanager
async def open_parts(url: str) -> AsyncIterator[Parts]:
    """Parts on an empty Redis."""
    async with redis_client(url) as client:
        await client.flushall()
        parts = Parts(client, url)
        yield parts
        await parts.enqueuer.aclose()


def singles(*lines: int) -> list[PackedRequest]:
    return [packed(f"q{line}", line) for line in lines]


async def steps(count: int = 50) -> None:
    """Let the loop's tasks go as far as they get without an answer from outside."""
    for _ in range(count):
        await asyncio.sleep(0)
