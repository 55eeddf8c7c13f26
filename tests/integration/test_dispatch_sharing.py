"""Runs on one fleet share it by their weights, on real workers, counted in the gateway's request log."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from brimful import AsyncFleet
from brimful.errors import SettingError
from brimful.packing.units import WEIGHT, weight_of
from brimful.testing import Backend
from support.fleets import Fleet, fleet
from support.gateways import GatewayProcess, gateway_process
from support.waiting import wait_until_async

SLOTS = 8


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two workers and 8 slots, at a gateway that takes 0.1 s; the runs are told apart by their ``max_tokens``."""
    flags = ("--latency", "0.1", "--per-token", "0", "--slots", str(SLOTS), "--starts", "0")
    with pytest.MonkeyPatch.context() as patch, gateway_process(*flags) as gateway:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with fleet(patch, gateway, workers=2, slots=SLOTS, starts=0) as running:
            yield running


def starts(gateway: GatewayProcess) -> list[int]:
    """``max_tokens`` of each request so far, in the order of their starts."""
    return [arrival["max_tokens"] for arrival in gateway.ledger(arrivals=True)["arrivals_list"]]


async def sample(client: AsyncFleet, tokens: int, lines: int | None = None, weight: float | None = None) -> None:
    """A run of its own; without ``lines`` it has no end."""
    places = itertools.count() if lines is None else range(lines)
    prompts = (f"{tokens}-{place}" for place in places)
    async for one in client.as_completed(prompts, max_tokens=tokens, pack="off", weight=weight):
        one.check()


async def test_a_small_run_beside_a_long_one_takes_about_twice_as_long(shared: Fleet) -> None:
    shared.gateway.reset()
    async with AsyncFleet(shared.local.redis_url) as client:
        long = asyncio.create_task(sample(client, 1))
        await wait_until_async(lambda: len(starts(shared.gateway)) > 250, "the long run's full speed")
        await sample(client, 2, lines=200)
        found = starts(shared.gateway)
        long.cancel()
        await asyncio.wait([long])
    first, last = found.index(2), len(found) - found[::-1].index(2)
    meanwhile = Counter(found[first:last])
    assert meanwhile[2] == 200
    assert 150 <= meanwhile[1] <= 300  # of 200 if it were exact; 400 wait in front of it in one line
    assert shared.gateway.ledger()["peak_active"] <= SLOTS


async def test_weights_of_three_to_one(shared: Fleet) -> None:
    shared.gateway.reset()
    async with AsyncFleet(shared.local.redis_url) as client:
        runs = [asyncio.create_task(sample(client, 3, weight=3)), asyncio.create_task(sample(client, 1))]
        # The first requests are enqueued before the runs know of each other.
        await wait_until_async(lambda: len(starts(shared.gateway)) > 900, "900 requests", timeout=120)
        ledger = shared.gateway.ledger()
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
    found = Counter(starts(shared.gateway)[300:900])
    assert 0.70 <= found[3] / 600 <= 0.80
    assert ledger["peak_active"] <= SLOTS
    held_s = ledger["last_arrival_s"] - ledger["first_arrival_s"]
    assert ledger["slot_seconds"] >= 0.7 * SLOTS * held_s  # as full as with one run


async def test_weights_are_checked_and_a_message_s_is_tolerated() -> None:
    with Backend():
        async with AsyncFleet() as client:
            with pytest.raises(SettingError, match=r"weight: 0 is not a number from 0\.01 to 100"):
                client.map(["a"], weight=0)
    assert [weight_of({WEIGHT: raw}) for raw in (3, 0.5, None, "3", True, -1, 1e9, [])] == [3, 0.5, 1, 1, 1, 1, 1, 1]
    assert weight_of({}) == 1
