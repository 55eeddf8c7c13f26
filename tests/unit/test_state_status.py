"""A key's status and limits, read from Redis with fields of any version."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import redis

from brimful.limits import Learnt, describe_learnt, learnt_from_redis, learnt_lines, slots_in_force
from brimful.packing.slot_model import Limits
from brimful.state.keys import TAGS, admission_keys
from brimful.state.redis_url import close_redis_client, redis_client, sync_redis_client
from brimful.state.status import live_limits, read_status, tag_in_use
from brimful_worker.local.server.valkey import Valkey

KEYS = admission_keys("tag")


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    with sync_redis_client(valkey.url) as client:
        yield client


def _started(client: redis.Redis, tag: str, slots: int, *, spoke_ago_s: float) -> None:
    """As after a worker's start."""
    keys, now = admission_keys(tag), time.time()
    client.zadd(TAGS, {tag: now - spoke_ago_s})
    client.hset(keys["defaults"], mapping={"slots": slots, "starts": 600, "window_ms": 60_000})
    client.zadd(keys["heard"], {"p1": int((now - spoke_ago_s) * 1000)})


def test_fields_of_another_version_are_skipped_and_missing_ones_have_defaults(client: redis.Redis) -> None:
    _started(client, "tag", 16, spoke_ago_s=1)
    client.hset(KEYS["workers"], mapping={"p1": json.dumps({"name": "w1", "pid": 7, "zone": "eu", "batch": 2})})
    client.hset(KEYS["limits"], mapping={"fairness": "by-weight", "starts": 300, "rev": 4})
    status = read_status(client, "tag")
    (worker,) = status.workers
    assert (worker.name, worker.host, worker.pid, worker.batch, worker.interactive) == ("w1", "?", 7, 2, 0)
    assert status.limits == {"slots": 16, "starts": 300, "window_s": 60.0}
    assert status.overridden == ("starts",)


@pytest.mark.parametrize(("pause", "busy", "reason"), [(900, 0, "pause"), (300, 900, "busy"), (0, 900, "busy")])
def test_the_longer_of_a_pause_and_one_that_may_end_sooner_is_shown(
    client: redis.Redis, pause: int, busy: int, reason: str
) -> None:
    _started(client, "tag", 16, spoke_ago_s=1)
    now = int(time.time() * 1000)
    for kind, seconds in (("pause", pause), ("busy", busy)):
        if seconds:
            client.hset(KEYS["state"], mapping={f"{kind}_until": now + seconds * 1000, f"{kind}_reason": kind})
    status = read_status(client, "tag")
    assert status.pause_reason == reason
    assert 600 < status.pause_s <= 900


@pytest.mark.parametrize(
    ("left", "starts", "next_s"),
    [
        ([-5.0, 100.0, 200.0, 300.0], 3, 100.0),
        ([100.0, 200.0, 300.0], 2, 200.0),  # the limit was lowered
        ([100.0], 2, 0.0),
        ([], 0, 0.0),
    ],
)
def test_a_full_window_takes_the_next_start_when_its_oldest_leaves_it(
    client: redis.Redis, left: list[float], starts: int, next_s: float
) -> None:
    _started(client, "tag", 16, spoke_ago_s=1)
    client.hset(KEYS["limits"], "starts", starts)
    now = time.time()
    if left:
        client.zadd(KEYS["starts"], {f"p1.{place}": (now + s - 60) * 1000 for place, s in enumerate(left)})
    # Redis has read its clock a moment after this test has.
    assert read_status(client, "tag").next_start_s == pytest.approx(next_s, abs=5)


async def test_after_a_rotation_of_the_key_the_running_workers_limits_count(valkey: Valkey) -> None:
    client = redis_client(valkey.url)
    try:
        assert await live_limits(client) is None
        with sync_redis_client(valkey.url) as worker:
            _started(worker, "old", 16, spoke_ago_s=3600)
            assert await tag_in_use(client) == "old"  # the only one
            _started(worker, "new", 8, spoke_ago_s=1)
            assert await live_limits(client) == Limits(8, 600, 60.0)
            worker.hset(admission_keys("new")["state"], "slots_level", 5)
            lower = await live_limits(client)
            assert lower is not None
            assert (lower.slots, *lower.learnt) == (5, describe_learnt("slots", 5, 8))
            _started(worker, "other", 4, spoke_ago_s=1)
            assert await tag_in_use(client) is None
    finally:
        await close_redis_client(client)


def test_what_was_learnt_is_described() -> None:
    state = {"slots_level": "8", "slots_at": "1000", "starts_level": "500"}
    learnt = learnt_from_redis(state, {"slots": 16, "starts": 600}, 4000)
    assert learnt["slots"] == Learnt(8, 3.0)
    assert learnt_lines(learnt, {"slots": 16, "starts": 600}) == [
        "the provider allows 8 slots, fewer than the 16 that are set",
        "the provider allows 500 starts in a window, fewer than the 600 that are set",
    ]
    assert describe_learnt("starts", 40, 0) == "the provider allows 40 starts in a window, and no limit on them is set"
    assert learnt_from_redis(state, {"slots": 8, "starts": 500}, 4000) == {}
    unset = {"slots": 16, "starts": 0, "slots_auto": 1}
    assert slots_in_force(unset, learnt_from_redis(state, unset, 4000)) == 8
    assert "no limit on them is set" in learnt_lines(learnt_from_redis(state, unset, 4000), unset)[0]
