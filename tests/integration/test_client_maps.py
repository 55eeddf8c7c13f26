"""The client's maps, with real shard runners around a stub sampler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from brimful import AsyncFleet, Fleet, errors
from brimful.outcome import Cause, Failure
from brimful.request import Request
from brimful.state.redis_url import redis_client
from brimful_worker.local.server.valkey import Valkey
from support.stub_fleet import Background, StubSampler, refuse_thirteen, stub_fleet
from support.waiting import wait_until, wait_until_async


def test_a_map_keeps_the_order_and_reports_failures(valkey: Valkey) -> None:
    prompts = [f"p{place}" for place in range(50)]
    with Background(valkey.url, StubSampler(refuse_thirteen)), Fleet(valkey.url) as fleet:
        results = list(fleet.map([*prompts, {"prompt": ""}, {"n": 3}, {"prompt": ["a", "b"]}], n=2, max_tokens=8))
    assert [one.index for one in results] == list(range(53))
    assert results[7].texts == ["p7#0", "p7#1"]
    assert results[7].attempts == 1
    assert [one.index for one in results if not one.ok] == [13, 51]
    with pytest.raises(errors.PermanentFailure, match="content_filter"):
        _ = results[13].texts
    assert results[51].failure is not None
    assert results[51].failure.cause is Cause.BAD_REQUEST
    assert results[52].texts == ["a#0", "a#1", "b#0", "b#1"]


def test_as_completed_reads_its_input_as_needed_and_yields_each_result_once(valkey: Valkey) -> None:
    read = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal read
        while True:
            read += 1
            yield {"prompt": f"p{read}", "max_tokens": 8, "id": f"mine-{read}"}

    with Background(valkey.url, StubSampler()) as sampler, Fleet(valkey.url) as fleet:
        seen = set()
        for one in fleet.as_completed(endless(), pack=5):
            seen.add(one.id)
            assert one.text == f"p{one.id.removeprefix('mine-')}#0"
            if len(seen) == 200:
                break
        assert read < 20_000
        wait_until(lambda: sampler.active == 0, "the rest to be cancelled")


@pytest.mark.parametrize("name", ["map", "as_completed"])
async def test_requests_that_are_all_refused_come_out_as_they_are_read(valkey: Valkey, name: str) -> None:
    read = 0

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        nonlocal read
        while True:
            read += 1
            yield {"prompt": f"p{read}"} | ({"max_tokens": 8} if read % 10_000 == 0 else {})

    taken = 0
    async with stub_fleet(valkey.url, StubSampler()), AsyncFleet(valkey.url) as fleet, asyncio.timeout(60):
        async for one in getattr(fleet, name)(prompts(), n=4):  # which needs max_tokens
            taken += 1
            if one.ok:
                assert one.texts[3] == f"p{one.index + 1}#3"
            else:
                assert one.failure.cause is Cause.BAD_REQUEST
            assert read - taken < 20_000 + 2 * 4096
            if taken == 30_000:
                break


async def test_a_map_may_be_closed_while_its_fleet_is(valkey: Valkey) -> None:
    """As where a loop over it is left: the interpreter closes the map then, and ``async with`` the fleet."""
    async with stub_fleet(valkey.url, StubSampler()), asyncio.timeout(60):
        fleet = AsyncFleet(valkey.url)
        results = fleet.map(map(str, range(100)), max_tokens=1)
        assert (await anext(results)).ok
        await asyncio.gather(fleet.aclose(), results.aclose())


def test_two_maps_at_once(valkey: Valkey) -> None:
    with Background(valkey.url, StubSampler()), Fleet(valkey.url) as fleet:
        pairs = list(
            zip(fleet.map(map(str, range(30)), max_tokens=1), fleet.map("abc" * 10, max_tokens=1), strict=True)
        )
    assert [(one.text, other.text) for one, other in pairs] == [(f"{i}#0", f"{'abc'[i % 3]}#0") for i in range(30)]


async def test_async_maps_read_async_iterables(valkey: Valkey) -> None:
    async def prompts() -> AsyncIterator[str]:
        for place in range(20):
            yield f"p{place}"

    async with stub_fleet(valkey.url, StubSampler()), AsyncFleet(valkey.url) as fleet:
        texts = [one.text async for one in fleet.map(prompts(), max_tokens=8)]
        assert texts == [f"p{place}#0" for place in range(20)]
        assert {one.index async for one in fleet.as_completed(prompts(), max_tokens=8)} == set(range(20))


async def test_a_closed_map_leaves_no_shards_behind(valkey: Valkey) -> None:
    async def never(request: Request) -> None:
        await asyncio.Event().wait()

    sampler = StubSampler(never)
    async with stub_fleet(valkey.url, sampler), AsyncFleet(valkey.url) as fleet, redis_client(valkey.url) as client:
        mapping: Any = fleet.map([str(place) for place in range(100)], max_tokens=8, pack="off")
        first = asyncio.ensure_future(anext(mapping))
        await wait_until_async(lambda: sampler.active == 16, "all slots to be used")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await mapping.aclose()
        await wait_until_async(lambda: sampler.active == 0, "all requests to be cancelled")
        left = [key async for key in client.scan_iter("brimful:{run:*")]
        assert [key for key in left if ":shard:" in key] == []


async def test_a_refused_key_fails_every_request_of_a_map(valkey: Valkey) -> None:
    async def refuse(request: Request) -> Failure:
        return Failure(Cause.KEY_REFUSED, "401", 401, permanent=True)

    async with stub_fleet(valkey.url, StubSampler(refuse)), AsyncFleet(valkey.url) as fleet:
        results = [one async for one in fleet.map([str(place) for place in range(40)], max_tokens=8)]
    assert [one.index for one in results] == list(range(len(results)))
    causes = {one.failure.cause for one in results if one.failure}
    assert Cause.KEY_REFUSED in causes
    assert causes <= {Cause.KEY_REFUSED, Cause.CANCELLED}
    assert not any(one.ok for one in results)


def test_submitting_without_redis_raises() -> None:
    with Fleet("redis://:hidden@127.0.0.1:1/0") as fleet, pytest.raises(errors.RedisUnreachable) as caught:
        fleet.submit("hi")
    assert "127.0.0.1:1" in str(caught.value)
    assert "hidden" not in str(caught.value)
