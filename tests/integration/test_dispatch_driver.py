"""The driver on a real Valkey, with real shard runners around a stub sampler."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from brimful.addresses import FleetAddress
from brimful.dispatch.driver import Driver
from brimful.dispatch.ledger import RunLedger
from brimful.dispatch.reconcile import Reconciler
from brimful.errors import FleetError
from brimful.names import Workload
from brimful.outcome import Cause, Failure
from brimful.packing.request_size import line_profile
from brimful.packing.slot_model import Limits
from brimful.packing.units import Delivered, Failed, Unit
from brimful.profile import get_profile
from brimful.request import Request
from brimful.state.broker_queues import parse_message
from brimful.state.keys import TAGS, admission_keys, weights_key
from brimful.state.redis_url import redis_client
from brimful_worker.local.server.valkey import Valkey
from support.stub_fleet import StubSampler, stub_fleet
from support.waiting import wait_until_async

ACS = get_profile("acs")
FREE = ACS.model_copy(update={"starts": None})
Item = Delivered | Failed


class Gate:
    """A sampler's answer that waits until the gate is opened."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self.open = self._opened.set

    async def __call__(self, request: Request) -> Failure | None:
        await self._opened.wait()
        return None


@pytest.fixture
def sweeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost shards are looked for after a second."""
    monkeypatch.setattr(Reconciler, "sweep_s", 1.0)


def unit(line: int, prompt: Any = None, wanted: Any = None, **fields: Any) -> Unit:
    raw = {"prompt": f"p{line}" if prompt is None else prompt, "max_tokens": 32, **fields}
    return Unit(line, f"id{line}", Request.parse(raw, line_profile(ACS)), wanted)


async def drive(driver: Driver, units: list[Unit], *, total: int | None = None) -> list[Item]:
    return [item async for batch in driver.deliveries(iter(units), total=total) for item in batch]


def rollouts(items: list[Item]) -> Counter[tuple[int, int, int, str]]:
    return Counter(
        (item.line, rollout.prompt_index, rollout.choice_index, rollout.text)
        for item in items
        if isinstance(item, Delivered)
        for rollout in item.rollouts
    )


@pytest.mark.parametrize("pack", ["off", 7, "auto"])
async def test_every_rollout_is_delivered_once_and_no_keys_are_left(valkey: Valkey, pack: Any) -> None:
    units = [unit(line, n=1 + line % 3, temperature=line % 2) for line in range(1, 120)]
    units.append(unit(120, prompt=["a", "b", "\ud800\u2028\U0001f600"], n=2))
    sampler = StubSampler()
    async with stub_fleet(valkey.url, sampler):
        driver = Driver(FleetAddress(valkey.url), "r1", FREE, pack=pack)
        items = await drive(driver, units, total=120)
    expected = Counter(
        (each.line, place, choice, f"{prompt}#{choice}")
        for each in units
        for place, prompt in enumerate(each.request.prompts)
        for choice in range(each.request.n)
    )
    assert rollouts(items) == expected
    status = driver.snapshot()
    assert (status.queued, status.rollouts, status.failures) == (0, expected.total(), 0)
    assert status.limits == Limits(FREE.slots, None, FREE.window_s)  # no worker has brought others
    assert status.requests == len(sampler.asked)
    assert (len(sampler.asked) == 120) == (pack == "off")
    async with redis_client(valkey.url) as client:
        left = [key async for key in client.scan_iter("brimful:{run:*")]
    assert [key for key in left if ":claim:" not in key] == []  # claims expire


async def test_requests_in_flight_and_lines_read_ahead_are_bounded(valkey: Valkey) -> None:
    read = 0

    async def endless() -> AsyncIterator[Unit]:
        nonlocal read
        while True:
            read += 1
            yield unit(read)

    gate = Gate()
    sampler = StubSampler(gate)
    async with stub_fleet(valkey.url, sampler):
        driver = Driver(FleetAddress(valkey.url), "r", ACS, pack="off")
        deliveries = driver.deliveries(endless())
        first = asyncio.ensure_future(anext(deliveries))
        await wait_until_async(lambda: sampler.active == 16, "all slots to be used")
        assert driver.snapshot().queued <= 16 + 2.5 * 10 + 1
        assert read < 1000
        gate.open()
        assert await first
        await deliveries.aclose()


async def test_shards_suit_workers_that_are_still_starting(valkey: Valkey) -> None:
    """Before a worker says how many tasks it runs at once, the run's first shards are on their way to it."""
    profile = FREE.model_copy(update={"slots": 64})
    driver = Driver(FleetAddress(valkey.url), "r", profile, pack="off", starting_places=8)
    deliveries = driver.deliveries(iter([unit(line) for line in range(1, 201)]))
    first = asyncio.ensure_future(anext(deliveries))
    async with redis_client(valkey.url) as client:
        message = parse_message(await wait_until_async(lambda: client.lindex("batch", -1), "the first shard"))
    assert message is not None
    assert 6 < len(message.requests) <= 12
    first.cancel()
    await driver.aclose()


async def test_lines_of_a_slow_input_are_sent_at_once(valkey: Valkey) -> None:
    gate: asyncio.Queue[Unit] = asyncio.Queue()

    async def trickle() -> AsyncIterator[Unit]:
        for _ in range(3):
            yield await gate.get()

    async with stub_fleet(valkey.url, StubSampler()):
        deliveries = Driver(FleetAddress(valkey.url), "r", ACS, pack="auto").deliveries(trickle())
        for line in (1, 2, 3):
            gate.put_nowait(unit(line))
            [item] = await anext(deliveries)
            assert item.line == line
        assert [batch async for batch in deliveries] == []


async def test_a_refused_pack_is_split_until_the_culprit_is_alone(valkey: Valkey) -> None:
    async def answer(request: Request) -> Failure | None:
        if "p13" in request.prompts:
            return Failure(Cause.BAD_REQUEST, "400: no", 400, permanent=True)
        return None

    async with stub_fleet(valkey.url, StubSampler(answer)):
        items = await drive(
            Driver(FleetAddress(valkey.url), "r", FREE, pack=50), [unit(line) for line in range(1, 51)], total=50
        )
    [failed] = [item for item in items if isinstance(item, Failed)]
    assert (failed.line, failed.wanted, failed.failure.cause) == (13, ((0, 0),), Cause.BAD_REQUEST)
    assert failed.request is not None
    assert failed.request.prompts == ["p13"]
    assert rollouts(items).total() == 49


async def test_a_line_that_fits_no_request_fails_alone(valkey: Valkey) -> None:
    async with stub_fleet(valkey.url, StubSampler()):
        items = await drive(Driver(FleetAddress(valkey.url), "r", FREE), [unit(1, max_tokens=40000), unit(2)])
    assert {item.line: isinstance(item, Failed) for item in items} == {1: True, 2: False}


@pytest.mark.usefixtures("sweeping")
async def test_a_shard_lost_with_its_worker_is_enqueued_again(valkey: Valkey) -> None:
    gate = Gate()
    sampler = StubSampler(gate)
    async with stub_fleet(valkey.url, sampler) as fleet:
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
        running = asyncio.create_task(drive(driver, [unit(line) for line in range(1, 11)]))
        await wait_until_async(lambda: sampler.active == 10, "all requests to be on the wire")
        fleet.die()
        gate.open()
        items = await running
    assert rollouts(items).total() == 10
    assert driver.snapshot().redelivered > 0


@pytest.mark.usefixtures("sweeping")
async def test_a_lost_message_is_enqueued_again(valkey: Valkey) -> None:
    async with stub_fleet(valkey.url, StubSampler()) as fleet, redis_client(valkey.url) as client:
        fleet.popping.clear()
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
        running = asyncio.create_task(drive(driver, [unit(1)]))
        await wait_until_async(lambda: client.delete("batch"), "the message to be enqueued, and deleted")
        fleet.popping.set()
        assert rollouts(await running).total() == 1


@pytest.mark.usefixtures("sweeping")
async def test_shards_are_enqueued_again_after_redis_lost_its_data(valkey: Valkey) -> None:
    gate = Gate()
    sampler = StubSampler(gate)
    async with stub_fleet(valkey.url, sampler), redis_client(valkey.url) as client:
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
        running = asyncio.create_task(drive(driver, [unit(line) for line in range(1, 6)]))
        await wait_until_async(lambda: sampler.active == 5, "all requests to be on the wire")
        await client.flushall()
        await wait_until_async(lambda: sampler.active == 0, "the workers to cancel their requests")
        gate.open()
        assert rollouts(await running).total() == 5


@pytest.mark.parametrize("cause", [Cause.KEY_REFUSED, Cause.BUDGET])
async def test_a_refused_key_or_budget_stops_the_run(valkey: Valkey, cause: Cause) -> None:
    async def answer(request: Request) -> Failure | None:
        await asyncio.sleep(0.01)
        return Failure(cause, "no more", permanent=cause is Cause.KEY_REFUSED) if request.prompts == ["p30"] else None

    sampler = StubSampler(answer, slots=4)
    async with stub_fleet(valkey.url, sampler):
        driver = Driver(FleetAddress(valkey.url), "r", FREE.model_copy(update={"slots": 4}), pack="off")
        items = await drive(driver, [unit(line) for line in range(1, 1000)])
    assert [item.failure.cause for item in items if isinstance(item, Failed)] == [cause]
    assert driver.snapshot().stopping == cause
    assert len(items) < 200


async def test_draining_delivers_what_is_on_the_wire_and_nothing_else(valkey: Valkey) -> None:
    gate = Gate()
    sampler = StubSampler(gate)
    async with stub_fleet(valkey.url, sampler):
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
        running = asyncio.create_task(drive(driver, [unit(line) for line in range(1, 1000)]))
        await wait_until_async(lambda: sampler.active == 16, "all slots to be used")
        await driver.stop(drain=True)
        assert not running.done()
        await wait_until_async(lambda: driver.snapshot().queued == 16, "the queued requests to be withdrawn")
        gate.open()
        items = await running
    assert rollouts(items).total() == 16
    assert len(sampler.asked) == 16


async def test_stopping_at_once_withdraws_everything(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.dispatch.driver.CLOSE_S", 60.0)
    sampler = StubSampler(Gate())
    async with stub_fleet(valkey.url, sampler):
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
        running = asyncio.create_task(drive(driver, [unit(line) for line in range(1, 100)]))
        await wait_until_async(lambda: sampler.active == 16, "all slots to be used")
        await driver.stop(drain=False)
        assert await running == []
        await wait_until_async(lambda: sampler.active == 0, "the workers to cancel their requests")


async def test_what_is_recorded_while_a_stop_withdraws_is_withdrawn_too(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The enqueuer's command may reach Redis after that of the stop."""
    monkeypatch.setattr("brimful.dispatch.driver.CLOSE_S", 60.0)
    driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
    deliveries = driver.deliveries(iter([unit(1, max_tokens=40000), unit(2)]))
    await anext(deliveries)  # the first line fits no request; its consumer has not come back yet
    async with redis_client(valkey.url) as client:
        ledger = RunLedger(client, "r")
        recorded = await wait_until_async(ledger.outstanding, "the second line to be recorded")
        await driver.stop(drain=False)
        await ledger.record(recorded)
        assert [batch async for batch in deliveries] == []
        assert await ledger.outstanding() == {}


@pytest.mark.parametrize(
    ("command", "ask"),
    [
        ("withdraw", lambda driver: driver.stop(drain=False)),
        ("drain", lambda driver: driver.stop(drain=True)),
        ("cancel", lambda driver: driver.cancel({1})),
    ],
)
async def test_what_others_ask_of_a_driver_ends_with_it(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch, command: str, ask: Callable[[Driver], Awaitable[None]]
) -> None:
    """Its client, used after it was closed, would open a connection that nobody closes."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    method = getattr(RunLedger, command)

    async def held(ledger: RunLedger, *arguments: Any) -> None:
        if not begun.is_set():
            begun.set()
            await go_on.wait()
        await method(ledger, *arguments)

    async def alone() -> bool:
        return len(await client.client_list()) == 1

    async with redis_client(valkey.url) as client:
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
        first = asyncio.ensure_future(anext(driver.deliveries(iter([unit(1), unit(2)]))))
        await wait_until_async(lambda: client.llen("batch"), "its requests to be sent")
        monkeypatch.setattr(RunLedger, command, held)
        asking = asyncio.ensure_future(ask(driver))
        await begun.wait()
        await driver.aclose()
        go_on.set()
        await asking
        await wait_until_async(alone, "its connections to be closed")
        await ask(driver)
        assert await alone(), "a driver that is closed asks Redis for nothing"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_an_unacknowledged_batch_stays_in_redis(valkey: Valkey) -> None:
    async with stub_fleet(valkey.url, StubSampler()), redis_client(valkey.url) as client:
        deliveries = Driver(FleetAddress(valkey.url), "r", FREE, pack="off").deliveries(iter([unit(1)]))
        await anext(deliveries)
        await deliveries.aclose()  # as if the submitter was killed here
        assert len(await RunLedger(client, "r").results("0", 10, None)) == 1
        again = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
        recovered = await again.recover()
        assert [item.line for item in recovered.delivered] == [1]
        assert [batch async for batch in again.deliveries(iter([]))] == []
        assert await client.xlen(RunLedger(client, "r").keys.results) == 0


async def test_outcomes_stay_in_redis_until_they_are_synced(valkey: Valkey) -> None:
    synced, asked = asyncio.Event(), asyncio.Event()

    async def sync() -> None:
        asked.set()
        await synced.wait()

    async with stub_fleet(valkey.url, StubSampler()), redis_client(valkey.url) as client:
        results = RunLedger(client, "r").keys.results
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off", sync=sync)
        running = asyncio.create_task(drive(driver, [unit(line) for line in range(1, 50)]))
        await asked.wait()
        await wait_until_async(lambda: driver.snapshot().rollouts == 49, "every rollout to be delivered")
        assert await client.xlen(results) == 49
        assert not running.done()
        synced.set()
        assert len(await running) == 49
        assert await client.xlen(results) == 0


async def test_the_output_is_synced_once_an_interval_and_at_the_end(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.dispatch.acknowledge.SYNC_EVERY_S", 3600.0)
    synced = 0

    async def sync() -> None:
        nonlocal synced
        synced += 1

    async with stub_fleet(valkey.url, StubSampler()), redis_client(valkey.url) as client:
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off", sync=sync)
        batches = [batch async for batch in driver.deliveries(iter([unit(line) for line in range(1, 200)]))]
        assert len(batches) > 2
        assert synced == 2
        assert await client.xlen(RunLedger(client, "r").keys.results) == 0


async def test_a_failed_sync_ends_the_deliveries_and_keeps_the_outcomes(valkey: Valkey) -> None:
    async def sync() -> None:
        raise FleetError("cannot write out.jsonl: Input/output error")

    units = [unit(line) for line in range(1, 10)]
    async with stub_fleet(valkey.url, StubSampler()), redis_client(valkey.url) as client:
        with pytest.raises(FleetError, match="Input/output error"):
            await drive(Driver(FleetAddress(valkey.url), "r", FREE, pack="off", sync=sync), units)
        assert await client.xlen(RunLedger(client, "r").keys.results) > 0


async def test_recovered_outcomes_are_synced_before_they_leave_redis(valkey: Valkey) -> None:
    async with stub_fleet(valkey.url, StubSampler()), redis_client(valkey.url) as client:
        results = RunLedger(client, "r").keys.results
        deliveries = Driver(FleetAddress(valkey.url), "r", FREE, pack="off").deliveries(iter([unit(1)]))
        await anext(deliveries)
        await deliveries.aclose()  # as if the submitter was killed here
        left: list[int] = []

        async def sync() -> None:
            left.append(await client.xlen(results))

        again = Driver(FleetAddress(valkey.url), "r", FREE, pack="off", sync=sync)
        await again.recover()
        assert await drive(again, []) == []
        assert left == [1]
        assert await client.xlen(results) == 0


async def test_a_second_submitter_takes_over_what_is_queued_and_what_runs(valkey: Valkey) -> None:
    gate = Gate()

    async def answer(request: Request) -> Failure | None:
        await gate(request)
        return Failure(Cause.BAD_REQUEST, "no", 400, permanent=True) if "p3" in request.prompts else None

    sampler = StubSampler(answer, slots=2)
    units = [unit(line, n=2) for line in range(1, 31)]
    async with stub_fleet(valkey.url, sampler) as fleet:
        first = Driver(FleetAddress(valkey.url), "r", FREE.model_copy(update={"slots": 2}), pack=5)
        deliveries = first.deliveries(iter(units))
        pending = asyncio.ensure_future(anext(deliveries))
        await wait_until_async(lambda: sampler.active == 2, "two requests to be on the wire")
        fleet.popping.clear()
        await wait_until_async(lambda: first.snapshot().queued >= 4, "others to be queued")
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await deliveries.aclose()

        second = Driver(FleetAddress(valkey.url), "r", FREE.model_copy(update={"slots": 2}), pack=5)
        recovered = await second.recover()
        assert recovered.delivered == []
        kept = {(line, choice) for line, _, choice in recovered.outstanding}
        gate.open()
        fleet.popping.set()
        rest = [
            dataclasses.replace(each, wanted=wanted)
            for each in units
            if (wanted := tuple((0, choice) for choice in (0, 1) if (each.line, choice) not in kept))
        ]
        items = await drive(second, rest)
    got = rollouts(items)
    assert set(got.values()) == {1}
    assert {line for line, *_ in got} == set(range(1, 31)) - {3}
    assert got.total() == 58
    [failed] = [item for item in items if isinstance(item, Failed)]
    assert (failed.line, failed.wanted) == (3, ((0, 0), (0, 1)))


@pytest.mark.usefixtures("sweeping")
async def test_an_outage_of_redis_loses_and_doubles_nothing(valkey: Valkey, tmp_path: Any) -> None:
    with Valkey(tmp_path / "kept", appendonly=True, options=("appendfsync always",)) as server:
        sampler = StubSampler(lambda request: asyncio.sleep(0.02), slots=4)  # type: ignore[arg-type, return-value]
        async with stub_fleet(server.url, sampler):
            driver = Driver(FleetAddress(server.url), "r", FREE, pack="off")
            running = asyncio.create_task(drive(driver, [unit(line) for line in range(1, 301)]))
            await wait_until_async(lambda: driver.snapshot().rollouts > 50, "some to be delivered")
            server.kill()
            server.start()
            items = await running
    assert set(rollouts(items).values()) == {1}
    assert rollouts(items).total() == 300


async def test_interactive_work_goes_to_its_own_queue(valkey: Valkey) -> None:
    async with redis_client(valkey.url) as client:
        driver = Driver(FleetAddress(valkey.url), "r", ACS, workload=Workload.INTERACTIVE)
        running = asyncio.create_task(drive(driver, [unit(1)]))
        await wait_until_async(lambda: client.llen("interactive"), "the message")
        assert await client.llen("batch") == 0
        await driver.stop(drain=False)
        await running


async def test_prompts_are_in_no_redis_value_but_the_message(valkey: Valkey) -> None:
    async with redis_client(valkey.url) as client:
        driver = Driver(FleetAddress(valkey.url), "r", ACS)
        running = asyncio.create_task(drive(driver, [unit(1, prompt="a secret prompt")]))
        await wait_until_async(lambda: client.llen("batch"), "the message")
        [message] = await client.lrange("batch", 0, -1)
        assert "secret" not in message  # the body is base64
        for shard in await client.zrange("brimful:{run:r}:shards", 0, -1):
            assert "secret" not in str(await client.hgetall("brimful:{run:r}:shard:" + str(shard)))
        await driver.stop(drain=False)
        await running


@pytest.mark.parametrize("stops", [False, True])
async def test_the_same_refusal_of_every_request_stops_a_run_that_asks_for_it(valkey: Valkey, stops: bool) -> None:
    refusal = Failure(Cause.BAD_REQUEST, "HTTP 404: no such model", 404, permanent=True)

    async def refuse(_: Request) -> Failure:
        return refusal

    async with stub_fleet(valkey.url, StubSampler(refuse)):
        flags = {"stop_if_refused": True} if stops else {}
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off", **flags)
        items = await drive(driver, [unit(line) for line in range(1, 31)])
    assert driver.refused == refusal
    assert driver.snapshot().stopping == ("refused" if stops else None)
    assert {item.failure for item in items if isinstance(item, Failed)} == {refusal}
    assert stops or len(items) == 30


async def test_limits_that_change_during_a_run_are_followed(valkey: Valkey) -> None:
    async with redis_client(valkey.url) as client:
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
        running = asyncio.create_task(drive(driver, [unit(1)]))
        await wait_until_async(lambda: client.llen("batch"), "its request to be sent")
        assert driver.snapshot().limits == Limits(FREE.slots, None, FREE.window_s)
        keys = admission_keys("tag")
        await client.zadd(TAGS, {"tag": 1})
        for slots in (8, 5):
            await client.hset(keys["defaults"], mapping={"slots": slots, "starts": 600, "window_ms": 60_000})
            wanted = Limits(slots, 600, 60.0)
            await wait_until_async(lambda: driver.snapshot().limits == wanted, "the new limits")  # noqa: B023
        await driver.stop(drain=False)
        assert await running == []


async def test_more_is_sent_when_limits_are_raised_though_no_outcome_comes(valkey: Valkey) -> None:
    async with redis_client(valkey.url) as client:
        defaults = admission_keys("tag")["defaults"]
        await client.zadd(TAGS, {"tag": 1})
        await client.hset(defaults, mapping={"slots": 2, "starts": 0, "window_ms": 60_000})
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
        running = asyncio.create_task(drive(driver, [unit(line) for line in range(1, 101)]))
        await wait_until_async(lambda: driver.snapshot().queued, "the first requests")
        few = driver.snapshot().queued
        assert few < 50
        await client.hset(defaults, "slots", "50")
        await wait_until_async(lambda: driver.snapshot().queued >= 50, "more requests")
        await driver.stop(drain=False)
        assert await running == []


@pytest.mark.parametrize("keep", [True, False])
async def test_what_is_queued_when_a_driver_is_closed_stays_or_is_withdrawn(valkey: Valkey, keep: bool) -> None:
    async with redis_client(valkey.url) as client:
        deliveries = Driver(FleetAddress(valkey.url), "r", FREE, pack="off", keep=keep).deliveries(iter([unit(1)]))
        first = asyncio.ensure_future(anext(deliveries))
        await wait_until_async(lambda: client.llen("batch"), "its request to be sent")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await deliveries.aclose()
        assert bool(await RunLedger(client, "r").outstanding()) is keep


async def test_a_run_s_weight_is_stated_at_intervals(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "weigh_s", 3600.0)
    async with redis_client(valkey.url) as client:
        driver = Driver(FleetAddress(valkey.url), "r", FREE, pack="off")
        running = asyncio.create_task(drive(driver, [unit(1)]))
        await wait_until_async(lambda: client.zcard(weights_key("")), "its weight")
        for _ in range(20):
            await client.ping()  # long enough to state it again
        assert (await client.info("commandstats"))["cmdstat_zremrangebyscore"]["calls"] == 1
        await driver.stop(drain=False)
        assert await running == []
