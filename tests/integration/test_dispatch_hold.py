"""A held run sends nothing new, gives back what waits, and goes on where it was: real Valkey, real shard runners."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from brimful.addresses import FleetAddress
from brimful.dispatch.driver import Driver
from brimful.outcome import Failure
from brimful.packing.request_size import line_profile
from brimful.packing.units import Delivered, Failed, Unit
from brimful.profile import get_profile
from brimful.request import Request
from brimful.state.keys import RUNS, entry_key, weights_key
from brimful.state.redis_url import redis_client, sync_redis_client
from brimful.state.runs.entry import Asked, RunState
from brimful.state.runs.heartbeat import Heartbeat, end_entry
from brimful.state.runs.registry import ask, read_entries, read_entry
from brimful_worker.local.server.valkey import Valkey
from support.stub_fleet import StubSampler, stub_fleet
from support.waiting import wait_until_async

ACS = get_profile("acs")
FREE = ACS.model_copy(update={"starts": None})
LINES = 60


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "weigh_s", 0.1)


class Gates:
    """Each request waits for a gate of its own."""

    def __init__(self) -> None:
        self.closed: list[asyncio.Event] = []
        self.open = False

    async def __call__(self, request: Request) -> Failure | None:
        if not self.open:
            self.closed.append(gate := asyncio.Event())
            await gate.wait()
        return None

    def open_all(self) -> None:
        self.open = True
        for gate in self.closed:
            gate.set()

    def let_end(self) -> None:
        """What waits now ends; what comes later waits."""
        for gate in self.closed:
            gate.set()
        self.closed = []


def unit(line: int) -> Unit:
    return Unit(line, f"id{line}", Request.parse({"prompt": f"p{line}", "max_tokens": 8}, line_profile(ACS)))


async def drive(driver: Driver, lines: int = LINES) -> list[Delivered | Failed]:
    units = iter([unit(line) for line in range(1, lines + 1)])
    return [item async for batch in driver.deliveries(units, total=lines) for item in batch]


async def test_a_held_run_gives_everything_back_and_goes_on_without_sampling_twice(valkey: Valkey) -> None:
    gates = Gates()
    sampler = StubSampler(gates, slots=4)
    async with stub_fleet(valkey.url, sampler), redis_client(valkey.url) as client:
        driver = Driver(FleetAddress(valkey.url), "r", FREE.model_copy(update={"slots": 4}), pack="off")
        running = asyncio.create_task(drive(driver))
        await wait_until_async(lambda: sampler.active == 4, "all slots to be used", 60)
        await wait_until_async(lambda: client.zcard(weights_key("")), "the run's weight", 60)
        driver.hold(True)
        await wait_until_async(lambda: driver.snapshot().queued == 4, "what waits to be taken back", 60)
        gates.let_end()
        await wait_until_async(lambda: driver.snapshot().queued == 0, "what was on the wire to end", 60)
        assert (sampler.active, len(sampler.asked)) == (0, 4)
        await wait_until_async(lambda: _none(client.zcard(weights_key(""))), "its weight to be withdrawn", 60)
        assert not await client.keys("brimful:{run:r}:shard:*"), "nothing waits for a worker"
        assert driver.snapshot().held
        assert not running.done()
        driver.hold(False)
        gates.open_all()
        items = await running
    assert Counter(item.line for item in items if isinstance(item, Delivered)) == Counter(range(1, LINES + 1))
    assert set(sampler.sampled.values()) == {1}
    assert not driver.snapshot().held


async def _none(count: object) -> bool:
    return not await count  # type: ignore[misc]


async def test_of_hold_and_resume_in_a_row_the_last_one_counts(valkey: Valkey) -> None:
    gates = Gates()
    sampler = StubSampler(gates, slots=4)
    async with stub_fleet(valkey.url, sampler):
        driver = Driver(FleetAddress(valkey.url), "r", FREE.model_copy(update={"slots": 4}), pack="off")
        running = asyncio.create_task(drive(driver))
        await wait_until_async(lambda: sampler.active == 4, "all slots to be used", 60)
        for held in (True, False, True, True, False):
            driver.hold(held)
            await asyncio.sleep(0)
        gates.open_all()
        items = await running
    assert Counter(item.line for item in items) == Counter(range(1, LINES + 1))
    assert set(sampler.sampled.values()) == {1}


async def test_a_held_run_stops_and_its_next_submitter_is_not_held(valkey: Valkey) -> None:
    gates = Gates()
    sampler = StubSampler(gates, slots=4)
    profile = FREE.model_copy(update={"slots": 4})
    async with stub_fleet(valkey.url, sampler):
        driver = Driver(FleetAddress(valkey.url), "r", profile, pack="off")
        running = asyncio.create_task(drive(driver))
        await wait_until_async(lambda: sampler.active == 4, "all slots to be used", 60)
        driver.hold(True)
        await wait_until_async(lambda: driver.snapshot().queued == 4, "what waits to be taken back", 60)
        await driver.stop(drain=True)
        gates.open_all()
        done = {item.line for item in await running}
        assert len(done) == 4
        again = Driver(FleetAddress(valkey.url), "r", profile, pack="off")
        await again.recover()
        units = iter([unit(line) for line in range(1, LINES + 1) if line not in done])
        left = [item.line async for batch in again.deliveries(units) for item in batch]
    assert sorted([*left, *done]) == list(range(1, LINES + 1))


async def test_an_entry_is_written_while_the_run_lasts_and_says_what_is_asked(valkey: Valkey) -> None:
    gates = Gates()
    heard: list[tuple[Asked, str]] = []
    state = RunState.RUNNING

    def obey(asked: Asked, by: str) -> None:
        nonlocal state
        heard.append((asked, by))
        state = RunState.HELD if asked is Asked.HOLD else RunState.RUNNING
        driver.hold(asked is Asked.HOLD)

    beat = Heartbeat(lambda: {"state": state, "done": 7, "user": "ann", "host": "lab"}, obey)
    async with stub_fleet(valkey.url, StubSampler(gates, slots=4)), redis_client(valkey.url) as client:
        await client.hset(entry_key("f.r"), mapping={"ask": "cancel", "ended": "1", "exit_code": "130"})  # a try before
        driver = Driver(FleetAddress(valkey.url, "f"), "r", FREE, pack="off", heartbeat=beat)
        running = asyncio.create_task(drive(driver, 4))
        with sync_redis_client(valkey.url) as blocking:

            def is_now(wanted: RunState) -> bool:
                entry = read_entry(blocking, "f.r")
                return entry is not None and entry.live and entry.state == wanted

            await wait_until_async(lambda: is_now(RunState.RUNNING), "the entry", 60)
            (entry,) = read_entries(blocking, live=True)
            assert (entry.run, entry.done, entry.who, entry.live) == ("f.r", 7, "ann@lab", True)
            assert (entry.ended, entry.exit_code) == (None, None), "what an earlier try wrote is gone"
            ask(blocking, "f.r", Asked.HOLD, "bea@desk")
            await wait_until_async(lambda: is_now(RunState.HELD), "the run to be held", 60)
            blocking.flushdb()  # Redis loses its memory
            await wait_until_async(lambda: is_now(RunState.HELD), "the entry to be written again", 60)
            await wait_until_async(lambda: blocking.hget(entry_key("f.r"), "ask") == "hold", "the hold to be kept", 60)
            ask(blocking, "f.r", Asked.NOTHING, "bea@desk")
            await wait_until_async(lambda: is_now(RunState.RUNNING), "the run to go on", 60)
            assert heard == [(Asked.HOLD, "bea@desk"), (Asked.NOTHING, "bea@desk")]
            await driver.stop(drain=False)
            assert await running == []
            await end_entry(client, "f.r", {"state": "finished", "ended": 1.0}, keep_s=50)
            ended = read_entry(blocking, "f.r")
            assert ended is not None
            assert (ended.state_now, ended.live, ended.ask, ended.done) == ("finished", False, "", 7)
            assert 0 < blocking.ttl(entry_key("f.r")) <= 50
            assert blocking.zscore(RUNS, "f.r") is not None


async def test_a_batch_that_is_tried_again_is_still_held(valkey: Valkey) -> None:
    heard: list[tuple[Asked, str]] = []

    def obey(asked: Asked, by: str) -> None:
        heard.append((asked, by))
        driver.hold(asked is Asked.HOLD)

    beat = Heartbeat(lambda: {"batch": "batch_1"}, obey, keep_ask=True)
    sampler = StubSampler(Gates())
    async with stub_fleet(valkey.url, sampler), redis_client(valkey.url) as client:
        before = {"ask": "hold", "asked_by": "bea@desk", "ended": "1", "exit_code": "1", "said": "1"}
        await client.hset(entry_key("r"), mapping=before)
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off", heartbeat=beat)
        running = asyncio.create_task(drive(driver, 4))
        await wait_until_async(lambda: heard, "what was asked of the try before", 60)
        assert heard == [(Asked.HOLD, "bea@desk")]
        assert await client.hmget(entry_key("r"), "ended", "exit_code") == [None, None]
        await wait_until_async(lambda: driver.snapshot().lines_taken == 4, "the input to be read", 60)
        assert driver.snapshot().queued == 0, "nothing is sent before the driver knows that it is held"
        await driver.stop(drain=False)
        await running
