"""Runs on one fleet share it by their weights, on real workers, counted in the gateway's request log."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful import AsyncFleet
from brimful.errors import SettingError
from brimful.packing.units import WEIGHT, weight_of
from brimful.state.broker_queues import parse_message
from brimful.state.keys import weights_key
from brimful.state.redis_url import redis_client, sync_redis_client
from brimful.testing import Backend
from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, brimful, write_prompts
from support.fleets import Fleet, fleet
from support.gateways import GatewayProcess, gateway_process
from support.waiting import wait_until, wait_until_async

SLOTS = 16


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two workers and 16 slots, at a gateway that takes 0.1 s. Its log tells the runs apart by ``max_tokens``."""
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


async def enqueued(redis_url: str, runs: int) -> bool:
    async with redis_client(redis_url) as client:
        return len([key async for key in client.scan_iter("brimful:{run:*}:shards")]) == runs


async def test_a_small_run_beside_a_long_one_takes_about_twice_as_long(shared: Fleet) -> None:
    shared.gateway.reset()
    shared.gateway.set_options(latency_s=0.3)  # so that the slots are what binds, also on a slow machine
    async with AsyncFleet(shared.local.redis_url) as client:
        long = asyncio.create_task(sample(client, 1))
        await wait_until_async(lambda: len(starts(shared.gateway)) > 200, "the long run's full speed")
        small = asyncio.create_task(sample(client, 2, lines=120))
        await wait_until_async(lambda: enqueued(shared.local.redis_url, runs=2), "the small run's requests")
        first = len(starts(shared.gateway))
        await small
        found = starts(shared.gateway)
        long.cancel()
        await asyncio.wait([long])
    last = len(found) - found[::-1].index(2)
    meanwhile = Counter(found[first:last])
    assert 60 <= meanwhile[2] <= 120
    # As many as its own if it were exact; three times as many if what the long run had enqueued went first.
    assert 0.7 <= meanwhile[1] / meanwhile[2] <= 1.5
    assert shared.gateway.ledger()["peak_active"] <= SLOTS


async def test_weights_of_three_to_one(shared: Fleet) -> None:
    shared.gateway.reset()
    shared.gateway.set_options(latency_s=0.3)  # so that the slots are what binds, also on a slow machine
    async with AsyncFleet(shared.local.redis_url) as client:
        runs = [asyncio.create_task(sample(client, 3, weight=3)), asyncio.create_task(sample(client, 1))]
        # The first requests are enqueued before the runs know of each other.
        await wait_until_async(lambda: len(starts(shared.gateway)) > 500, "500 requests", timeout=120)
        ledger = shared.gateway.ledger()
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
    found = Counter(starts(shared.gateway)[200:500])
    held_s = ledger["last_arrival_s"] - ledger["first_arrival_s"]
    assert 0.70 <= found[3] / 300 <= 0.80
    assert ledger["peak_active"] <= SLOTS
    assert ledger["slot_seconds"] >= 0.7 * SLOTS * held_s  # as full as with one run


def test_the_command_states_its_run_s_weight(valkey: Valkey, tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    arguments = ("run", source, "-o", out, "--max-tokens", "4", "--weight")
    refused = brimful(*arguments, "0", BRIMFUL_REDIS_URL=valkey.url)
    assert refused.returncode == 2
    assert "--weight: must be at least 0.01" in refused.stderr
    with sync_redis_client(valkey.url) as client, Running(*arguments, "2.5", BRIMFUL_REDIS_URL=valkey.url) as run:
        wait_until(lambda: client.llen("batch"), "its shard in the queue", timeout=60)
        message = parse_message(client.lindex("batch", 0))
        assert message is not None
        assert {request[WEIGHT] for request in message.requests} == {2.5}
        wait_until(lambda: client.zcard(weights_key("")), "its weight to be stated")
        assert client.zrange(weights_key(""), 0, -1) == [f"2.5 {message.run}"]
        run.interrupt()
        assert client.zcard(weights_key("")) == 0


async def test_weights_are_checked_and_a_message_s_is_tolerated() -> None:
    with Backend():
        async with AsyncFleet() as client:
            with pytest.raises(SettingError, match=r"weight: 0 is not a number from 0\.01 to 100"):
                client.map(["a"], weight=0)
    assert [weight_of({WEIGHT: raw}) for raw in (3, 0.5, None, "3", True, -1, 1e9, [])] == [3, 0.5, 1, 1, 1, 1, 1, 1]
    assert weight_of({}) == 1
