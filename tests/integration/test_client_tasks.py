"""The client's single requests, against a real worker and the mock gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from brimful import AsyncFleet, Fleet, errors
from brimful.config import Settings
from brimful_worker.local.fleet import LocalFleet
from support.waiting import wait_until


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with LocalFleet(Settings.load(), workers=1, rehearse=True) as local:
            wait_until(lambda: local.ready_workers() >= 1, "a worker", timeout=60)
            assert local.redis_url is not None
            yield local.redis_url


def test_a_blocking_sample_from_several_threads(url: str) -> None:
    texts: dict[int, str] = {}

    def ask(fleet: Fleet, place: int) -> None:
        completion = fleet.sample(f"prompt {place}", max_tokens=2, timeout=30)
        assert completion["brimful"]["attempts"] == 1
        texts[place] = completion["choices"][0]["text"]

    with Fleet(url) as fleet:
        threads = [threading.Thread(target=ask, args=(fleet, place)) for place in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        handle = fleet.submit({"prompt": ["a", "b"], "n": 2, "max_tokens": 2})
        assert len(handle.get(timeout=60)["choices"]) == 4
    assert len(texts) == 6


def test_a_bad_request_raises_bad_request(url: str) -> None:
    with Fleet(url) as fleet, pytest.raises(errors.BadRequest, match="n: must be"):
        fleet.sample("hi", n=0, timeout=30)


def test_cancelling_revokes_a_running_request(url: str) -> None:
    with Fleet(url) as fleet:
        handle = fleet.submit("long", max_tokens=20_000)
        wait_until(lambda: handle.state == "STARTED", "the request to start")
        fleet.cancel(handle)
        wait_until(lambda: handle.state == "REVOKED", "the request to be revoked")


async def test_async_samples(url: str) -> None:
    async with AsyncFleet(url) as fleet:
        completions = await asyncio.gather(*(fleet.sample(f"p{place}", max_tokens=2) for place in range(8)))
        assert all(len(completion["choices"]) == 1 for completion in completions)
        with pytest.raises(errors.BadRequest):
            await fleet.sample("hi", n=0)
        handle = await fleet.submit("later", max_tokens=2)
        assert (await fleet.result(handle.id))["choices"]


async def test_cancelled_and_timed_out_async_requests_raise(url: str) -> None:
    async with AsyncFleet(url) as fleet:
        handle: Any = await fleet.submit("long", max_tokens=20_000)
        waiting = asyncio.ensure_future(fleet.result(handle))
        await fleet.cancel(handle)
        with pytest.raises(errors.Cancelled):
            await waiting
        with pytest.raises(TimeoutError):
            await fleet.sample("long", max_tokens=20_000, timeout=0.3)


async def test_a_map_through_real_workers(url: str) -> None:
    async with AsyncFleet(url) as fleet:
        results = [one async for one in fleet.map([f"p{place}" for place in range(40)], max_tokens=2, n=2)]
    assert [one.index for one in results] == list(range(40))
    assert all(len(one.texts) == 2 for one in results)
