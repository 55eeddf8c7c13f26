"""Records that wait for a driver's consumer."""

from __future__ import annotations

import asyncio
from typing import Any

from brimful.dispatch.deliveries import Batch, Deliveries
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.units import Failed

FAILURE = Failure(Cause.BAD_REQUEST, "no")


def record(line: int) -> Failed:
    return Failed(line, str(line), None, ((0, 0),), FAILURE, Outcome(str(line), failure=FAILURE))


def waits(waiter: asyncio.Future[Any]) -> bool:
    return not waiter.done()


async def _started(awaitable: Any) -> asyncio.Future[Any]:
    waiter: asyncio.Future[Any] = asyncio.ensure_future(awaitable)
    for _ in range(3):
        await asyncio.sleep(0)
    return waiter


async def test_all_that_waits_is_one_batch() -> None:
    deliveries = Deliveries()
    one, two, three = map(record, (1, 2, 3))
    deliveries.put([one], "1-0")
    deliveries.put([two, three])
    assert await deliveries.next() == Batch([one, two, three], "1-0")
    deliveries.put([])
    nothing = await _started(deliveries.next())
    assert waits(nothing)
    deliveries.put([], "2-0")
    assert await asyncio.wait_for(nothing, 60) == Batch([], "2-0"), "an entry without records is written down too"
    deliveries.put([one])
    assert await deliveries.next() == Batch([one], "2-0")


async def test_the_entry_from_which_a_run_goes_on() -> None:
    deliveries = Deliveries()
    assert deliveries.written == "0"
    deliveries.put([record(1)])
    assert await deliveries.next() == Batch([record(1)], "0")
    deliveries.begin_after("7-1")
    assert deliveries.written == "7-1"
    deliveries.put([record(2)])
    assert await deliveries.next() == Batch([record(2)], "7-1")


async def test_the_end_comes_after_what_waits() -> None:
    deliveries = Deliveries()
    deliveries.put([record(1)])
    deliveries.end()
    assert await deliveries.next() == Batch([record(1)], "0")
    assert await deliveries.next() is None
    ending = Deliveries()
    last = await _started(ending.next())
    assert waits(last)
    ending.end()
    assert await asyncio.wait_for(last, 60) is None


async def test_there_is_room_for_two_reads() -> None:
    deliveries = Deliveries()
    deliveries.put([record(1)], "1-0")
    assert not waits(await _started(deliveries.room()))
    deliveries.put([], "2-0")
    room = await _started(deliveries.room())
    assert waits(room)
    await deliveries.next()
    await asyncio.wait_for(room, 60)
    deliveries.put([], "3-0")
    assert not waits(await _started(deliveries.room())), "the reads are counted from the last batch on"


async def test_there_is_room_for_4096_records() -> None:
    deliveries = Deliveries()
    deliveries.put([record(1)] * 4095)
    assert not waits(await _started(deliveries.room()))
    deliveries.put([record(1)])
    room = await _started(deliveries.room())
    assert waits(room)
    await deliveries.next()
    await asyncio.wait_for(room, 60)


async def test_a_full_room_is_waited_for_each_time() -> None:
    deliveries = Deliveries()
    for _ in range(2):
        deliveries.put([], "1-0")
        deliveries.put([], "2-0")
        room = await _started(deliveries.room())
        assert waits(room)
        await deliveries.next()
        await asyncio.wait_for(room, 60)
