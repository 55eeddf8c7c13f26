"""A fleet of samplers on the real admission and a real Valkey, measured by the gateway's request log."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import redis

from brimful.config import Settings
from brimful.outcome import Cause, Outcome
from brimful.request import Request
from brimful_worker.admission import Admission, mark_clean
from brimful_worker.gateway import Gateway, GatewayOptions
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.provider import Provider
from brimful_worker.sampling.sampler import Sampler
from support.sampling import KEY
from support.waiting import wait_until_async


@asynccontextmanager
async def fleet(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway, valkey: Valkey, workers: int, **settings: Any
) -> AsyncIterator[list[Sampler]]:
    monkeypatch.setenv("ACS_API_KEY", KEY)
    monkeypatch.setenv("ACS_API_BASE", gateway.url)
    loaded = Settings.load(**{"redis_url": valkey.url, "backoff_base_s": 0.05, "guard_s": 0.5, **settings})
    with redis.Redis.from_url(valkey.url) as client:
        mark_clean(client, loaded.key_tag)
    async with AsyncExitStack() as stack:
        samplers = []
        for number in range(workers):
            admission = await stack.enter_async_context(Admission.from_settings(loaded, name=f"w{number}"))
            provider = await stack.enter_async_context(Provider(loaded))
            samplers.append(Sampler(loaded, admission, provider))
        yield samplers


async def sample_all(samplers: list[Sampler], count: int, **fields: Any) -> list[Outcome]:
    turns = itertools.cycle(samplers)
    return await asyncio.gather(
        *(
            next(turns).sample(
                Request.parse(
                    {"prompt": f"prompt {number}", "max_tokens": 4, "id": str(number), **fields},
                    samplers[0].settings.profile,
                )
            )
            for number in range(count)
        )
    )


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with Gateway(GatewayOptions(latency_s=0.02, per_token_s=0.0)) as running:
        yield running


async def test_a_fleet_keeps_slots_and_window_exactly(
    gateway: Gateway, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(slots=4, waiters=0, starts=60, window_s=2.0)
    async with fleet(monkeypatch, gateway, valkey, 4, slots=4, starts=60, window_s=2.0) as samplers:
        outcomes = await sample_all(samplers, 150)
    seen = gateway.snapshot()
    assert [outcome.retries for outcome in outcomes] == [{}] * 150
    assert dict(gateway.request_log.statuses) == {200: 150}
    assert seen["peak_active"] == 4
    assert gateway.request_log.window.peak <= 60


async def test_a_retry_after_pauses_the_fleet_which_then_restarts_spread_out(
    gateway: Gateway, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(faults="429=1:#40", latency_s=0.1)
    async with fleet(monkeypatch, gateway, valkey, 8) as samplers:
        outcomes = await sample_all(samplers, 200)
    assert sum(outcome.rate_limited for outcome in outcomes) == 1
    assert all(outcome.ok for outcome in outcomes)
    arrivals = [arrival.at for arrival in gateway.request_log.arrivals]
    (told,) = [arrival.ended for arrival in gateway.request_log.arrivals if arrival.status == 429]
    before = [at - told for at in arrivals if 0 < at - told < 1.0]
    assert len(before) <= 32, "only requests that were under way when the 429 came; without a pause it would be 160"
    back = sorted(at - told for at in arrivals if at - told >= 1.0)[:16]
    assert back[-1] - back[0] > 0.2, "not all at once"


async def test_slow_requests_behind_one_slot_never_time_out(
    gateway: Gateway, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(latency_s=0.12)
    async with fleet(monkeypatch, gateway, valkey, 2, slots=1, timeout_s=2.0) as samplers:
        outcomes = await sample_all(samplers, 20)
    assert [outcome.retries for outcome in outcomes] == [{}] * 20
    assert max(outcome.waited_s for outcome in outcomes) > 2.0


async def test_the_circuit_breaker_probes_one_at_a_time(
    gateway: Gateway, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(faults="500")
    async with fleet(monkeypatch, gateway, valkey, 2, circuit_breaker=10, attempts=50) as samplers:
        running = asyncio.create_task(sample_all(samplers, 100))

        async def state() -> str:
            return (await samplers[0].admission.status()).circuit_breaker

        async def tripped() -> bool:
            return await state() != "closed"

        await wait_until_async(tripped, "the breaker to trip")
        gateway.set(faults="")
        outcomes = await running
        assert await state() == "closed"
    assert all(outcome.ok for outcome in outcomes)


async def test_the_end_of_the_budget_ends_all_workers(
    gateway: Gateway, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(budget=400, latency_s=0.05)
    async with fleet(monkeypatch, gateway, valkey, 4) as samplers:
        outcomes = await sample_all(samplers, 200, max_tokens=20)
    assert {outcome.failure.cause for outcome in outcomes if outcome.failure} == {Cause.BUDGET}
    seen = gateway.snapshot()["budget"]
    assert sum(outcome.ok for outcome in outcomes) * 5 < 400
    assert seen["used"] > 400 - 2 * 30, "what still fitted was sampled"
    assert seen["refused"] < 100


async def test_a_revoked_request_frees_its_slot(
    gateway: Gateway, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(latency_s=60.0)
    async with fleet(monkeypatch, gateway, valkey, 1, slots=2, cooldown_s=0.1) as samplers:
        task = asyncio.create_task(sample_all(samplers, 2))
        await wait_until_async(lambda: gateway.slots.active == 2, "two requests in flight")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gateway.set(latency_s=0.0)
        assert all(outcome.ok for outcome in await sample_all(samplers, 4))
    assert gateway.snapshot()["peak_active"] == 2


async def test_without_redis_requests_whose_leases_end_are_retried_when_it_is_back(
    gateway: Gateway, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(latency_s=30.0)
    async with fleet(monkeypatch, gateway, valkey, 1, lease_s=1.0, cooldown_s=0.1) as samplers:
        task = asyncio.create_task(sample_all(samplers, 1))
        await wait_until_async(lambda: gateway.slots.active == 1, "a request in flight")
        assert valkey.pid is not None
        os.kill(valkey.pid, signal.SIGSTOP)
        try:
            await wait_until_async(lambda: gateway.slots.active == 0, "its connection to be shut")
            gateway.set(latency_s=0.0)
        finally:
            os.kill(valkey.pid, signal.SIGCONT)
        (outcome,) = await task
    assert outcome.ok
    assert outcome.retries == {"lease_lost": 1}
