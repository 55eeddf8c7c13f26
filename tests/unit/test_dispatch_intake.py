"""Units are read while there is something to choose from, and planned while there is room in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from brimful.dispatch.deliveries import Deliveries
from brimful.dispatch.inflight import InFlight
from brimful.dispatch.intake import Intake
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import Failed, PackOption, Unit
from support.packed import ACS, packed, unit
from support.waiting import wait_until_async

MIB = 1024 * 1024


@dataclass
class Parts:
    batcher: Batcher
    sizer: PackSizer
    in_flight: InFlight
    deliveries: Deliveries
    intake: Intake

    @property
    def lines(self) -> list[int]:
        return [entry.line for each in self.in_flight.requests for entry in each.manifest]


def parts(
    pack: PackOption = "off",
    slots: int = 16,
    timeout_s: float = 120.0,
    clock: Callable[[], float] = time.monotonic,
) -> Parts:
    limits = Limits(slots, None, 60.0)
    sizer, slot_model = PackSizer(limits, timeout_s), SlotModel(limits, adapting=pack == "auto")
    batcher, in_flight, deliveries = (
        Batcher(ACS, pack, sizer, slot_model),
        InFlight(sizer, slot_model, None),
        Deliveries(),
    )
    intake = Intake(batcher, sizer, in_flight, deliveries, auto=pack == "auto", clock=clock)
    return Parts(batcher, sizer, in_flight, deliveries, intake)


async def stream(units: Iterable[Unit | Failed], then: asyncio.Event | None = None) -> AsyncIterator[Unit | Failed]:
    """Never blocks, until it waits for ``then``."""
    for each in units:
        yield each
    if then is not None:
        await then.wait()


def failed(line: int) -> Failed:
    failure = Failure(Cause.BAD_REQUEST, "no")
    return Failed(line, str(line), None, ((0, 0),), failure, Outcome(str(line), failure=failure))


async def steps(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", [iter, stream])
async def test_all_units_are_planned(kind: Any) -> None:
    there = parts()
    assert not there.intake.done
    assert there.intake.starved
    await there.intake.feed(kind([unit(line) for line in range(1, 6)]), 5)
    assert there.lines == [1, 2, 3, 4, 5]
    assert there.intake.done
    assert not there.intake.starved
    assert there.in_flight.status.lines_taken == 5
    assert len({each.id for each in there.in_flight.requests}) == 5


async def test_it_is_done_once_all_that_was_read_is_in_flight() -> None:
    there = parts(slots=2)
    await there.intake.feed(stream([unit(line) for line in range(1, 9)]), None)
    first = there.lines
    assert 2 < len(first) < 8
    assert not there.intake.done
    for each in list(there.in_flight.requests):
        there.in_flight.end(each.id)
        there.intake.plan()
    assert sorted(first + there.lines) == list(range(1, 9))
    assert there.intake.done


async def test_what_cannot_be_sent_is_delivered_as_a_failure() -> None:
    there = parts()
    large = unit(2, prompt=["a", "b"], n=2, max_tokens=40_000)
    part = replace(large, line=3, wanted=((1, 0),))
    await there.intake.feed(stream([failed(1), large, part, unit(4)]), None)
    batch = await there.deliveries.next()
    assert batch is not None
    first, second, third = batch.records
    assert isinstance(second, Failed)
    assert isinstance(third, Failed)
    assert (first.line, second.line, third.line) == (1, 2, 3)
    assert second.wanted == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert third.wanted == ((1, 0),)
    assert (second.id, second.request) == ("id2", large.request)
    assert (second.failure.cause, second.failure.permanent) == (Cause.BAD_REQUEST, True)
    assert second.outcome.failure is second.failure
    assert there.in_flight.status.failures == 3
    assert there.in_flight.status.lines_taken == 4
    assert there.lines == [4]


async def test_failures_wait_for_a_slow_consumer() -> None:
    there = parts()
    feeding = asyncio.create_task(there.intake.feed(stream([failed(line) for line in range(5000)]), None))
    await wait_until_async(lambda: there.in_flight.status.failures == 4096, "as many as there is room for", 60)
    await steps()
    assert there.in_flight.status.failures == 4096
    await there.deliveries.next()
    await asyncio.wait_for(feeding, 60)
    assert there.in_flight.status.failures == 5000


async def test_reading_pauses_while_there_is_enough_to_choose_from() -> None:
    there = parts(slots=2)
    feeding = asyncio.create_task(there.intake.feed(stream([unit(line) for line in range(1, 1000)]), None))
    await wait_until_async(lambda: there.batcher.full, "enough to be read", 60)
    await steps()
    taken, held = there.in_flight.status.lines_taken, there.batcher.held
    assert (taken, held) == (256 + len(there.in_flight), 256)
    for each in list(there.in_flight.requests):
        there.in_flight.end(each.id)
    there.intake.plan()
    await steps()
    assert there.in_flight.status.lines_taken > taken
    feeding.cancel()


async def test_a_stop_ends_the_reading_and_plans_nothing() -> None:
    there = parts(slots=2)
    feeding = asyncio.create_task(there.intake.feed(stream([unit(line) for line in range(1, 1000)]), None))
    await wait_until_async(lambda: there.batcher.full, "enough to be read", 60)
    planned = there.lines
    there.in_flight.status.stopping = "drain"
    for each in list(there.in_flight.requests):
        there.in_flight.end(each.id)
    there.intake.plan()
    await asyncio.wait_for(feeding, 60)
    assert there.in_flight.status.lines_taken <= 256 + len(planned)
    assert there.lines == []
    await there.intake.feed(stream([unit(1)]), None)
    assert there.in_flight.status.lines_taken <= 256 + len(planned), "a stop that came first"


async def test_a_unit_that_comes_after_the_stop_is_left() -> None:
    there = parts()

    async def stops() -> AsyncIterator[Unit]:
        yield unit(1)
        there.in_flight.status.stopping = "drain"
        yield unit(2)

    await there.intake.feed(stops(), None)
    assert there.in_flight.status.lines_taken == 1
    assert there.batcher.held == 1


async def test_a_held_run_plans_nothing() -> None:
    there = parts()
    there.in_flight.status.held = True
    await there.intake.feed(stream([unit(1)]), None)
    assert there.lines == []
    assert not there.intake.starved
    assert not there.intake.done
    there.in_flight.status.held = False
    there.intake.plan()
    assert there.lines == [1]


async def test_an_input_that_never_blocks_lets_other_tasks_run() -> None:
    there = parts(slots=2000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await there.intake.feed(stream([unit(line) for line in range(250)]), None)
    assert turns >= 3
    task.cancel()


async def test_when_all_lines_were_read_nothing_waits_for_fuller_requests() -> None:
    there, end = parts(pack=9), asyncio.Event()
    feeding = asyncio.create_task(there.intake.feed(stream([unit(1), unit(2), failed(3)], end), 3))
    await steps()
    there.intake.plan()
    assert [each.lines for each in there.in_flight.requests] == [2]
    assert not there.intake.done, "the input has not ended"
    end.set()
    await asyncio.wait_for(feeding, 60)
    assert there.intake.done


async def trickle(units: asyncio.Queue[Unit | Failed]) -> AsyncIterator[Unit | Failed]:
    while True:
        yield await units.get()


@pytest.mark.parametrize("total", [None, 50])
async def test_an_input_that_stalls_holds_nothing_back(total: int | None) -> None:
    now = 1e6
    there, units = parts(pack=9, clock=lambda: now), asyncio.Queue[Unit | Failed]()
    feeding = asyncio.create_task(there.intake.feed(trickle(units), total))
    for line in (1, 2):
        units.put_nowait(unit(line))
        await steps()
        now += 1 / 32
        there.intake.plan()
        assert there.lines == [], "more may come"
    now += 1 / 32
    there.intake.plan()
    assert there.lines == [1, 2]
    feeding.cancel()


async def test_slots_are_not_idle_for_longer_than_a_second_while_the_input_trickles() -> None:
    now = 1e6
    there, units = parts(pack=99, clock=lambda: now), asyncio.Queue[Unit | Failed]()
    now += 5
    feeding = asyncio.create_task(there.intake.feed(trickle(units), None))
    sizes = []
    for line in range(70):
        units.put_nowait(unit(line))
        await steps()
        there.intake.plan()
        sizes.append([each.lines for each in there.in_flight.requests])
        now += 1 / 32
    assert sizes[32:34] == [[], [34]], "more than a second after the reading began"
    assert sizes[65:67] == [[34], [34, 33]]
    feeding.cancel()


async def test_while_the_slots_are_full_fuller_requests_are_waited_for() -> None:
    now = 1e6
    there, units = parts(pack=99, slots=1, clock=lambda: now), asyncio.Queue[Unit | Failed]()
    there.in_flight.reserve(running := packed("running", 99))
    there.in_flight.add([running])
    feeding = asyncio.create_task(there.intake.feed(trickle(units), None))
    for line in range(40):
        units.put_nowait(unit(line))
        await steps()
        there.intake.plan()
        now += 1 / 32
    assert there.lines == [99]
    feeding.cancel()


async def test_an_input_that_waits_for_the_consumer_has_not_stalled() -> None:
    now = 1e6
    there, units = parts(pack=9, clock=lambda: now), asyncio.Queue[Unit | Failed]()
    feeding = asyncio.create_task(there.intake.feed(trickle(units), None))
    units.put_nowait(unit(1))
    for line in range(2, 4099):
        units.put_nowait(failed(line))
    await wait_until_async(lambda: there.in_flight.status.failures == 4096, "as many as there is room for", 60)
    now += 0.5
    there.intake.plan()
    assert there.lines == []
    feeding.cancel()


async def test_what_is_in_flight_takes_no_more_than_96_mib() -> None:
    there = parts()
    columns = 48 * MIB - packed("x", 1).size  # two lines are exactly 96 MiB
    units = [replace(unit(line), columns_bytes=columns) for line in (1, 2, 3)]
    feeding = asyncio.create_task(there.intake.feed(stream(units), None))
    await wait_until_async(lambda: there.batcher.held, "the third to be read", 60)
    assert there.lines == [1, 2]
    [first, _] = there.in_flight.requests
    there.in_flight.end(first.id)
    there.intake.plan()
    assert there.lines == [2, 3]
    await asyncio.wait_for(feeding, 60)


async def test_packs_that_would_time_out_are_planned_again() -> None:
    there = parts(pack="auto", timeout_s=1.0)
    large, small, single = packed("l", *range(20)), packed("s", *range(30, 34)), packed("x", 40, max_tokens=500)
    for each in (large, small, single):
        there.in_flight.reserve(each)
        there.in_flight.add([each])
    assert there.intake.slow_shards() == [], "nothing is known yet"
    for size in (1, 2, 4):
        for _ in range(8):
            there.sizer.learn(small.pack_key, size, 0.0, 0.1 * size)
    slow = there.intake.slow_shards()
    assert [list(shard.requests) for shard in slow] == [["l"]]
    there.intake.plan_again(slow)
    assert there.in_flight.end("l") is None
    again = [each for each in there.in_flight.requests if each.id not in ("s", "x")]
    assert sorted(entry.line for each in again for entry in each.manifest) == list(range(20))
    assert max(each.lines for each in again) <= 4
    fixed = parts(pack=20, timeout_s=1.0)
    fixed.sizer = there.sizer
    fixed.in_flight.reserve(large)
    fixed.in_flight.add([large])
    assert fixed.intake.slow_shards() == []
