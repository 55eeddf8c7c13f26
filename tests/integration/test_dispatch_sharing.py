"""Runs on one fleet share it by their weights, on real workers, counted in the gateway's request log."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful import AsyncFleet
from brimful.errors import SettingError
from brimful.packing.units import WEIGHT, weight_of
from brimful.state.broker_queues import parse_message
from brimful.state.keys import weights_key
from brimful.state.redis_url import sync_redis_client
from brimful.state.status import read_status
from brimful.testing import Backend
from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, brimful, write_prompts
from support.fleets import Fleet, fleet
from support.gateways import GatewayProcess, gateway_process
from support.measuring import one_of_three_async
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


async def turns(it: Fleet, *runs: tuple[int, float]) -> list[int]:
    """``max_tokens`` of the starts of runs that begin one after the other: 1 for the first, 2 for the second.

    ``runs``: their lines, 24 at most, and weights. Nothing of them starts before all their requests wait for slots, so
    that their order depends on no machine's speed: the gateway answers none of those that hold the slots until then.
    """
    it.gateway.reset()
    it.gateway.set_options(slots=1, latency_s=600)  # the first holder gets no answer, the others wait behind it
    holders = it.sample_many(SLOTS)
    wait_until(lambda: it.gateway.ledger()["arrivals"] == SLOTS, "all slots to be held")

    def waiting() -> int:
        with sync_redis_client(it.local.redis_url) as client:
            return sum(worker.batch for worker in read_status(client, it.local.settings.key_tag).workers)

    async with AsyncFleet(it.local.redis_url) as client:
        tasks, enqueued = [], 0
        for place, (lines, weight) in enumerate(runs):
            tasks.append(asyncio.create_task(sample(client, place + 1, lines, weight)))
            enqueued += lines
            await wait_until_async(lambda: waiting() == enqueued, "its requests to wait for slots")  # noqa: B023
        it.gateway.set_options(slots=SLOTS, latency_s=0.05)
        await asyncio.gather(*tasks)
    it.app.control.revoke([holder.id for holder in holders], terminate=True)
    wait_until(lambda: it.gateway.ledger()["active"] == 0, "the slots to be free")
    assert it.gateway.ledger()["peak_active"] <= SLOTS
    return starts(it.gateway)[SLOTS:]


@pytest.fixture
def one_worker(shared: Fleet) -> Iterator[Fleet]:
    """The fleet while one worker takes all messages: runs take turns within a process."""
    _, other = sorted(shared.app.control.inspect(timeout=60, limit=2).ping())
    shared.app.control.cancel_consumer("batch", destination=[other], reply=True, timeout=60)
    yield shared
    shared.app.control.add_consumer("batch", destination=[other], reply=True, timeout=60)


async def test_a_run_takes_turns_with_one_whose_requests_are_in_front(one_worker: Fleet) -> None:
    found = await turns(one_worker, (20, 1), (20, 1))
    assert len(found) == 40
    # 10 if it were exact. A grant changes hands only where a run is ahead by a few; 0 if the first went first.
    assert 6 <= found[:20].count(2) <= 12


async def test_turns_go_by_weight(one_worker: Fleet) -> None:
    found = await turns(one_worker, (20, 1), (24, 3))
    assert len(found) == 44
    # About 19, since the first is ahead by a few from the beginning; 13 if both weighed the same.
    assert 16 <= found[:30].count(2) <= 22


async def test_two_workers_together_keep_weights_of_three_to_one(shared: Fleet) -> None:
    """Each worker by itself takes turns; that what the runs keep enqueued follows their weights takes some time."""

    async def measured() -> tuple[float, float]:
        """The heavy run's share of 300 starts, and of the slots' time what both used."""
        shared.gateway.reset()
        async with AsyncFleet(shared.local.redis_url) as client:
            runs = [asyncio.create_task(sample(client, 3, weight=3)), asyncio.create_task(sample(client, 1))]
            # The first requests are enqueued before the runs know of each other.
            await wait_until_async(lambda: shared.gateway.ledger()["arrivals"] > 500, "500 requests", timeout=120)
            ledger = shared.gateway.ledger()
            for run in runs:
                run.cancel()
            await asyncio.wait(runs)
        assert ledger["peak_active"] <= SLOTS
        held_s = ledger["last_arrival_s"] - ledger["first_arrival_s"]
        share = starts(shared.gateway)[200:500].count(3) / 300
        return share, ledger["slot_seconds"] / (SLOTS * held_s)

    shared.gateway.set_options(latency_s=0.3)  # so that the slots are what binds, also on a slow machine
    await one_of_three_async(measured, lambda found: 0.70 <= found[0] <= 0.80 and found[1] >= 0.7)


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
