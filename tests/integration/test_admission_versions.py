"""Processes of different versions on one Redis, and errors that the script itself raises."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
import redis

from brimful.errors import RedisRefused
from brimful.state.status import read_status
from brimful_worker.admission import Admission, Limits, SchemaMismatch, ScriptFailed
from brimful_worker.admission.wire.rpc import exchange, exchange_arguments
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, TAG, Holding, admissions, hold, marked_clean
from support.waiting import wait_until_async


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    return marked_clean(valkey)


@pytest.fixture
def version_2(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Processes started from now on use schema 2; undo it to start some of version 1 again."""
    monkeypatch.setattr("brimful_worker.admission.wire.coordinator.SCHEMA", 2)
    return monkeypatch


def join(client: redis.Redis, **fields: Any) -> dict[str, Any]:
    """A process's first command, as a worker of another version sends it."""
    message = {
        "process": "ab",
        "command": 1,
        "epoch": "",
        "server": client.info("server")["run_id"],
        "new_epoch": "new",
        "lease_ms": 8000,
        "seen": 0,
        "rev": "",
        "join": {"defaults": Limits().fields(), "leases": []},
        **fields,
    }
    reply: dict[str, Any] = json.loads(
        client.eval(exchange().text, *exchange_arguments(TAG, json.dumps(message).encode()))
    )
    return reply


async def test_a_process_of_another_schema_is_refused(
    valkey: Valkey, client: redis.Redis, version_2: pytest.MonkeyPatch
) -> None:
    version_2.undo()
    async with admissions(valkey.url, 1, slots=1) as (one,):
        held = await hold(one)
        version_2.setattr("brimful_worker.admission.wire.coordinator.SCHEMA", 2)
        before = client.hgetall(KEYS["state"])
        with pytest.raises(SchemaMismatch, match=r"version 2 .* version 1"):
            await Admission(valkey.url, TAG, Limits()).start()
        assert client.hgetall(KEYS["state"]) == before
        assert client.zcard(KEYS["heard"]) == 1
        version_2.undo()
        await held.end()
        await (await hold(one)).end()


async def test_a_worker_that_names_no_schema_counts_as_version_1(
    valkey: Valkey, client: redis.Redis, version_2: pytest.MonkeyPatch
) -> None:
    async with admissions(valkey.url, 1):
        assert join(client)["status"] == "schema"
        assert join(client, schema=1) == {"status": "schema", "schema": 2}
    client.flushall()
    assert join(client)["status"] == "ok"
    client.hdel(KEYS["state"], "schema", "sums")
    client.hset(KEYS["state"], "last", int(client.hget(KEYS["state"], "last") or 0))
    with pytest.raises(SchemaMismatch, match=r"version 2 .* version 1"):
        await Admission(valkey.url, TAG, Limits()).start()
    version_2.undo()
    async with admissions(valkey.url, 1):
        assert client.zcard(KEYS["heard"]) == 2, "a rolling upgrade"


async def test_another_schema_takes_over_when_the_last_process_is_gone(
    valkey: Valkey, client: redis.Redis, version_2: pytest.MonkeyPatch
) -> None:
    """What the others left in the window cannot be known: it counts as full."""
    limits = {"starts": 3, "tokens": 30, "window_s": 1.5, "guard_s": 0.2, "lease_s": 0.6}
    version_2.undo()
    async with admissions(valkey.url, 1, **limits) as (old,):
        await (await hold(old)).end()
        epoch = client.hget(KEYS["state"], "epoch")
    version_2.setattr("brimful_worker.admission.wire.coordinator.SCHEMA", 2)
    async with admissions(valkey.url, 1, **limits) as (new,):
        since = boot_time()
        held = await hold(new, tokens=10)
        assert boot_time() - since > 1.4
        status = read_status(client, TAG)
        assert status.starts_used <= 3
        assert status.epoch != epoch
        assert client.hget(KEYS["state"], "schema") == "2"
        await held.end()


async def test_waiters_of_a_process_whose_fleet_was_taken_over(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, slots=1, lease_s=1.5) as (one,):
        held, waiting = await hold(one), Holding(one)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "one waits")
        now = int(client.hget(KEYS["state"], "last") or 0)
        client.zadd(KEYS["heard"], {"cd": now + 60_000})
        client.hset(KEYS["state"], "schema", 2)
        with pytest.raises(SchemaMismatch, match=r"version 1 .* version 2"):
            await waiting.task
        with pytest.raises(SchemaMismatch):
            await Holding(one).task
        await held.cancel()


async def test_turns_of_a_version_that_keeps_no_sums_are_no_loss(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, slots=2) as (one,):
        held = await hold(one)
        epoch = client.hget(KEYS["state"], "epoch")
        now = int(client.hget(KEYS["state"], "last") or 0)
        client.zrem(KEYS["starts"], held.lease.id)  # as an older script undoes a start
        client.hset(KEYS["state"], "last", now)
        await (await hold(one)).end()
        assert client.hget(KEYS["state"], "epoch") == epoch
        assert client.zcard(KEYS["starts"]) == 1
        client.zremrangebyrank(KEYS["starts"], 0, -1)
        await (await hold(one)).end()
        assert client.hget(KEYS["state"], "epoch") != epoch, "now nobody but us wrote last"
        await held.end()


async def test_limits_that_an_older_process_did_not_bring(
    valkey: Valkey, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """They have their default, whatever this process would set; those of a newer process are ignored."""
    old = {name: value for name, value in Limits(slots=1).fields().items() if name not in ("age_ms", "reserve_slots")}
    assert join(client, worker="{}", join={"defaults": {**old, "later_ms": 5}, "leases": []})["status"] == "ok"
    pubsub = client.pubsub()
    pubsub.subscribe(f"brimful:{{{TAG}}}:to:ab")  # it is alive, so its limits stay
    async with admissions(valkey.url, 1, slots=1) as (one,):
        await (await hold(one)).end()
    assert "limits stay in force" not in caplog.text
    with caplog.at_level(logging.WARNING):
        async with admissions(valkey.url, 1, slots=1, starvation_s=7) as (one,):
            await (await hold(one)).end()
    assert "limits stay in force" in caplog.text
    pubsub.close()


async def test_lost_defaults_are_brought_again(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 2, slots=2) as (one, two):
        held = await hold(one)
        client.delete(KEYS["defaults"])
        await (await hold(two)).end()
        assert read_status(client, TAG).slots == 2
        await held.end()


async def test_an_error_of_the_script_is_reported_as_what_it_is(
    valkey: Valkey, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with admissions(valkey.url, 1) as (one,):
        client.set(KEYS["slots"], "not a sorted set")
        waiting = Holding(one)
        commands = one.commands
        await wait_until_async(lambda: one.commands >= commands + 3, "it is tried again")
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "the admission's script fails in Redis: WRONGTYPE" in errors[0].getMessage()
        assert "cannot be reached" not in caplog.text
        client.delete(KEYS["slots"])
        await asyncio.wait_for(waiting.granted.wait(), 60)
        await waiting.end()
        assert "Redis answers again" in caplog.text


async def test_a_turn_that_failed_half_way_loses_no_wait_and_no_slot(valkey: Valkey, client: redis.Redis) -> None:
    """The grant was made, and its delivery failed: every process reports again."""
    async with admissions(valkey.url, 2, slots=1) as (one, two):
        held, waiting = await hold(one), Holding(two)
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) == 1, "one waits")
        process = next(each.process for each in (await two.status()).workers if each.name == "a1")
        client.hset(KEYS["inbox"], process, "no JSON")
        await held.end()
        await asyncio.wait_for(waiting.granted.wait(), 60)
        assert client.zrange(KEYS["slots"], 0, -1) == [waiting.lease.id]
        await waiting.end()
        await (await hold(one)).end()


async def test_starting_against_a_script_that_fails(valkey: Valkey, client: redis.Redis) -> None:
    client.set(KEYS["slots"], "not a sorted set")
    with pytest.raises(ScriptFailed, match="WRONGTYPE"):
        await Admission(valkey.url, TAG, Limits()).start(timeout_s=1)


async def test_starting_against_a_server_that_refuses(valkey: Valkey, client: redis.Redis) -> None:
    client.config_set("maxmemory", "1mb")
    with pytest.raises(RedisRefused, match="OutOfMemory"):
        await Admission(valkey.url, TAG, Limits()).start(timeout_s=1)
