"""Limits that are learnt from refusals: the script's learners in simulated time, and a fleet on a real Valkey."""

from __future__ import annotations

import asyncio
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import redis

from brimful.state.status import read_status
from brimful_worker.admission import Admission, Refused
from brimful_worker.local.server.valkey import Valkey
from support.admissions import TAG, admissions, marked_clean
from support.waiting import wait_until_async

PART = resources.files("brimful_worker.admission").joinpath("lua/parts/learnt.lua")
SIMULATION = Path(__file__).parents[1] / "support/learnt_simulation.lua"


class Simulated:
    """Seconds of a simulated fleet that always has more to send."""

    def __init__(self, client: redis.Redis, **setup: Any) -> None:
        self.setup = {"seconds": 120, "given": 16, "latency_ms": 500, "pause_ms": 0, "noise": 0, "spread": 0.2, **setup}
        script = SIMULATION.read_text().replace("--#include learnt.lua", PART.read_text("utf-8"))
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


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    return marked_clean(valkey)


@pytest.mark.parametrize("true", [1, 2, 8, 15])
@pytest.mark.parametrize("latency_ms", [100, 500, 5000])
@pytest.mark.parametrize("pause_ms", [0, 1000])
def test_slots_that_the_key_does_not_have_are_found_and_kept(
    client: redis.Redis, true: int, latency_ms: int, pause_ms: int
) -> None:
    seen = Simulated(client, limits=[[0, true]], latency_ms=latency_ms, pause_ms=pause_ms, seconds=150)
    assert seen.share(30, 150, true) >= 0.9
    assert max(seen.refused(start, start + 60) for start in range(30, 90)) <= 2
    assert seen.slots(149) in (true, true + 1)


def test_right_slots_are_left_alone(client: redis.Redis) -> None:
    seen = Simulated(client, limits=[[0, 16]])
    assert (seen.refused(0, 120), seen.slots(119)) == (0, 16)
    assert seen.share(1, 120, 16) >= 0.98


@pytest.mark.parametrize("pause_ms", [0, 1000])
def test_slots_that_change_are_followed(client: redis.Redis, pause_ms: int) -> None:
    limits = [[0, 16], [60, 8], [150, 32]]
    seen = Simulated(client, given=32, limits=limits, pause_ms=pause_ms, seconds=240)
    for start, slots in ((30, 16), (90, 8), (182, 32)):
        assert seen.share(start, start + 30, slots) >= 0.9
    assert seen.slots(239) == 32


def test_a_few_random_refusals_cost_little(client: redis.Redis) -> None:
    assert Simulated(client, limits=[[0, 16]], noise=0.01).share(10, 120, 16) >= 0.9
    assert Simulated(client, limits=[[0, 16]], noise=0.05).share(10, 120, 16) >= 0.6


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
            await wait_until_async(lambda: key.answered > 200, "200 are answered")
            assert key.refused <= 12  # 8 at first; then one that is tried each few seconds
            status = read_status(client, TAG)
            assert status.slots == 16
            assert status.learnt["slots"].limit in (8, 9)
            assert status.slots_used <= 9
            await wait_until_async(lambda: "the key takes" in caplog.text, "it is logged")
            key.slots = 16
            await wait_until_async(lambda: "slots" not in read_status(client, TAG).learnt, "all are used again", 40)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    assert caplog.text.count("the key takes") == 1
