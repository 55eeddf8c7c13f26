"""The same single request enqueued more than once: it is sampled once, and all get the result."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from brimful import AsyncFleet, Fleet, errors
from brimful.state.redis_url import sync_redis_client
from support.fleets import Fleet as RealFleet
from support.fleets import shared_fleet
from support.formats import LATER
from support.waiting import wait_until


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with shared_fleet(
        tmp_path_factory.mktemp("state"), latency_s=0.3, workers=2, attempts=1, result_expires_s=1800
    ) as real:
        yield real


def _attempts(real: RealFleet, prompt: str) -> int:
    [found] = real.gateway.sampled([prompt])
    return int(found["attempts"])


def _text(completion: dict[str, Any]) -> str:
    return str(completion["choices"][0]["text"])


def test_the_same_task_id_is_sampled_once(real: RealFleet) -> None:
    with Fleet(real.local.redis_url) as client:
        handles = [client.submit("same id", max_tokens=4, task_id="order-17") for _ in range(3)]
        texts = {_text(handle.get(timeout=60)) for handle in handles}
        later = client.submit("same id", max_tokens=4, task_id="order-17")
        texts.add(_text(later.get(timeout=60)))
        client.sample("a request behind it", max_tokens=2, timeout=60)
    assert len(texts) == 1
    assert _attempts(real, "same id") == 1


async def test_the_same_idempotency_key_is_sampled_once(real: RealFleet) -> None:
    async with AsyncFleet(real.local.redis_url) as client:
        ask = lambda: client.sample("same key", max_tokens=4, idempotency_key="order-18", timeout=60)  # noqa: E731
        completions = await asyncio.gather(*(ask() for _ in range(5)))
        completions.append(await ask())
    by_name = real.sample("same key", max_tokens=4, idempotency_key="order-18")
    completions.append(await asyncio.to_thread(by_name.get, timeout=60))
    assert len(set(map(_text, completions))) == 1
    assert all(completion["brimful"]["attempts"] == 1 for completion in completions)
    assert _attempts(real, "same key") == 1


def test_a_result_with_fields_of_a_later_release_is_returned_too(real: RealFleet) -> None:
    with Fleet(real.local.redis_url) as client, sync_redis_client(real.local.redis_url) as redis:
        handle = client.submit("later", max_tokens=4, idempotency_key="order-23")
        first = handle.get(timeout=60)
        key = f"celery-task-meta-{handle.id}"
        stored = json.loads(redis.get(key) or "")
        stored["result"]["brimful"] |= LATER
        redis.set(key, json.dumps(stored | LATER))
        again = client.sample("later", max_tokens=4, idempotency_key="order-23", timeout=60)
    assert _text(again) == _text(first)
    assert _attempts(real, "later") == 1


@pytest.mark.parametrize("stored", ["\\", '{"status": "SUCCESS", "result": "text"}'])
def test_a_result_that_cannot_be_read_is_sampled_again(real: RealFleet, stored: str) -> None:
    with Fleet(real.local.redis_url) as client, sync_redis_client(real.local.redis_url) as redis:
        handle = client.submit(f"broken {stored}", max_tokens=4, idempotency_key=f"order-24 {stored}")
        first = handle.get(timeout=60)
        redis.set(f"celery-task-meta-{handle.id}", stored)
        again = client.sample(f"broken {stored}", max_tokens=4, idempotency_key=f"order-24 {stored}", timeout=60)
    assert len(again["choices"]) == len(first["choices"])


def test_another_key_is_another_request(real: RealFleet) -> None:
    with Fleet(real.local.redis_url) as client:
        for key in ("a", "b"):
            client.sample("two keys", max_tokens=4, idempotency_key=key, timeout=60)
    assert _attempts(real, "two keys") == 2


def test_a_request_that_failed_or_timed_out_is_sampled_again(real: RealFleet) -> None:
    with Fleet(real.local.redis_url) as client:
        real.gateway.set_faults("500:@ failing")
        with pytest.raises(errors.TransientFailure):
            client.sample("a failing one", max_tokens=4, idempotency_key="order-19", timeout=60)
        real.gateway.set_faults("")
        assert client.sample("a failing one", max_tokens=4, idempotency_key="order-19", timeout=60)["choices"]
        with pytest.raises(errors.SampleTimeout):
            client.sample("a late one", max_tokens=20_000, idempotency_key="order-20", timeout=0.5)
        assert client.sample("a late one", max_tokens=4, idempotency_key="order-20", timeout=60)["choices"]


def test_results_and_keys_are_kept_as_long_as_was_set(real: RealFleet) -> None:
    handle = real.sample("kept", idempotency_key="order-22")
    handle.get(timeout=60)
    with sync_redis_client(real.local.redis_url) as redis:
        [key] = [key for key in redis.scan_iter("brimful:{task:key-*}:claim") if handle.id in (redis.get(key) or "")]
        for name in (f"celery-task-meta-{handle.id}", key):
            assert 1700 < redis.ttl(name) <= 1800


def test_a_key_of_another_type_is_refused(real: RealFleet) -> None:
    with pytest.raises(errors.BadRequest, match="idempotency_key"):
        real.sample("hi", idempotency_key=3).get(timeout=60)


@pytest.mark.parametrize("setting", ["maxmemory", "min-replicas-to-write"])
def test_redis_refuses_the_results_of_what_is_on_the_wire(real: RealFleet, setting: str) -> None:
    prompts = [f"{setting} {number}" for number in range(12)]
    real.gateway.set_options(latency_s=1.0)
    try:
        handles = [real.sample(prompt) for prompt in prompts]
        wait_until(lambda: all(_attempts(real, prompt) == 1 for prompt in prompts), "the requests to arrive")
        with sync_redis_client(real.local.redis_url) as redis:
            before = _refused(redis)
            redis.config_set(setting, "1")
            wait_until(lambda: _refused(redis) >= before + len(prompts), "Redis to refuse the results")
            redis.config_set(setting, "0")
            assert all(handle.get(timeout=60)["choices"] for handle in handles)
    finally:
        real.gateway.set_options(latency_s=0.3)
    assert {_attempts(real, prompt) for prompt in prompts} == {1}


def _refused(redis: Any) -> int:
    """How often a result was refused."""
    return int(redis.info("commandstats").get("cmdstat_setex", {}).get("rejected_calls", 0))


def test_a_dead_workers_request_is_taken_over(real: RealFleet) -> None:
    real.gateway.set_options(latency_s=2.0)
    try:
        handle = real.sample("outlives its worker", idempotency_key="order-21")
        wait_until(lambda: _attempts(real, "outlives its worker") == 1, "the request to arrive")
        for pid in real.local.worker_pids:
            os.kill(pid, signal.SIGKILL)
        assert handle.get(timeout=60)["choices"]
    finally:
        real.gateway.set_options(latency_s=0.3)
    assert _attempts(real, "outlives its worker") == 2
