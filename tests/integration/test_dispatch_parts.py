"""The parts of a driver, each alone, with a run's ledger on a real Valkey and a test in the place of the workers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from brimful.celery import app_for
from brimful.dispatch.acknowledge import Acknowledger
from brimful.dispatch.deliveries import Deliveries
from brimful.dispatch.enqueue import Enqueuer
from brimful.dispatch.inflight import InFlight, Shard
from brimful.dispatch.intake import Intake
from brimful.dispatch.ledger import RunLedger, result_fields
from brimful.dispatch.outcomes import Outcomes
from brimful.dispatch.reconcile import Reconciler
from brimful.dispatch.results import ResultsReader
from brimful.dispatch.resume import collect
from brimful.dispatch.stops.hold import Hold
from brimful.dispatch.stops.stop import Stop
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import Delivered, Failed, PackOption, manifest_message
from brimful.request import Request
from brimful.state.keys import revoked_key
from brimful.state.redis_url import redis_client
from brimful_worker.local.server.valkey import Valkey
from support.packed import ACS, packed, unit
from support.stub_fleet import StubSampler, completion, stub_fleet
from support.waiting import wait_until_async

REFUSED = Failure(Cause.BAD_REQUEST, "HTTP 404: no such model", 404, permanent=True)


class Parts:
    """A driver's parts, put together as the driver does it. Nothing runs by itself."""

    def __init__(
        self,
        client: Redis,
        url: str,
        *,
        sweep_s: float = 0.05,
        weight: float = 1.0,
        slots: int = 48,
        pack: PackOption = "off",
        timeout_s: float = 120.0,
    ) -> None:
        limits, auto = Limits(slots, None, 60.0), pack == "auto"
        self.client = client
        self.sizer, self.slot_model = PackSizer(limits, timeout_s), SlotModel(limits, adapting=auto)
        self.batcher = Batcher(ACS, pack, self.sizer, self.slot_model)
        self.in_flight = InFlight(self.sizer, self.slot_model, None)
        self.status = self.in_flight.status
        self.deliveries = Deliveries()
        self.ledger = RunLedger(client, "r")
        self.enqueuer = Enqueuer("r", self.ledger, app_for(url), self.in_flight, weight)
        self.intake = Intake(self.batcher, self.sizer, self.in_flight, self.deliveries, auto=auto)
        self.stop = Stop(self.ledger, self.in_flight, self.intake, self.deliveries)
        self.hold = Hold(self.ledger, self.in_flight, self.intake)
        self.outcomes = Outcomes(self.batcher, self.sizer, self.status)
        self.results = ResultsReader(
            self.ledger, self.outcomes, self.in_flight, self.intake, self.deliveries, self.stop, True
        )
        self.reconciler = Reconciler(
            self.ledger, self.in_flight, self.intake, self.enqueuer, self.results, self.stop, sweep_s
        )

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
            shard.enqueued_at = time.monotonic() - age_s
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


@pytest.fixture
async def parts(server: Valkey) -> AsyncIterator[Parts]:
    async with redis_client(server.url) as client:
        await client.flushall()
        parts = Parts(client, server.url)
        yield parts
        await parts.enqueuer.aclose()


def singles(*lines: int) -> list[PackedRequest]:
    return [packed(f"q{line}", line) for line in lines]


# -- enqueuing ----------------------------------------------------------------------------------------------------


async def test_a_shard_is_recorded_and_then_sent_to_its_queue(parts: Parts, server: Valkey) -> None:
    suspect = packed("q3", 3, 4, n=2)
    suspect = replace(suspect, pack_key=replace(suspect.pack_key, suspect=True))
    first, second = parts.add(*singles(1, 2), suspect)
    async with parts.running(parts.enqueuer):
        await wait_until_async(lambda: second.enqueued_at, "both to be sent", 60)
    assert first.enqueued_at > 0
    assert await parts.ledger.outstanding() == {
        shard.id: {id: request.manifest for id, request in shard.requests.items()} for shard in (first, second)
    }
    one, two = await parts.messages()
    assert [each["task"] for each in (one, two)] == [first.id, second.id]
    assert one["queue"] == "batch"
    assert one["args"] == [
        "r",
        first.id,
        [{"id": f"q{n}", "units": [[n, f"id{n}", 0, [0]]], "request": parts_request(n), "schema": 1} for n in (1, 2)],
    ]
    [sent] = two["args"][2]
    assert sent["suspect"] is True
    assert sent["request"]["prompt"] == ["p3", "p4"]
    heavy = Parts(parts.client, server.url, weight=2.5)
    await heavy.enqueued(packed("q5", 5, workload="interactive"))
    [message, *_] = await heavy.messages()
    assert (message["queue"], message["args"][2][0]["weight"]) == ("interactive", 2.5)
    assert message["args"][2][0]["request"]["workload"] == "interactive"
    await heavy.enqueuer.aclose()


def parts_request(line: int) -> dict[str, Any]:
    return {"prompt": f"p{line}", "max_tokens": 8, "id": f"q{line}", "mode": "completion", "workload": "batch"}


async def test_what_was_withdrawn_or_cancelled_meanwhile_is_not_sent(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, thinned = parts.add(*singles(1, 2, 3, 4))
    ledger, record = parts.ledger, parts.ledger.record

    async def withdrawn_meanwhile(rows: Any) -> None:
        await record(rows)
        parts.in_flight.drop(gone)
        parts.in_flight.end("q3")

    monkeypatch.setattr(ledger, "record", withdrawn_meanwhile)
    await parts.enqueuer.enqueue([gone, thinned])
    assert await ledger.outstanding() == {thinned.id: {"q4": packed("q4", 4).manifest}}
    [message] = await parts.messages()
    assert [request["id"] for request in message["args"][2]] == ["q4"]


async def test_all_is_sent_by_one_thread(parts: Parts) -> None:
    before = set(threading.enumerate())
    first, second = parts.add(*singles(1, 2, 3))
    await asyncio.gather(parts.enqueuer.enqueue([first]), parts.enqueuer.enqueue([second]))
    new = [thread for thread in threading.enumerate() if thread not in before and "brimful-publish" in thread.name]
    assert len(new) == 1
    assert len(await parts.messages()) == 2


async def test_nothing_is_sent_once_it_is_closed(parts: Parts) -> None:
    shards = parts.add(*singles(1))
    parts.enqueuer.close()
    await parts.enqueuer.enqueue(shards)
    assert await parts.messages() == []


# -- acknowledging ------------------------------------------------------------------------------------------------


async def test_what_is_written_is_trimmed(parts: Parts) -> None:
    for each in singles(1, 2):
        await parts.end(each)
    first, _ = await parts.ledger.results("0", 9, None)
    acknowledger = Acknowledger(parts.ledger, parts.deliveries, None)
    await acknowledger.now()
    await acknowledger.trim()
    assert len(await parts.ledger.results("0", 9, None)) == 2, "nothing is written yet"
    await acknowledger.written(first.entry)
    assert parts.deliveries.written == first.entry
    [left] = await parts.ledger.results("0", 9, None)
    assert left.id == "q2"


async def test_what_is_not_durable_is_not_trimmed(parts: Parts) -> None:
    answers: list[bool | None] = [False, None, True]
    asked = 0

    async def sync() -> bool | None:
        nonlocal asked
        asked += 1
        return answers.pop(0)

    async def left() -> int:
        return len(await parts.ledger.results("0", 9, None))

    for each in singles(1, 2):
        await parts.end(each)
    first, second = await parts.ledger.results("0", 9, None)
    acknowledger = Acknowledger(parts.ledger, parts.deliveries, sync)
    await acknowledger.written(first.entry)
    assert (asked, await left()) == (0, 2), "its task does it"
    await acknowledger.now()
    assert (asked, await left()) == (1, 2)
    await acknowledger.now()
    assert (asked, await left()) == (2, 1)
    await acknowledger.now()
    assert asked == 2, "nothing more was written"
    await acknowledger.written(second.entry)
    async with parts.running(acknowledger):
        await wait_until_async(lambda: asked == 3, "its task to sync", 60)
        await wait_until_async(lambda: _is(left(), 0), "and to trim", 60)


async def _is(value: Any, wanted: Any) -> bool:
    return bool(await value == wanted)


async def _has(parts: Parts, *tasks: str) -> bool:
    """Whether all these have a message."""
    return {message["task"] for message in await parts.messages()} >= set(tasks)


# -- reading results ----------------------------------------------------------------------------------------------


async def test_outcomes_are_delivered_once_with_their_entry(parts: Parts) -> None:
    one, two = singles(1, 2)
    await parts.enqueued(one, two)
    await parts.end(one)
    await parts.end(one)  # its shard was delivered twice
    await parts.end(packed("unknown", 9))
    async with parts.running(parts.results):
        batch = await asyncio.wait_for(parts.deliveries.next(), 60)
        assert batch is not None
        assert [record.line for record in batch.records] == [1]
        entries = [result.entry for result in await parts.ledger.results("0", 9, None)]
        assert batch.entry == entries[-1]
        await parts.end(two, failure=REFUSED)
        [failed] = await parts.batch()
        assert isinstance(failed, Failed)
        assert (failed.line, failed.request) == (2, two.slices[0].unit.request)
    assert len(parts.in_flight) == 0


async def test_requests_of_an_earlier_submitter_have_no_request_of_their_own(parts: Parts) -> None:
    [mine] = singles(1)
    parts.in_flight.adopt("old", {"q1": mine})
    await parts.end(mine, failure=REFUSED)
    async with parts.running(parts.results):
        [failed] = await parts.batch()
    assert isinstance(failed, Failed)
    assert failed.request is None


@pytest.mark.parametrize(
    ("cause", "stopping"), [(Cause.KEY_REFUSED, "key_refused"), (Cause.BUDGET, "budget"), (Cause.TIMEOUT, None)]
)
async def test_a_failure_that_no_further_request_escapes_stops_the_run(
    parts: Parts, cause: Cause, stopping: str | None
) -> None:
    await parts.enqueued(*(requests := singles(1, 2)))
    await parts.end(requests[0], failure=Failure(cause, "no"))
    async with parts.running(parts.results):
        assert len(await parts.batch()) == 1
    assert parts.status.stopping == stopping


async def test_the_same_refusal_of_every_request_stops_the_run(parts: Parts) -> None:
    requests = singles(*range(22))
    await parts.enqueued(*requests)
    for each in requests[:20]:
        await parts.end(each, failure=REFUSED)
    async with parts.running(parts.results):
        await wait_until_async(lambda: parts.status.stopping, "the stop", 60)
    assert parts.status.stopping == "refused"


async def test_outcomes_behind_the_last_one_are_found_again(parts: Parts) -> None:
    requests = singles(*range(70))
    parts.add(*requests)
    for each in requests:
        await parts.end(each)
    parts.deliveries.begin_after("99999999999999-0")
    await parts.results.read_again()
    assert len(await parts.batch()) == 70
    assert len(parts.in_flight) == 0


# -- reconciling --------------------------------------------------------------------------------------------------


async def test_only_a_shard_that_nobody_has_is_enqueued_again(parts: Parts) -> None:
    """It was lost with its worker, or with Redis's last second."""
    waits, lost, forgotten, runs, young = [
        (await parts.enqueued(*singles(line), age_s=age_s))[0]
        for line, age_s in ((1, 100), (2, 100), (3, 100), (4, 100), (5, -1e6))
    ]
    [unsent] = parts.add(*singles(6))
    await parts.claim(runs)
    await parts.client.delete(parts.ledger.keys.shard(forgotten.id), parts.ledger.keys.shard(young.id))
    queued = await parts.client.lrange("batch", 0, -1)
    for raw in queued:
        if lost.id in raw or forgotten.id in raw or young.id in raw or runs.id in raw:
            await parts.client.lrem("batch", 1, raw)
    async with parts.running(parts.reconciler):
        await wait_until_async(lambda: _has(parts, lost.id, forgotten.id), "them to be enqueued again", 60)
    tasks = [message["task"] for message in await parts.messages()]
    assert set(tasks) == {waits.id, lost.id, forgotten.id}
    assert tasks.count(waits.id) == 1
    assert set(await parts.ledger.outstanding()) >= {lost.id, forgotten.id}
    assert unsent.times_missing == young.times_missing == runs.times_missing == 0


async def test_a_shard_whose_worker_has_died_is_enqueued_again(parts: Parts) -> None:
    [died] = await parts.enqueued(*singles(1), age_s=1.0)
    parts.reconciler.sweep_s = 0.1
    await parts.client.delete("batch")
    await parts.client.incr(parts.ledger.keys.tries(died.id))  # begun, and claimed no more
    async with parts.running(parts.reconciler):
        await wait_until_async(lambda: parts.status.redelivered == 1, "it to be enqueued again", 60)


async def test_a_lost_shard_s_outcomes_are_read_before_it_is_enqueued_again(parts: Parts) -> None:
    [one] = singles(1)
    [shard] = await parts.enqueued(one)
    await parts.client.delete("batch", parts.ledger.keys.shard(shard.id))
    await parts.end(one)
    async with parts.running(parts.reconciler):
        [delivered] = await parts.batch()
    assert delivered.line == 1
    assert parts.status.redelivered == 0
    assert await parts.messages() == []


async def test_a_lost_shard_of_a_run_that_stops_is_given_up(parts: Parts) -> None:
    await parts.enqueued(*singles(1))
    await parts.client.delete("batch")
    parts.status.stopping = "drain"
    async with parts.running(parts.reconciler):
        assert await asyncio.wait_for(parts.deliveries.next(), 60) is None
    assert (len(parts.in_flight), parts.status.redelivered) == (0, 0)
    assert await parts.ledger.outstanding() == {}


async def test_lines_of_a_revoked_task_are_failures_unless_it_runs_on(parts: Parts) -> None:
    (runs, ends, waits) = await parts.enqueued(*singles(1, 2, 3, 4, 5, 6))
    for shard in (runs, ends):
        await parts.claim(shard)
    for shard, how in ((runs, "skip"), (ends, "terminate"), (waits, "skip")):
        await parts.client.set(revoked_key(shard.id), how)
    async with parts.running(parts.reconciler):
        records: list[Delivered | Failed] = []
        while len(records) < 4:
            records += await parts.batch()
    assert sorted(record.line for record in records) == [3, 4, 5, 6]
    assert all(isinstance(record, Failed) and record.failure.cause is Cause.CANCELLED for record in records)
    assert list(await parts.ledger.outstanding()) == [runs.id]
    assert list(parts.in_flight.shards) == [runs.id]


async def test_packs_that_would_time_out_are_taken_back(parts: Parts) -> None:
    parts.reconciler.intake = Intake(parts.batcher, parts.sizer, parts.in_flight, parts.deliveries, auto=True)
    large = packed("large", *range(200))
    [shard] = await parts.enqueued(large, age_s=0.0)
    for size in (1, 2, 4):
        for _ in range(8):
            parts.sizer.learn(large.pack_key, size, 0.0, 1.0 * size)
    parts.status.stopping = "drain"
    async with parts.running(parts.reconciler):
        await wait_until_async(lambda: _is(parts.client.exists(parts.ledger.keys.shard(shard.id)), 1), "a look", 60)
        assert len(parts.in_flight) == 1
        parts.status.stopping = None
        await wait_until_async(lambda: len(parts.in_flight) > 1, "smaller requests", 60)
    assert await parts.client.exists(parts.ledger.keys.shard(shard.id)) == 0
    assert {entry.line for each in parts.in_flight.requests for entry in each.manifest} <= set(range(200))


async def test_packs_that_would_time_out_are_sent_again_in_smaller_ones(parts: Parts, server: Valkey) -> None:
    """Nothing is known of the latency, which grows with the choices, when the first packs are sent."""

    async def slow(request: Request) -> None:
        await asyncio.sleep(0.005 * request.choices if request.choices <= 30 else 3600)

    sampler = StubSampler(slow, slots=2)
    parts = Parts(parts.client, server.url, slots=2, pack="auto")
    delivered: Counter[int] = Counter()
    async with stub_fleet(server.url, sampler), parts.running(parts.enqueuer, parts.results, parts.reconciler):
        feeding = asyncio.create_task(parts.intake.feed(iter([unit(line) for line in range(300)]), 300))
        await wait_until_async(lambda: any(request.choices > 30 for request in sampler.asked), "a large pack", 60)
        for size in (1, 2, 4, 8, 16) * 6:
            parts.sizer.learn(packed("x", 1).pack_key, size, 0.0, 0.005 * size)
        parts.sizer.timeout_s = 0.005 * 30
        while delivered.total() < 300:
            delivered.update(record.line for record in await parts.batch())
        await feeding
    assert sum(sampler.sampled.values()) == 300, "none of the large packs was sampled to its end"
    assert set(delivered.values()) == {1}
    await parts.enqueuer.aclose()


# -- holding and stopping -----------------------------------------------------------------------------------------


async def test_a_held_run_takes_back_what_no_worker_has_begun(parts: Parts) -> None:
    runs, waits = await parts.enqueued(*singles(1, 2, 3, 4))
    await parts.claim(runs)
    parts.hold.set(True)
    assert parts.status.held, "at once"
    async with parts.running(parts.hold):
        await wait_until_async(lambda: waits.id not in parts.in_flight.shards, "what waits to be taken back", 60)
        assert await parts.client.exists(parts.ledger.keys.drain)
        assert list(await parts.ledger.outstanding()) == [runs.id]
        assert parts.batcher.held == 2
        parts.hold.set(False)
        await wait_until_async(lambda: not parts.status.held, "it to go on", 60)
        assert await parts.client.exists(parts.ledger.keys.drain) == 0
        assert parts.batcher.held == 0
        assert len(parts.in_flight) == 4


async def test_a_hold_does_nothing_once_the_run_stops(parts: Parts) -> None:
    await parts.enqueued(*singles(1))
    parts.status.stopping = "drain"
    async with parts.running(parts.hold):
        for held in (True, False):
            parts.hold.set(held)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert parts.status.held, "the stop has set the flag that workers see"
        assert len(parts.in_flight) == 1


async def test_the_deliveries_end_when_nothing_is_left(parts: Parts) -> None:
    parts.add(*singles(1))
    parts.stop.end_if_done()
    parts.in_flight.end("q1")
    parts.stop.end_if_done()
    ended = asyncio.ensure_future(parts.deliveries.next())
    await asyncio.sleep(0)
    assert not ended.done(), "the input has not ended"

    async def nothing() -> AsyncIterator[Any]:
        for each in ():
            yield each

    await parts.intake.feed(nothing(), 0)
    parts.stop.end_if_done()
    assert await asyncio.wait_for(ended, 60) is None


async def test_a_drained_run_ends_with_what_workers_have_begun(parts: Parts) -> None:
    runs, waits = await parts.enqueued(*singles(1, 2, 3, 4))
    [unsent] = parts.add(*singles(5))
    await parts.claim(runs)
    parts.batcher.add(unit(9))
    await parts.stop.drain()
    assert parts.status.stopping == "drain"
    assert list(parts.in_flight.shards) == [runs.id]
    assert parts.in_flight.unsent.empty()
    assert unsent.id not in parts.in_flight.shards
    assert list(await parts.ledger.outstanding()) == [runs.id]
    assert await parts.client.exists(parts.ledger.keys.drain)
    assert await parts.client.exists(parts.ledger.keys.shard(waits.id)) == 0
    ended = asyncio.ensure_future(parts.deliveries.next())
    await asyncio.sleep(0)
    assert not ended.done()
    for id in ("q1", "q2"):
        parts.in_flight.end(id)
    parts.stop.end_if_done()
    assert await asyncio.wait_for(ended, 60) is None


async def test_a_drain_of_a_run_with_nothing_in_flight_ends_it(parts: Parts) -> None:
    await parts.stop.drain()
    assert await asyncio.wait_for(parts.deliveries.next(), 60) is None
    assert await parts.client.exists(parts.ledger.keys.drain) == 0


async def test_a_stop_at_once_withdraws_all_and_is_stronger_than_a_drain(parts: Parts) -> None:
    [runs] = await parts.enqueued(*singles(1))
    await parts.claim(runs)
    await parts.stop.drain()
    await parts.stop.now()
    assert parts.status.stopping == "stop"
    assert await asyncio.wait_for(parts.deliveries.next(), 60) is None
    assert await parts.ledger.outstanding() == {}
    await parts.stop.drain()
    parts.stop.begin_by("budget")
    assert parts.status.stopping == "stop", "the first reason stays"


async def test_a_refusal_withdraws_what_no_worker_has_begun(parts: Parts) -> None:
    runs, _ = await parts.enqueued(*singles(1, 2, 3))
    await parts.claim(runs)
    async with parts.running(parts.stop):
        parts.stop.begin_by("budget")
        assert parts.status.stopping == "budget"
        await wait_until_async(lambda: len(parts.in_flight.shards) == 1, "the rest to be withdrawn", 60)
    assert list(parts.in_flight.shards) == [runs.id]


# -- taking over --------------------------------------------------------------------------------------------------


async def test_what_an_earlier_submitter_left(parts: Parts) -> None:
    one, two, lost = singles(1, 2, 3)
    pack, chat = packed("pack", 7, 8, n=2), packed("chat", 9, mode="chat")
    [alive] = await parts.enqueued(one, two)
    [forgotten] = await parts.enqueued(lost)
    await parts.client.delete("batch")  # with all messages so far
    [packs] = await parts.enqueued(pack, chat)
    await parts.enqueuer.enqueue([alive])
    await parts.end(one, completion=completion(one.request), unmetered_tokens=5)
    await parts.end(one, completion=completion(one.request), unmetered_tokens=5)
    await parts.end(packed("old", 4), failure=REFUSED, unmetered_tokens=7)
    await parts.end(packed("odd", 5), completion={"choices": []})
    await parts.ledger.drain(True)
    left = await collect(parts.ledger, ACS)
    assert [item.line for item in left.recovered.delivered] == [1]
    assert left.recovered.unmetered_tokens == 12
    assert left.last == (await parts.ledger.results("0", 9, None))[-1].entry
    assert {shard: sorted(requests) for shard, requests in left.shards.items()} == {
        alive.id: ["q2"],
        packs.id: ["chat", "pack"],
    }
    assert left.recovered.outstanding == {(2, 0, 0), (9, 0, 0), *((line, 0, c) for line in (7, 8) for c in (0, 1))}
    again = left.shards[packs.id]["pack"]
    assert (again.manifest, again.request.fields) == (pack.manifest, pack.request.fields)
    assert again.pack_key.key == pack.pack_key.key
    assert [item.unit.request.prompts for item in again.slices] == [["p7"], ["p8"]]
    assert left.shards[packs.id]["chat"].request.prompts == chat.request.prompts
    assert forgotten.id not in await parts.ledger.outstanding()
    assert await parts.client.exists(parts.ledger.keys.drain) == 0


async def test_a_shard_whose_message_does_not_fit_is_withdrawn(parts: Parts) -> None:
    [shard] = await parts.enqueued(*singles(1))
    await parts.ledger.record({shard.id: {"q1": packed("q1", 1, 2).manifest}})
    assert (await collect(parts.ledger, ACS)).shards == {}
    [shard] = await parts.enqueued(*singles(3))
    await parts.ledger.record({shard.id: {"q3": packed("q3", 3, n=2).manifest}})
    left = await collect(parts.ledger, ACS)
    assert (left.shards, left.recovered.outstanding, left.last) == ({}, frozenset(), "0")
    assert await parts.ledger.outstanding() == {}
