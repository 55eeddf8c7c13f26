"""Groups on real shard runners, and on real workers against the mock gateway: what is not needed is not sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from brimful import AsyncFleet
from brimful.outcome import Cause
from brimful.request import Request
from brimful.state.redis_url import redis_client
from brimful_worker.local.server.valkey import Valkey
from support.fleets import Fleet, shared_fleet
from support.stub_fleet import StubSampler, stub_fleet
from support.waiting import wait_until_async

PROMPTS = [f"p{place}" for place in range(8)]


class Hanging(StubSampler):
    """Samples with these seeds never end."""

    def __init__(self, *seeds: int, slots: int = 16) -> None:
        super().__init__(self._hang, slots)
        self.seeds = seeds

    async def _hang(self, request: Request) -> None:
        if request.fields.get("seed") in self.seeds:
            await asyncio.Event().wait()


async def left(url: str) -> list[str]:
    async with redis_client(url) as client:
        return [key async for key in client.scan_iter("brimful:{run:*")]


async def test_the_first_samples_make_the_group_and_the_stragglers_end(valkey: Valkey) -> None:
    sampler = Hanging(1, 4, slots=100)
    async with stub_fleet(valkey.url, sampler), AsyncFleet(valkey.url) as fleet:
        async with fleet.group(PROMPTS, n=3, oversample=2, seed=0, max_tokens=4) as groups, asyncio.timeout(60):
            found = [group async for group in groups]
        await wait_until_async(lambda: sampler.active == 0, "the stragglers to be cancelled")
        assert sorted(group.index for group in found) == list(range(8))
        for group in found:
            assert [sample.choice_index for sample in group.samples] == [0, 2, 3]
            assert group.full
        assert len(sampler.asked) <= 8 * 5
        await wait_until_async(lambda: _nothing(valkey.url), "the ledger to be empty")


async def _nothing(url: str) -> bool:
    return not [key for key in await left(url) if not key.endswith(":closed")]


async def test_what_over_sampling_does_not_need_any_more_is_never_sent(valkey: Valkey) -> None:
    sampler = StubSampler(slots=2)
    many = [f"p{place}" for place in range(60)]
    async with (
        stub_fleet(valkey.url, sampler),
        AsyncFleet(valkey.url) as fleet,
        fleet.group(many, n=1, oversample=9, max_tokens=4) as groups,
    ):
        found = [group async for group in groups]
    assert len(found) == 60
    assert all(len(group.samples) == 1 for group in found)
    assert len(sampler.asked) < 600


async def test_at_the_deadline_nothing_is_left_running(valkey: Valkey) -> None:
    sampler = Hanging(2, slots=5)  # so that some have not begun
    async with stub_fleet(valkey.url, sampler), AsyncFleet(valkey.url) as fleet:
        async with fleet.group(PROMPTS, n=3, deadline_s=3, seed=0, max_tokens=4, pack="off") as groups:
            found = {group.index: group async for group in groups}
            await wait_until_async(lambda: sampler.active == 0, "the stragglers to be cancelled")
        await wait_until_async(lambda: _nothing(valkey.url), "the ledger to be empty")
        asked = len(sampler.asked)
    assert sorted(found) == list(range(8))
    assert len(sampler.asked) == asked
    for group in found.values():
        assert not group.full
        assert 2 in group.missing
        assert set(group.missing) | {sample.choice_index for sample in group.samples} == {0, 1, 2}
        assert {failure.cause for failure in group.missing.values()} == {Cause.CANCELLED}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with shared_fleet(tmp_path_factory.mktemp("state"), latency_s=0.1, workers=1) as shared:
        yield shared


async def test_a_call_in_progress_is_closed_at_the_deadline(fleet: Fleet) -> None:
    fleet.gateway.set_options(per_token_s=0.0, latency_s=60.0)
    async with AsyncFleet(fleet.local.redis_url) as client:
        async with client.group(PROMPTS, n=2, deadline_s=4, max_tokens=4, pack="off") as groups:
            found = [group async for group in groups]
        await wait_until_async(lambda: fleet.gateway.ledger()["active"] == 0, "the gateway to have no request left")
        ledger = fleet.gateway.ledger()
        assert [group.texts for group in found] == [[]] * 8
        assert ledger["gone"] == ledger["arrivals"] == 16  # all slots, each closed by the client
        fleet.gateway.set_options(latency_s=0.1)
        async with client.group(PROMPTS, n=2, max_tokens=4) as groups:
            assert all([group.full async for group in groups])
    ledger = fleet.gateway.ledger()
    assert ledger["rollouts"]["total"] == 16
    assert ledger["peak_active"] <= 16
