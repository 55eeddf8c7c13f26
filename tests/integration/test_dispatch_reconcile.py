"""What is in flight is compared with a real Redis: lost and revoked shards, and packs that would time out."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from brimful.dispatch.inflight import Shard
from brimful.dispatch.intake import Intake
from brimful.outcome import Cause
from brimful.packing.units import Delivered, Failed
from brimful.request import Request
from brimful.state.keys import revoked_key
from brimful_worker.local.server.valkey import Valkey
from support.dispatch_parts import Parts, open_parts, singles
from support.packed import packed, unit
from support.stub_fleet import StubSampler, stub_fleet
from support.waiting import wait_until_async


@pytest.fixture
async def parts(server: Valkey) -> AsyncIterator[Parts]:
    async with open_parts(server.url) as parts:
        yield parts


async def lose_messages(parts: Parts, *shards: Shard) -> list[str]:
    """Those of the shards, as they were in the queue."""
    gone = [raw for raw in await parts.client.lrange("batch", 0, -1) if any(shard.id in raw for shard in shards)]
    for raw in gone:
        await parts.client.lrem("batch", 1, raw)
    return gone


async def test_only_a_shard_that_nobody_has_is_enqueued_again(parts: Parts) -> None:
    """It was lost with its worker, or with Redis's last second."""
    waits, lost, forgotten, runs = await parts.enqueued(*singles(*range(8)))
    [unsent] = parts.add(*singles(8))
    await parts.claim(runs)
    await parts.client.delete(parts.ledger.keys.shard(forgotten.id))
    await lose_messages(parts, lost, forgotten, runs)
    await parts.reconciler.look()
    assert [shard.times_missing for shard in (waits, lost, forgotten, runs, unsent)] == [0, 1, 1, 0, 0]
    assert parts.status.redelivered == 0
    await parts.reconciler.look()
    assert [shard.times_missing for shard in (waits, lost, forgotten, runs, unsent)] == [0, 0, 0, 0, 0]
    assert parts.status.redelivered == 2
    tasks = [message["task"] for message in await parts.messages()]
    assert sorted(tasks) == sorted([waits.id, lost.id, forgotten.id])
    assert set(await parts.ledger.outstanding()) >= {lost.id, forgotten.id}


async def test_looks_that_find_a_shard_begin_the_count_again(parts: Parts) -> None:
    """A message that is being delivered is nowhere for a moment."""
    [shard] = await parts.enqueued(*singles(1))
    messages = await lose_messages(parts, shard)
    await parts.reconciler.look()
    await parts.client.rpush("batch", *messages)
    await parts.reconciler.look()
    await lose_messages(parts, shard)
    await parts.reconciler.look()
    await parts.claim(shard)
    await parts.reconciler.look()
    await parts.client.delete(parts.ledger.keys.claim(shard.id))
    await parts.reconciler.look()
    assert (shard.times_missing, parts.status.redelivered) == (1, 0)
    await parts.reconciler.look()
    assert parts.status.redelivered == 1


async def test_a_shard_is_searched_for_from_an_age_on(parts: Parts) -> None:
    """A fifth of ``sweep_s`` if a worker has begun it, else ``sweep_s``."""
    just_begun, begun = await parts.enqueued(*singles(1, 2, 3, 4))
    young, old = await parts.enqueued(*singles(5, 6, 7, 8))
    await parts.client.delete("batch")
    for shard, age_s in ((just_begun, 10.0), (begun, 10.5), (young, 49.5), (old, 50.0)):
        shard.enqueued_at = parts.now - age_s
    for shard in (just_begun, begun):
        await parts.client.incr(parts.ledger.keys.tries(shard.id))  # and claimed no more: its worker is dead
    await parts.reconciler.look()
    assert [shard.times_missing for shard in (just_begun, begun, young, old)] == [0, 1, 0, 1]
    parts.now += 0.5
    await parts.reconciler.look()
    assert [shard.times_missing for shard in (just_begun, young)] == [1, 1]
    assert {message["task"] for message in await parts.messages()} == {begun.id, old.id}


async def test_a_lost_shard_s_outcomes_are_read_before_it_is_enqueued_again(parts: Parts) -> None:
    one, two, three = singles(1, 2, 3)
    await parts.enqueued(one)
    [other] = await parts.enqueued(two, three)
    await parts.client.flushall()  # and the worker still stores what it has
    await parts.end(one)
    await parts.end(two)
    for _ in range(2):
        await parts.reconciler.look()
    assert [record.line for record in await parts.batch()] == [1, 2]
    assert parts.status.redelivered == 1
    [message] = await parts.messages()
    assert message["task"] == other.id
    assert [request["id"] for request in message["args"][2]] == ["q3"]


async def test_a_lost_shard_of_a_run_that_stops_is_given_up(parts: Parts) -> None:
    parts.reconciler.sweep_s = 0.05
    await parts.enqueued(*singles(1))
    await parts.client.delete("batch")
    parts.status.stopping = "drain"
    async with parts.running(parts.reconciler):
        assert await asyncio.wait_for(parts.deliveries.next(), 60) is None
    assert (len(parts.in_flight), parts.status.redelivered) == (0, 0)
    assert await parts.ledger.outstanding() == {}


async def test_nothing_counts_as_lost_while_rabbitmq_does_not_answer(parts: Parts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    parts.reconciler.address = replace(parts.reconciler.address, rabbitmq_url=f"amqp://127.0.0.1:{port}")
    [shard] = await parts.enqueued(*singles(1))
    await parts.client.delete("batch")
    await parts.reconciler.look()
    assert shard.times_missing == 0


async def test_lines_of_a_revoked_task_are_failures_unless_it_runs_on(parts: Parts) -> None:
    (runs, ends, waits, other) = await parts.enqueued(*singles(*range(1, 9)))
    for shard in (runs, ends):
        await parts.claim(shard)
    for shard, how in ((runs, "skip"), (ends, "terminate"), (waits, "skip")):
        await parts.client.set(revoked_key(shard.id), how)
    await parts.end(packed("q5", 5))  # before it was revoked
    await parts.reconciler.look()
    ended, *failed = await parts.batch()
    assert (ended.line, sorted(record.line for record in failed)) == (5, [3, 4, 6])
    assert isinstance(ended, Delivered)
    assert all(isinstance(record, Failed) and record.failure.cause is Cause.CANCELLED for record in failed)
    assert sorted(await parts.ledger.outstanding()) == sorted([runs.id, other.id])
    assert list(parts.in_flight.shards) == [runs.id, other.id]


async def test_packs_that_would_time_out_are_taken_back(parts: Parts) -> None:
    parts.reconciler.intake = Intake(parts.batcher, parts.sizer, parts.in_flight, parts.deliveries, auto=True)
    large = packed("large", *range(200))
    [shard] = await parts.enqueued(large, age_s=0.0)
    for size in (1, 2, 4):
        for _ in range(8):
            parts.sizer.learn(large.pack_key, size, 0.0, 1.0 * size)
    parts.status.stopping = "drain"
    await parts.reconciler.look()
    assert list(parts.in_flight.shards) == [shard.id]
    parts.status.stopping = None
    await parts.reconciler.look()
    assert len(parts.in_flight) > 1
    assert await parts.client.exists(parts.ledger.keys.shard(shard.id)) == 0
    assert {entry.line for each in parts.in_flight.requests for entry in each.manifest} <= set(range(200))


async def test_packs_that_would_time_out_are_sent_again_in_smaller_ones(parts: Parts, server: Valkey) -> None:
    """Nothing is known of the latency, which grows with the choices, when the first packs are sent."""

    async def slow(request: Request) -> None:
        await asyncio.sleep(0.005 * request.choices if request.choices <= 30 else 3600)

    sampler = StubSampler(slow, slots=2)
    parts = Parts(parts.client, server.url, slots=2, pack="auto", sweep_s=0.05)
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
