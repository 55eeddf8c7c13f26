"""For how long the admission's keys live, and what the starter of a Redis server declares; on a real server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from brimful.state.keys import TAGS, admission_keys
from brimful_worker.admission import expiry
from brimful_worker.admission.clean_start import assume_full, mark_clean
from brimful_worker.local.server.valkey import Valkey
from support.waiting import wait_until_async

TAG = "tag"
KEYS = admission_keys(TAG)
WEEK_MS = 7 * 86400 * 1000
BEFORE_IDLE_S = 8 * 86400


class AtFixedTime(redis.Redis):
    """Reads a fixed time of the server."""

    def time(self) -> Any:
        return 1_700_000_000, 123_999


@pytest.fixture(autouse=True)
def _empty(client: redis.Redis) -> None:
    client.flushall()


@pytest.fixture
async def asynchronous(server: Valkey) -> AsyncIterator[Redis]:
    async with Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def at_fixed_time(server: Valkey) -> Iterator[redis.Redis]:
    with AtFixedTime.from_url(server.url, decode_responses=True) as client:
        yield client


def fill(client: redis.Redis, *workers: object) -> None:
    """All of the tag's keys, and these workers' descriptions."""
    for key in KEYS.values():
        if key != KEYS["workers"]:
            client.hset(key, "field", "value")
    for number, described in enumerate(workers):
        client.hset(KEYS["workers"], str(number), json.dumps(described))


def transactions(client: redis.Redis) -> int:
    """Number of transactions that the server has carried out."""
    counts = client.info("commandstats")
    return int(counts.get("cmdstat_exec", {}).get("calls", 0))


# how long keys live


async def test_keys_of_programs_live_for_a_week_and_two_windows(client: redis.Redis, asynchronous: Redis) -> None:
    fill(client, {"fleet": None}, {"fleet": None})
    before = _now_ms(client)
    await expiry.expire_keys(asynchronous, TAG, 90.0)
    after = _now_ms(client)
    for name, key in KEYS.items():
        if name == "limits":
            assert client.pexpiretime(key) == -1, "the operator's limits never expire"
        else:
            assert before <= client.pexpiretime(key) - WEEK_MS - 180_000 <= after


@pytest.mark.parametrize("worker", [{"fleet": ""}, {"fleet": "other"}, {"of an older version": 1}])
async def test_keys_that_a_worker_uses_get_no_end(client: redis.Redis, asynchronous: Redis, worker: object) -> None:
    fill(client, {"fleet": None}, worker)
    await expiry.expire_keys(asynchronous, TAG, 60.0)
    assert {client.pexpiretime(key) for key in KEYS.values()} == {-1}


async def test_a_worker_takes_the_end_away(client: redis.Redis, asynchronous: Redis) -> None:
    fill(client, {"fleet": None})
    await expiry.expire_keys(asynchronous, TAG, 60.0)
    assert client.pexpiretime(KEYS["state"]) > 0
    await expiry.keep_keys(asynchronous, TAG)
    assert {client.pexpiretime(key) for key in KEYS.values()} == {-1}


async def test_where_workers_keep_joining_it_ends_without_an_end_of_the_keys(
    client: redis.Redis, asynchronous: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, {"fleet": None})

    def joining(text: str) -> object:
        client.hset(KEYS["workers"], "another", '{"fleet": null}')
        return json.loads(text)

    monkeypatch.setattr(expiry, "loads", joining)
    await expiry.expire_keys(asynchronous, TAG, 60.0)
    assert client.pexpiretime(KEYS["state"]) == -1


async def test_old_tags_without_keys_are_forgotten(client: redis.Redis, asynchronous: Redis) -> None:
    old = time.time() - BEFORE_IDLE_S
    client.zadd(TAGS, {"gone": old, "idle": old, "new": time.time()})
    client.hset(admission_keys("idle")["state"], "epoch", "e")
    await expiry.forget_tags(asynchronous)
    assert set(client.zrange(TAGS, 0, -1)) == {"idle", "new"}


async def test_one_look_is_at_twenty_tags(client: redis.Redis, asynchronous: Redis) -> None:
    old = time.time() - BEFORE_IDLE_S
    client.zadd(TAGS, {f"gone{place}": old + place for place in range(25)})
    await expiry.forget_tags(asynchronous)
    assert client.zcard(TAGS) == 5
    await expiry.forget_tags(asynchronous)
    assert client.zcard(TAGS) == 0


async def test_the_keys_are_looked_after_until_the_end_whatever_fails(caplog: pytest.LogCaptureFixture) -> None:
    closing = asyncio.Event()
    errors = [RedisConnectionError("away"), OSError("away"), ValueError("not JSON")]
    calls = 0

    async def refresh() -> None:
        nonlocal calls
        calls += 1
        if errors:
            raise errors.pop()

    refreshing = asyncio.create_task(expiry.keep_refreshing(refresh, closing, every_s=0.001))
    await wait_until_async(lambda: calls > 3, "it goes on after each error")
    closing.set()
    async with asyncio.timeout(60):
        await refreshing
    ended = calls
    async with asyncio.timeout(60):
        await expiry.keep_refreshing(refresh, closing, every_s=600)
    assert calls == ended, "none after the end"
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


# what the starter of a server declares


def test_a_server_that_is_marked_clean_knows_no_process(client: redis.Redis) -> None:
    fill(client, {"fleet": ""})
    client.hset(KEYS["state"], mapping={"last": "01234", "skew": "7", "epoch": "old", "lost_at": "9", "awaited": "1a"})
    done = transactions(client)
    epoch = mark_clean(client, TAG)
    assert transactions(client) == done + 1, "no process joins in between"
    state = client.hgetall(KEYS["state"])
    assert state == {
        "field": "value",
        "last": "1234",
        "skew": "7",
        "epoch": epoch,
        "server": client.info("server")["run_id"],
    }
    gone = {"start_only", "interactive", "batch", "heard", "commands", "pushed", "inbox", "workers"}
    assert {name for name, key in KEYS.items() if not client.exists(key)} == gone
    assert mark_clean(client, TAG) != epoch


def test_a_new_server_that_is_marked_clean(client: redis.Redis) -> None:
    epoch = mark_clean(client, TAG)
    assert client.hgetall(KEYS["state"]) == {"epoch": epoch, "server": client.info("server")["run_id"]}


@pytest.mark.parametrize(("skew", "full"), [(None, 1_700_000_000_123), ("250", 1_700_000_000_373)])
def test_a_window_is_assumed_full_from_now_on(at_fixed_time: redis.Redis, skew: str | None, full: int) -> None:
    """On the admission's own clock, which differs from the server's by the skew."""
    at_fixed_time.hset(KEYS["state"], mapping={"epoch": "e", "server": "s"})
    if skew is not None:
        at_fixed_time.hset(KEYS["state"], "skew", skew)
    done = transactions(at_fixed_time)
    assume_full(at_fixed_time, TAG)
    assert transactions(at_fixed_time) == done + 1, "nothing begins an epoch in between"
    state = at_fixed_time.hgetall(KEYS["state"])
    assert (state.get("epoch"), state["server"], int(state["full"])) == (None, "s", full)


def _now_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000
