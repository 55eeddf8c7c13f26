"""Fleets: workers of several API keys on one Redis, each with work of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from brimful import AsyncFleet, Fleet
from brimful.addresses import FleetAddress
from brimful.celery import app_for
from brimful.config import Settings
from brimful.errors import ExitCode, FleetTaken, SettingError
from brimful.names import QUEUES
from brimful.runtime.aio import cancel_and_wait
from brimful.state.broker_queues import read_queues
from brimful.state.fleets import (
    Unsettled,
    check_registered,
    check_submitter,
    fleet_places,
    note_broker,
    read_fleet,
    register,
    register_replaced,
)
from brimful.state.keys import BROKERS, FLEETS, TAGS, admission_keys
from brimful.state.probes import worker_queues
from brimful.state.redis_url import close_redis_client, redis_client, sync_redis_client
from brimful.state.status import tag_in_use
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.membership import Membership
from support.commands import Running, brimful, brimful_in_process, environment, write_prompts
from support.fleets import declare_new
from support.gateways import GatewayProcess, gateway_process
from support.pool_worker import Background
from support.waiting import wait_until, wait_until_async

OURS, THEIRS = "sk-ours", "sk-theirs"


@pytest.fixture(scope="module")
def gateways() -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    with gateway_process("--latency", "0") as ours, gateway_process("--latency", "0") as theirs:
        yield ours, theirs


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    with sync_redis_client(valkey.url) as client:
        yield client


def _env(gateway: GatewayProcess, valkey: Valkey, key: str, **more: str) -> dict[str, str]:
    return {"ACS_API_BASE": gateway.url, "ACS_API_KEY": key, "BRIMFUL_REDIS_URL": valkey.url, **more}


def _tag(monkeypatch: pytest.MonkeyPatch, key: str) -> str:
    with monkeypatch.context() as patch:
        patch.setenv("ACS_API_KEY", key)
        return Settings.load().key_tag


@pytest.fixture
def both_new(valkey: Valkey) -> None:
    """No worker of either key waits for others of its own."""
    for key in (OURS, THEIRS):
        declare_new(valkey, key)


def _ready(url: str, fleet: str = "", workers: int = 1) -> None:
    wait_until(
        lambda: len(worker_queues(FleetAddress(url, fleet), 15, timeout_s=0.5)) == workers,
        f"the workers of {fleet!r}",
        60,
    )


def _alive(client: redis.Redis, tag: str, name: str, ago_s: float = 0.0, **said: str | int | None) -> None:
    """What a worker process leaves in the admission's keys."""
    keys, process = admission_keys(tag), name.encode().hex()
    client.zadd(TAGS, {tag: time.time()})
    client.zadd(keys["heard"], {process: round((time.time() - ago_s) * 1000)})
    client.hset(keys["workers"], process, json.dumps({"name": name, "host": "h", "pid": 1, **said}))


async def test_a_fleet_s_places_are_read_without_its_slots(valkey: Valkey, client: redis.Redis) -> None:
    asking = redis_client(valkey.url)
    try:
        assert await fleet_places(asking) is None
        _alive(client, "tag", "one", fleet="", places=64)
        _alive(client, "tag", "two", fleet="", places=4)
        _alive(client, "tag", "another fleet's", fleet="evals", places=8)
        _alive(client, "tag", "silent", ago_s=100, fleet="", places=16)
        _alive(client, "tag", "a front door", fleet=None)
        client.config_resetstat()
        assert await fleet_places(asking) == 68
        commands = client.info("commandstats")
        assert commands["cmdstat_zrange"]["calls"] == 1  # of those that spoke, and of nothing that grows with the slots
        _alive(client, "tag", "of an older version", fleet="")
        assert await fleet_places(asking) is None
    finally:
        await close_redis_client(asking)


@pytest.mark.usefixtures("both_new")
def test_two_keys_on_one_redis_each_with_its_own_fleet(
    valkey: Valkey,
    client: redis.Redis,
    gateways: tuple[GatewayProcess, GatewayProcess],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ours, theirs = gateways
    own, other = _env(ours, valkey, OURS), _env(theirs, valkey, THEIRS)
    tag, other_tag = _tag(monkeypatch, OURS), _tag(monkeypatch, THEIRS)
    prompts = write_prompts(tmp_path / "in.jsonl", 60)
    with Running("worker", "-n", "our-worker", **own):
        _ready(valkey.url)
        refused = brimful("worker", "-n", "intruder", **other)
        assert refused.returncode == ExitCode.USAGE, refused.stderr
        for said in (tag, other_tag, "our-worker@", "BRIMFUL_FLEET=name", 'Fleet(fleet="name")', "--take-over"):
            assert said in refused.stderr
        assert OURS not in refused.stderr
        assert THEIRS not in refused.stderr
        assert client.hgetall(FLEETS) == {"": tag}
        run = brimful_in_process("run", prompts, "-o", tmp_path / "refused.jsonl", "--max-tokens", "4", **other)
        assert run.returncode == ExitCode.USAGE
        assert tag in run.stderr
        with Running("worker", "-n", "their-worker", BRIMFUL_FLEET="evals", **other):
            _ready(valkey.url, "evals")
            runs = [
                subprocess.Popen(
                    [sys.executable, "-m", "brimful.cli", "run", prompts, "-o", tmp_path / out, "--max-tokens", "4"],
                    env=environment(**env),
                    stderr=subprocess.PIPE,
                )
                for out, env in (("own", own), ("other", {**other, "BRIMFUL_FLEET": "evals"}))
            ]
            for each in runs:
                _, stderr = each.communicate(timeout=120)
                assert each.returncode == ExitCode.OK, stderr
            doctor = brimful_in_process("doctor", "--json", BRIMFUL_FLEET="evals", **other)
            found = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
            for said in (
                f"the unnamed fleet: key {tag}",
                f"the fleet evals: key {other_tag}",
                "1 live worker, 0 queued",
            ):
                assert said in found["fleets"]["said"]
            assert "keys" not in found
            doctor = brimful_in_process("doctor", "--json", **other)
            found = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
            assert found["keys"]["level"] == "fail"
            assert "BRIMFUL_FLEET" in found["keys"]["todo"]
    asked = [f"prompt {place}" for place in range(60)]
    for gateway in gateways:
        assert [one["sampled"] for one in gateway.sampled(asked)] == [[1]] * 60


@pytest.mark.usefixtures("both_new")
async def test_results_revocations_and_copies_of_one_id_are_each_fleets_own(
    valkey: Valkey, gateways: tuple[GatewayProcess, GatewayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = gateways
    with (
        Running("worker", **_env(ours, valkey, OURS)),
        Running("worker", BRIMFUL_FLEET="evals", **_env(theirs, valkey, THEIRS)),
        Fleet(valkey.url) as unnamed,
        Fleet(valkey.url, fleet="evals") as evals,
    ):
        _ready(valkey.url)
        _ready(valkey.url, "evals")
        evals.cancel("job-1")
        fields = {"max_tokens": 3, "idempotency_key": "order-17"}
        completions = [fleet.sample(name, timeout=60, **fields) for fleet, name in ((unnamed, "a"), (evals, "b"))]
        assert len({one["id"] for one in completions}) == 2
        assert unnamed.submit("c", task_id="job-1", max_tokens=3).get(timeout=60)["choices"]
        async with AsyncFleet(valkey.url, fleet="evals") as later:
            one = await later.submit("d", task_id="job-2", max_tokens=3, workload="batch")
            assert (await later.result(one))["choices"]
            assert [one.ok async for one in later.map(["e", "f"], max_tokens=3)] == [True, True]
    assert [one["sampled"] for one in theirs.sampled(["b", "d", "e", "f", "a", "c"])] == [[1]] * 4 + [[]] * 2
    assert [one["sampled"] for one in ours.sampled(["a", "c"])] == [[1]] * 2


@pytest.mark.usefixtures("both_new")
def test_a_rotated_key_takes_over_what_is_empty_and_the_rest_when_told(
    valkey: Valkey,
    client: redis.Redis,
    gateways: tuple[GatewayProcess, GatewayProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = gateways
    old, new = _env(ours, valkey, OURS), _env(theirs, valkey, THEIRS)
    with Running("worker", **old) as worker:
        _ready(valkey.url)
        assert worker.interrupt() in (0, ExitCode.INTERRUPTED)
    with Running("worker", **new) as loser:
        wait_until(lambda: client.hget(FLEETS, "") == _tag(monkeypatch, THEIRS), "the new key to take over", 60)
        _ready(valkey.url)
        with Fleet(valkey.url) as fleet:
            fleet.sample("g", max_tokens=2, timeout=60)
        with Running("worker", "--take-over", **old) as winner:
            wait_until(lambda: client.hget(FLEETS, "") == _tag(monkeypatch, OURS), "the take-over", 60)
            assert loser.process.wait(60) == ExitCode.OK
            _ready(valkey.url)
            assert winner.interrupt() in (0, ExitCode.INTERRUPTED)
    client.lpush("batch", "left")
    refused = brimful("worker", **new)
    assert refused.returncode == ExitCode.USAGE
    assert "no live worker, with 1 task queued" in refused.stderr


def test_a_fleet_that_a_worker_before_fleets_serves_takes_its_key_only(valkey: Valkey, client: redis.Redis) -> None:
    _alive(client, "old-tag", "first@h")
    with pytest.raises(FleetTaken, match=r"key old-tag, whose live workers are first@h"):
        register(client, FleetAddress(valkey.url), "new-tag")
    register(client, FleetAddress(valkey.url, "evals"), "new-tag")  # such a worker serves the unnamed fleet
    register(client, FleetAddress(valkey.url), "old-tag")
    assert client.hgetall(FLEETS) == {"evals": "new-tag", "": "old-tag"}
    _alive(client, "old-tag", "first@h", ago_s=60)
    register(client, FleetAddress(valkey.url), "new-tag")


def test_a_fleet_whose_registration_redis_has_lost_stays_with_its_workers(valkey: Valkey, client: redis.Redis) -> None:
    _alive(client, "tag", "w@h", fleet="")
    _alive(client, "limiter", "web", fleet=None)
    with pytest.raises(Unsettled):
        register(client, FleetAddress(valkey.url), "other", patient=True)
    assert check_registered(client, "", "tag", rehearsal=False)
    with pytest.raises(FleetTaken):
        register(client, FleetAddress(valkey.url), "other", patient=True)
    assert not check_registered(client, "", "other", rehearsal=False)
    assert read_fleet(client, FleetAddress(valkey.url)).members[0].name == "w@h"


def test_a_key_replaced_in_its_file_is_the_same_fleets(valkey: Valkey, client: redis.Redis) -> None:
    register(client, FleetAddress(valkey.url), "first")
    _alive(client, "first", "w@h", fleet="")
    register_replaced(client, "", "second", "first")
    for tag in ("first", "second"):  # not every worker has read the file again
        register(client, FleetAddress(valkey.url), tag)
        assert check_registered(client, "", tag, rehearsal=False)
    with pytest.raises(FleetTaken, match="the API key second"):
        register(client, FleetAddress(valkey.url), "other")
    register_replaced(client, "", "third", "second")
    assert not check_registered(client, "", "first", rehearsal=False)


async def test_a_submitter_needs_the_fleets_key_or_none(
    valkey: Valkey, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIMFUL_REDIS_URL", valkey.url)
    register(client, FleetAddress(valkey.url), "tag")
    check_submitter(Settings.load())
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "a judge's")
        check_submitter(Settings.load())
    with pytest.raises(FleetTaken, match="key tag, with no live worker"):
        check_submitter(Settings.load(provider="anthropic"))
    monkeypatch.setenv("ACS_API_KEY", THEIRS)
    with pytest.raises(FleetTaken, match="key tag, with no live worker"):
        check_submitter(Settings.load())
    with Fleet() as fleet, pytest.raises(FleetTaken):
        fleet.submit("a")
    async with AsyncFleet() as asyncs:
        with pytest.raises(FleetTaken):
            await asyncs.sample("a")
        with pytest.raises(FleetTaken):
            async for _ in asyncs.map(["a"]):
                pass
    code = "from brimful import sample\nsample.delay('a')"
    with Background([sys.executable, "-c", code], dict(os.environ)) as done:
        await asyncio.to_thread(done.process.wait, 60)
    assert "FleetTaken" in done.output
    assert sum(read_queues(client, FleetAddress(valkey.url)).lengths.values()) == 0
    register(client, FleetAddress(valkey.url), "rehearsed", rehearsal=True, take_over=True)
    check_submitter(Settings.load())
    async with redis_client(valkey.url) as redis:
        assert await tag_in_use(redis) == "rehearsed"


def test_a_plain_queue_is_the_fleets_own(valkey: Valkey, client: redis.Redis) -> None:
    with app_for(FleetAddress(valkey.url, "evals")) as app:
        for queue in (*QUEUES, None):
            app.send_task("brimful.sample", args=["a"], queue=queue)
    assert sum(read_queues(client, FleetAddress(valkey.url)).lengths.values()) == 0
    assert read_queues(client, FleetAddress(valkey.url, "evals")).lengths == {"interactive": 2, "celery": 1, "batch": 1}


@pytest.mark.parametrize("name", ["a.b", "a b", "x" * 65])
def test_a_fleets_name_is_checked(name: str) -> None:
    with pytest.raises(SettingError, match=r"BRIMFUL_FLEET: a fleet's name has letters, digits, - and _ only"):
        Settings.load(fleet=name)


async def test_a_worker_notes_its_broker_again_where_redis_has_lost_its_memory(
    valkey: Valkey, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACS_API_KEY", "sk-unit-test")
    settings = Settings.load(redis_url=valkey.url, broker_url="amqp://u:hush@rabbit.example/v")

    async def look(*, takes_tasks: bool) -> str | None:
        """The broker that is noted once the fleet is registered again."""
        client.delete(FLEETS)
        watching = asyncio.create_task(Membership(settings, takes_tasks=takes_tasks).watch())
        await wait_until_async(lambda: client.exists(FLEETS), "the fleet to be registered")
        await cancel_and_wait([watching])
        return client.hget(BROKERS, "")

    assert await look(takes_tasks=False) is None, "of a front door"
    assert await look(takes_tasks=True) == "rabbitmq"
    note_broker(client, FleetAddress(valkey.url))
    assert await look(takes_tasks=True) == "redis", "the worker that came last has another"


async def test_a_worker_that_stops_closes_its_client_after_its_last_look(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACS_API_KEY", "sk-unit-test")
    looking, go_on, order = threading.Event(), threading.Event(), list[str]()
    close = redis.Redis.close

    def look(*_: object, **__: object) -> bool:
        looking.set()
        go_on.wait(60)
        order.append("looked")
        return True

    def closing(closed: redis.Redis) -> None:
        order.append("closed")
        close(closed)

    monkeypatch.setattr("brimful_worker.membership.check_registered", look)
    watching = asyncio.create_task(Membership(Settings.load(redis_url=valkey.url), takes_tasks=False).watch())
    await wait_until_async(looking.is_set, "the look")
    monkeypatch.setattr(redis.Redis, "close", closing)
    await cancel_and_wait([watching])
    go_on.set()
    await wait_until_async(lambda: len(order) == 2, "the look's end, and the client's")
    assert order == ["looked", "closed"]


def test_who_would_enqueue_where_no_worker_looks_is_refused(
    valkey: Valkey, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIMFUL_REDIS_URL", valkey.url)
    rabbitmq = "amqp://u:hush@rabbit.example/v"
    check_submitter(Settings.load(broker_url=rabbitmq))  # no worker yet
    note_broker(client, FleetAddress(valkey.url))
    check_submitter(Settings.load())
    with pytest.raises(
        SettingError, match="BRIMFUL_BROKER_URL is set, but the fleet's workers take their tasks from R"
    ):
        check_submitter(Settings.load(broker_url=rabbitmq))
    note_broker(client, FleetAddress(valkey.url, rabbitmq_url=rabbitmq))
    check_submitter(Settings.load(broker_url=rabbitmq))
    check_submitter(Settings.load(fleet="other"))
    with pytest.raises(SettingError, match="BRIMFUL_BROKER_URL is not set, but the fleet's workers take their tasks"):
        check_submitter(Settings.load())
