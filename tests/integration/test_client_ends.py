"""Single requests that are cancelled, time out or fail: they end, and stay ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery.exceptions import TaskRevokedError

from brimful import AsyncFleet, BrimfulError, Fleet, errors
from brimful.addresses import FleetAddress
from brimful.celery import app_for
from brimful.names import TASK_SAMPLE
from brimful.state.keys import revoked_key
from brimful.state.redis_url import sync_redis_client
from brimful.state.revocations import REVOCATION_S, TERMINATE
from brimful_worker.local.server.valkey import Valkey
from support.fleets import Fleet as RealFleet
from support.fleets import fleet, shared_fleet
from support.gateways import GatewayProcess, gateway_process
from support.waiting import wait_until, wait_until_async

LONG = 20_000
"""Tokens of a request that the mock gateway takes minutes for."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with shared_fleet(
        tmp_path_factory.mktemp("state"), latency_s=0.0, workers=1, throttle_attempts=2, retry_after_cap_s=0.01
    ) as real:
        yield real


def _attempts(gateway: GatewayProcess, *prompts: str) -> list[int]:
    return [found["attempts"] for found in gateway.sampled(list(prompts))]


async def test_a_closed_fleet_waits_for_no_result(valkey: Valkey) -> None:
    """It would open a connection again, and nobody would close that."""
    with sync_redis_client(valkey.url) as redis:
        async with AsyncFleet(valkey.url) as client:
            awaiting = asyncio.create_task(client.result("a"))
            await wait_until_async(lambda: redis.info("commandstats").get("cmdstat_mget"), "the result to be asked for")
        with pytest.raises(asyncio.CancelledError):
            await awaiting
        with pytest.raises(RuntimeError, match="the fleet is closed"):
            await client.result("b")
        await wait_until_async(lambda: len(redis.client_list()) == 1, "its connections to be closed")


def test_closing_a_fleet_cancels_what_another_thread_samples(valkey: Valkey) -> None:
    with sync_redis_client(valkey.url) as redis, ThreadPoolExecutor(2) as threads:
        with Fleet(valkey.url) as client:
            asked = [threads.submit(client.sample, f"prompt {place}", max_tokens=2, timeout=60) for place in range(2)]
            wait_until(lambda: redis.llen("interactive") == 2, "the requests to be sent")
            # The results are subscribed to before the requests are sent.
            ids = [channel.rpartition("meta-")[2] for channel in redis.pubsub_channels("*task-meta-*")]
        for one in asked:
            with pytest.raises(errors.Cancelled, match="the request was revoked"):
                one.result(timeout=60)
        assert [bool(redis.exists(revoked_key(id))) for id in ids] == [True, True]
        wait_until(lambda: not redis.pubsub_channels(), "its subscriptions to end")


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")
def test_a_handle_that_another_thread_waits_for_outlives_its_fleet(valkey: Valkey) -> None:
    with sync_redis_client(valkey.url) as redis, ThreadPoolExecutor(1) as threads:
        with Fleet(valkey.url) as client:
            handle = client.submit("a", max_tokens=2)
            waiting = threads.submit(handle.get, timeout=60)
            wait_until(lambda: redis.pubsub_numsub(*redis.pubsub_channels())[0][1], "the result to be awaited")
            wait_until(lambda: redis.info("commandstats").get("cmdstat_get"), "the result to be asked for")
        app_for(FleetAddress(valkey.url)).backend.store_result(handle.id, {"choices": []}, "SUCCESS")
        assert waiting.result(timeout=60) == {"choices": []}


def test_a_second_event_loop_is_refused_instead_of_waiting_for_the_first(valkey: Valkey) -> None:
    client = AsyncFleet(valkey.url)

    async def wait_for_result() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.result("a")

    async def refused() -> None:
        for call in (client.result("a"), client.sample("a")):
            with pytest.raises(RuntimeError, match="one event loop only: open another"):
                await call

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(wait_for_result())
        second.run(refused())
        first.run(client.aclose())
    with sync_redis_client(valkey.url) as redis:
        assert not redis.exists("interactive")


def test_a_value_that_is_no_json_is_a_bad_request(valkey: Valkey) -> None:
    with Fleet(valkey.url) as client, pytest.raises(errors.BadRequest, match=r"seed: must be made of JSON's types"):
        client.submit("q", seed=object())


async def test_what_was_cancelled_without_a_worker_is_not_sampled_when_one_comes(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = app_for(FleetAddress(valkey.url))
    ids = []
    with Fleet(valkey.url) as client:
        handles = [client.submit(f"cancelled {place}", max_tokens=2) for place in range(4)]
        client.cancel(*handles)
        ids += [handle.id for handle in handles]
        for place in range(3):
            with pytest.raises(errors.SampleTimeout):
                client.sample(f"timed out {place}", max_tokens=2, timeout=0.05)
    for place in range(2):
        handle = publisher.send_task(TASK_SAMPLE, [f"revoked {place}"], {"max_tokens": 2}, queue="interactive")
        handle.revoke()
        ids.append(handle.id)
    async with AsyncFleet(valkey.url) as client_async:
        awaiting = asyncio.create_task(client_async.sample("abandoned 0", max_tokens=2))
        with sync_redis_client(valkey.url) as redis:
            await asyncio.to_thread(wait_until, lambda: redis.llen("interactive") == 10, "ten requests in the queue")
        awaiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaiting
    with gateway_process("--latency", "0") as gateway, fleet(monkeypatch, gateway, workers=1, redis_url=valkey.url):
        with Fleet(valkey.url) as client:
            assert client.sample("wanted", max_tokens=2, timeout=60)["choices"]
        for id in ids:
            wait_until(lambda id=id: publisher.AsyncResult(id).state == "REVOKED", "the task to be revoked")
        assert gateway.ledger()["arrivals"] == 1
    publisher.close()


def test_a_revocation_has_an_end(valkey: Valkey) -> None:
    with Fleet(valkey.url) as client, sync_redis_client(valkey.url) as redis:
        handle = client.submit("hi", max_tokens=2)
        client.cancel(handle)
        assert 0 < redis.ttl(revoked_key(handle.id)) <= REVOCATION_S


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_timeout_cancels_the_request(real: RealFleet, asynchronous: bool) -> None:
    prompt = f"slow {asynchronous}"

    def ask() -> None:
        with Fleet(real.local.redis_url) as client:
            client.sample(prompt, max_tokens=LONG, timeout=1.0)

    async def ask_async() -> None:
        async with AsyncFleet(real.local.redis_url) as client:
            await client.sample(prompt, max_tokens=LONG, timeout=1.0)

    with pytest.raises(errors.SampleTimeout) as caught:
        await (ask_async() if asynchronous else asyncio.to_thread(ask))
    assert isinstance(caught.value, BrimfulError)
    assert isinstance(caught.value, TimeoutError)
    await asyncio.to_thread(wait_until, lambda: not real.gateway.ledger()["active"], "the request to be closed")


@pytest.mark.parametrize("how", ["Fleet.cancel", "handle.revoke", "a task of the app", "AsyncFleet"])
async def test_a_handle_of_a_cancelled_request_raises_cancelled(
    real: RealFleet, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = real.local.redis_url
    monkeypatch.setenv("BRIMFUL_REDIS_URL", url)
    async with AsyncFleet(url) as client_async:
        with Fleet(url) as client:
            handle = client.submit(f"ended by {how}", max_tokens=LONG)
            if how == "a task of the app":
                handle = app_for(FleetAddress(url)).AsyncResult(handle.id)
            await asyncio.to_thread(
                wait_until, lambda: _attempts(real.gateway, f"ended by {how}") == [1], "the request to arrive"
            )
            if how == "Fleet.cancel":
                client.cancel(handle)
            else:
                handle.revoke(terminate=True)
            waiting = client_async.result(handle) if how == "AsyncFleet" else asyncio.to_thread(handle.get, timeout=60)
            with pytest.raises(errors.Cancelled) as caught:
                await waiting
    assert isinstance(caught.value, TaskRevokedError), "services that know only Celery catch it"
    assert (caught.value.cause, str(caught.value)) == ("cancelled", "cancelled: the request was revoked")


def test_a_revocation_that_a_worker_did_not_hear_of_ends_a_running_request(real: RealFleet) -> None:
    with Fleet(real.local.redis_url) as client, sync_redis_client(real.local.redis_url) as redis:
        handle = client.submit("unheard", max_tokens=LONG)
        wait_until(lambda: _attempts(real.gateway, "unheard") == [1], "the request to arrive")
        redis.set(revoked_key(handle.id), TERMINATE)
        wait_until(lambda: handle.state == "REVOKED", "the request to be revoked")
        wait_until(lambda: not real.gateway.ledger()["active"], "the request to be closed")


def test_a_failure_says_what_the_provider_said(real: RealFleet) -> None:
    real.gateway.set_faults("429=1")
    try:
        with Fleet(real.local.redis_url) as client, pytest.raises(errors.TransientFailure) as caught:
            client.sample("throttled", max_tokens=2, timeout=60)
    finally:
        real.gateway.set_faults("")
    error = caught.value
    assert (error.status, error.code, error.attempts) == (429, "rate_limited", 2)
    assert error.retry_after_s == pytest.approx(1, abs=0.1)
    with Fleet(real.local.redis_url) as client, pytest.raises(errors.BadRequest):
        client.sample("hi", n=0, timeout=60)
