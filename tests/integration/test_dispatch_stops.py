"""A driver's hold and its stops, each alone, with a run's ledger on a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from brimful.errors import FleetError
from brimful.state.redis_retry import forget_refusals
from brimful_worker.local.server.valkey import Valkey
from support.dispatch_parts import Parts, open_parts, singles, steps
from support.packed import unit
from support.waiting import wait_until_async


@pytest.fixture
async def parts(server: Valkey) -> AsyncIterator[Parts]:
    async with open_parts(server.url) as parts:
        yield parts


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


def count_drains(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each value that the flag which workers read was set to."""
    calls: list[bool] = []
    drain = parts.ledger.drain

    async def counted(on: bool) -> None:
        calls.append(on)
        await drain(on)

    monkeypatch.setattr(parts.ledger, "drain", counted)
    return calls


async def test_a_hold_does_nothing_before_it_is_asked_for(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    drains = count_drains(parts, monkeypatch)
    async with parts.running(parts.hold):
        await steps()
    assert drains == []


async def test_a_hold_does_nothing_once_the_run_stops(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    drains = count_drains(parts, monkeypatch)
    await parts.enqueued(*singles(1))
    parts.status.stopping = "drain"
    async with parts.running(parts.hold):
        for held in (True, False):
            parts.hold.set(held)
            await steps()
    assert drains == [], "the stop has set the flag that workers see"
    assert parts.status.held
    assert len(parts.in_flight) == 1


async def test_a_stop_that_begins_while_the_run_is_resumed(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.hold.set(True)
    await parts.ledger.drain(True)
    drain = parts.ledger.drain

    async def stopped_meanwhile(on: bool) -> None:
        await drain(on)
        parts.status.stopping = "drain"

    monkeypatch.setattr(parts.ledger, "drain", stopped_meanwhile)
    parts.hold.set(False)
    async with parts.running(parts.hold):
        await wait_until_async(lambda: parts.status.stopping, "the stop", 60)
        await wait_until_async(lambda: parts.client.exists(parts.ledger.keys.drain), "the flag to be set again", 60)
    assert parts.status.held


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
    assert not parts.stop.at_once
    await parts.stop.now()
    assert (parts.status.stopping, parts.stop.at_once) == ("stop", True)
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
    assert not parts.stop.at_once
    await parts.stop.now()
    assert (parts.status.stopping, parts.stop.at_once) == ("budget", True)


async def test_a_drain_ends_where_redis_refuses_to_record_it(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forget_refusals()

    async def refuses(on: bool) -> None:
        raise FleetError("Redis: OOM")

    monkeypatch.setattr(parts.ledger, "drain", refuses)
    [runs] = await parts.enqueued(*singles(1))
    await parts.stop.drain()
    assert await asyncio.wait_for(parts.deliveries.next(), 60) is None
    assert list(parts.in_flight.shards) == [runs.id], "the run's next submitter finds it"
    assert "stopped without waiting for what is on the wire: Redis: OOM" in caplog.text
