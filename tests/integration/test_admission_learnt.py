"""Limits that are learnt from refusals: the script's learners in simulated time, and a fleet on a real Valkey."""

from __future__ import annotations

import asyncio
import itertools
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import redis

from brimful.state.status import read_status, set_limits
from brimful_worker.admission import Admission, Refused
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.local.server.valkey import Valkey
from support.admissions import TAG, admissions, hold, marked_clean
from support.waiting import wait_until_async

PARTS = resources.files("brimful_worker.admission").joinpath("lua/parts")
SIMULATION = Path(__file__).parents[1] / "support/learnt_simulation.lua"


class Simulated:
    """Seconds of a simulated fleet that always has more to send. One script: it may take a busy machine a while."""

    def __init__(self, url: str, **setup: Any) -> None:
        usual = {"seconds": 120, "given": 16, "latency_ms": 500, "pause_ms": 0, "noise": 0, "spread": 0.2}
        self.setup = {**usual, "waiters": 0, "knee": 0, "grows_at": 0, **setup}
        script = SIMULATION.read_text()
        for part in ("learnt.lua", "learnt_slots.lua"):
            script = script.replace(f"--#include {part}", PARTS.joinpath(part).read_text("utf-8"))
        with redis.Redis.from_url(url, socket_timeout=None) as client:
            seconds: Any = client.eval(script, 0, json.dumps(self.setup))
        self.seconds: list[list[int]] = json.loads(seconds)

    def share(self, start: int, end: int, slots: int) -> float:
        """Of what so many slots allow between two seconds."""
        answered = sum(second[0] for second in self.seconds[start:end])
        return answered * self.setup["latency_ms"] / 1000 / slots / (end - start)

    def refused(self, start: int, end: int) -> int:
        return sum(second[1] for second in self.seconds[start:end])

    def slots(self, second: int) -> int:
        return self.seconds[second][2]


def half(*axes: list[Any]) -> list[Any]:
    """All combinations; every second one is left to ``make compat``, so that each value meets others in both."""
    found = []
    for places in itertools.product(*map(range, map(len, axes))):
        left = [pytest.mark.compat] if sum(places) % 2 else []
        found.append(pytest.param(*(axis[place] for axis, place in zip(axes, places, strict=True)), marks=left))
    return found


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    return marked_clean(valkey)


@pytest.mark.parametrize(("true", "latency_ms", "pause_ms"), half([1, 2, 8, 15], [100, 500, 5000], [0, 1000]))
def test_slots_that_the_key_does_not_have_are_found_and_kept(
    server: Valkey, true: int, latency_ms: int, pause_ms: int
) -> None:
    seen = Simulated(server.url, limits=[[0, true]], latency_ms=latency_ms, pause_ms=pause_ms, seconds=150)
    assert seen.share(30, 150, true) >= 0.9
    assert max(seen.refused(start, start + 60) for start in range(30, 90)) <= 2
    assert seen.slots(149) in (true, true + 1)


def test_right_slots_are_left_alone(server: Valkey) -> None:
    seen = Simulated(server.url, limits=[[0, 16]])
    assert (seen.refused(0, 120), seen.slots(119)) == (0, 16)
    assert seen.share(1, 120, 16) >= 0.98


@pytest.mark.parametrize("pause_ms", [0, 1000])
def test_slots_that_change_are_followed(server: Valkey, pause_ms: int) -> None:
    limits = [[0, 16], [60, 8], [150, 32]]
    seen = Simulated(server.url, given=32, limits=limits, pause_ms=pause_ms, seconds=240)
    for start, slots in ((30, 16), (90, 8), (182, 32)):
        assert seen.share(start, start + 30, slots) >= 0.9
    assert seen.slots(239) == 32


def test_a_few_random_refusals_cost_little(server: Valkey) -> None:
    assert Simulated(server.url, limits=[[0, 16]], noise=0.01).share(10, 120, 16) >= 0.9
    assert Simulated(server.url, limits=[[0, 16]], noise=0.05).share(10, 120, 16) >= 0.4


@pytest.mark.parametrize(("true", "pause_ms", "spread"), half([1, 8, 64], [0, 1000], [0.0, 0.8]))
def test_unknown_slots_are_found(server: Valkey, true: int, pause_ms: int, spread: float) -> None:
    seen = Simulated(server.url, given=0, limits=[[0, true]], pause_ms=pause_ms, spread=spread, seconds=150)
    assert seen.share(30, 150, true) >= 0.9
    assert max(seen.refused(start, start + 60) for start in range(30, 90)) <= 2


def test_unknown_slots_that_change_are_followed(server: Valkey) -> None:
    seen = Simulated(server.url, given=0, limits=[[0, 16], [60, 8], [120, 32]], seconds=190)
    for start, slots in ((30, 16), (90, 8), (150, 32)):
        assert seen.share(start, start + 30, slots) >= 0.9
    assert seen.slots(189) in (32, 33)


@pytest.mark.parametrize(("true", "latency_ms"), half([4, 8, 32], [500, 2000]))
def test_a_queue_at_the_provider_is_not_filled(server: Valkey, true: int, latency_ms: int) -> None:
    seen = Simulated(server.url, given=0, limits=[[0, true]], waiters=1000, latency_ms=latency_ms)
    assert seen.share(30, 120, true) >= 0.9
    assert seen.refused(0, 120) == 0
    assert seen.slots(119) <= 3 * true


def test_larger_requests_that_take_longer_are_no_queue(server: Valkey) -> None:
    small = Simulated(server.url, given=0, limits=[[0, 64]])
    large = Simulated(server.url, given=0, limits=[[0, 64]], grows_at=3)
    assert large.slots(40) >= 0.9 * small.slots(40) >= 50


def test_slots_grow_as_long_as_that_pays(server: Valkey) -> None:
    assert Simulated(server.url, given=0, limits=[[0, 300]], knee=200, seconds=40).slots(39) >= 200


class Key:
    """A key with so many slots, as the requests of this process see it."""

    def __init__(self, slots: int, latency_s: float = 0.1) -> None:
        self.slots, self.latency_s = slots, latency_s
        self.active = self.answered = self.refused = 0

    async def ask(self, admission: Admission) -> None:
        async with admission.slot() as lease:
            lease.sent()
            if self.active >= self.slots:
                self.refused += 1
                lease.report(ok=None, refused=Refused.SLOTS)
                return
            self.active += 1
            try:
                await asyncio.sleep(self.latency_s)
            finally:
                self.active -= 1
            self.answered += 1
            lease.report(ok=True, cooldown_s=0.005)

    async def keep_asking(self, admission: Admission) -> None:
        while True:
            await self.ask(admission)


async def test_a_fleet_uses_the_slots_that_the_key_has(
    valkey: Valkey, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    key = Key(8)
    async with admissions(valkey.url, 2, slots=16, starts=None) as both:
        asking = [asyncio.create_task(key.keep_asking(both[i % 2])) for i in range(40)]
        try:
            began = boot_time()
            await wait_until_async(lambda: key.answered > 200, "200 are answered")
            assert key.refused <= 11 + (boot_time() - began) / 2  # 8 at first; then one is tried each few seconds
            assert read_status(client, TAG).slots == 16

            def settled() -> bool:
                status = read_status(client, TAG)
                return status.learnt["slots"].limit in (8, 9) and status.slots_used <= 9

            await wait_until_async(settled, "as many slots in use as the key has")
            await wait_until_async(lambda: "the provider allows" in caplog.text, "it is logged")
            key.slots = 16
            await wait_until_async(lambda: "slots" not in read_status(client, TAG).learnt, "all are used again", 60)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    assert caplog.text.count("the provider allows") == 1


async def test_a_fleet_without_a_number_finds_how_many_slots_the_key_has(valkey: Valkey, client: redis.Redis) -> None:
    key = Key(24)
    async with admissions(valkey.url, 2, slots=16, slots_auto=True, starts=None) as both:
        asking = [asyncio.create_task(key.keep_asking(both[i % 2])) for i in range(80)]
        try:
            await wait_until_async(lambda: key.active == 24, "all its slots are used")
            await wait_until_async(lambda: key.refused > 0, "one more was tried")
            await wait_until_async(lambda: read_status(client, TAG).slots in (23, 24, 25), "their number is found")
            set_limits(client, TAG, slots=8, slots_auto=0)
            await wait_until_async(lambda: key.active <= 8, "a number that is set counts")
            assert read_status(client, TAG).learnt == {}
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


async def test_a_request_from_before_a_number_was_set_does_not_lower_it(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, slots=16, starts=None, slow_start_s=0) as (one,):
        early = [await hold(one) for _ in range(10)]
        set_limits(client, TAG, slots=8)
        await wait_until_async(lambda: one.slots == 8, "the number is in force")
        for holding in early[:6]:
            await holding.end(ok=None, refused=Refused.SLOTS, cooldown_s=0)
        late = await hold(one)
        assert read_status(client, TAG).learnt == {}
        await late.end(ok=None, refused=Refused.SLOTS, cooldown_s=0)
        await wait_until_async(lambda: "slots" in read_status(client, TAG).learnt, "a later one lowers it")
        for holding in early[6:]:
            await holding.end()


async def test_all_processes_use_one_number(valkey: Valkey, client: redis.Redis) -> None:
    """The idle one too: it is sent to all when it changes."""
    key = Key(8)
    async with admissions(valkey.url, 3, slots=16, starts=None) as (one, two, idle):
        asking = [asyncio.create_task(key.keep_asking((one, two)[i % 2])) for i in range(32)]
        numbers: set[tuple[int, ...]] = set()
        differed = 0

        def same() -> bool:
            nonlocal differed
            believed = tuple(process.slots for process in (one, two, idle))
            numbers.add(believed)
            differed = 0 if len(set(believed)) == 1 else differed + 1
            assert differed < 50, believed  # looks, 20 ms apart: a busy machine has its processes wait as well
            return key.answered > 400

        try:
            await wait_until_async(same, "400 are answered")
            assert (8, 8, 8) in numbers
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
