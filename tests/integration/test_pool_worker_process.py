"""``brimful worker`` and ``celery -A brimful worker``: how they start, serve other apps, and keep secrets."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from brimful.errors import BadRequest
from brimful_worker.local.server.valkey import Valkey, free_port
from support.commands import brimful_in_process, command, environment
from support.gateways import GatewayProcess, gateway_process
from support.pool_worker import Background, client, settled
from support.waiting import wait_until

WAIT_S = 60
KEY = "sk-my-own-secret-key"
SECRET = "my secret prompt"
PASSWORD = "my-redis-password"
CUSTOM = {"CELERY_CUSTOM_WORKER_POOL": "brimful_worker.pool:TaskPool"}  # what -P custom means
QUICK = {"BRIMFUL_WINDOW_S": "1", "BRIMFUL_LEASE_S": "3", "BRIMFUL_GUARD_S": "0.2", "BRIMFUL_GUARDIAN": "0"}
"""A worker on a new server waits a lease. The guardian would end one that a busy machine stops for two seconds."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with gateway_process("--latency", "0.05", "--per-token", "0", "--window", "1") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    directory = tmp_path_factory.mktemp("valkey")
    options = (f"unixsocket {directory / 'valkey.sock'}",)
    with Valkey(directory, password=PASSWORD, options=options) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def worker(server: Valkey, gateway: GatewayProcess) -> Iterator[Background]:
    env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": server.url, **QUICK}
    with Background(command("worker", "--concurrency", "8", "--name", "one@test"), environment(**env)) as worker:
        wait_until(lambda: "one@test ready." in worker.output, "the worker", WAIT_S)
        yield worker


@pytest.fixture
def service(server: Valkey, worker: Background) -> Iterator[Celery]:
    with client(server.url) as app:
        yield app


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ("ACS_API_KEY", "ACS_API_KEY"),
        ("ACS_API_BASE", "ACS_API_BASE"),
        ("BRIMFUL_REDIS_URL", "BRIMFUL_REDIS_URL"),
    ],
)
def test_a_missing_setting_ends_the_worker_before_anything_starts(missing: str, names: str) -> None:
    env = {"ACS_API_BASE": "http://127.0.0.1:1/v1", "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": "redis://127.0.0.1:1/0"}
    del env[missing]
    ended = brimful_in_process("worker", **env)
    assert ended.returncode == 2
    assert names in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "onnect" not in ended.stderr


def test_an_unknown_queue_is_refused() -> None:
    env = {"ACS_API_BASE": "http://127.0.0.1:1/v1", "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": "redis://127.0.0.1:1/0"}
    ended = brimful_in_process("worker", "--queues", "batch,slow", **env)
    assert ended.returncode == 2
    assert "slow" in ended.stderr


@pytest.mark.parametrize("flags", [(), pytest.param(("-P", "custom"), marks=pytest.mark.compat)])
def test_plain_celery_reports_a_missing_setting_too(flags: tuple[str, ...]) -> None:
    arguments = [sys.executable, "-m", "celery", "-A", "brimful", "worker", *flags]
    env = environment(ACS_API_BASE="http://h/v1", BRIMFUL_REDIS_URL="redis://127.0.0.1:1/0", **CUSTOM)
    ended = subprocess.run(arguments, env=env, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "ACS_API_KEY" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("pool", ["solo", pytest.param("threads", marks=pytest.mark.compat)])
def test_a_pool_that_would_fail_every_request_does_not_start(pool: str) -> None:
    arguments = [sys.executable, "-m", "celery", "-A", "brimful", "worker", "-P", pool]
    env = environment(ACS_API_BASE="http://h/v1", ACS_API_KEY=KEY, BRIMFUL_REDIS_URL="redis://127.0.0.1:1/0")
    ended = subprocess.run(arguments, env=env, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "celery.concurrency." in ended.stderr
    assert "`celery -A brimful worker`" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_plain_celery_serves_over_a_unix_socket(server: Valkey, gateway: GatewayProcess, worker: Background) -> None:
    url = f"unix://:{PASSWORD}@{server.directory / 'valkey.sock'}?db=1"
    env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": url, **QUICK, **CUSTOM}
    arguments = [sys.executable, "-m", "celery", "-A", "brimful", "worker", "-P", "custom", "-l", "INFO"]
    with Background(arguments, environment(**env)) as plain, client(f"{server.url[:-1]}1") as app:
        answer = app.send_task("brimful.sample", (SECRET,), {"max_tokens": 4}).get(timeout=WAIT_S)
        assert len(answer["choices"]) == 1
        assert plain.stop() == 0
        assert "Traceback" not in plain.output
        assert PASSWORD not in plain.output


def test_a_worker_can_be_stopped_while_redis_is_away(gateway: GatewayProcess) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    # The lease: a busy machine may stop a worker that ends for more than the four seconds of the default one.
    env = environment(ACS_API_BASE=gateway.url, ACS_API_KEY=KEY, BRIMFUL_REDIS_URL=url, BRIMFUL_LEASE_S="60")
    with Background(command("worker"), env) as early:
        wait_until(lambda: "edis" in early.output, "a word about it", WAIT_S)
        assert early.stop() == 0
        assert "Traceback" not in early.output


def test_another_app_gets_completions_and_typed_failures(service: Celery) -> None:
    by_kwargs = service.send_task("brimful.sample", kwargs={"prompt": SECRET, "n": 2, "max_tokens": 4})
    by_queue = service.send_task("brimful.sample", ([SECRET, "two"],), {"max_tokens": 4}, queue="batch")
    bad = service.send_task("brimful.sample", kwargs={"prompt": SECRET, "n": 0})
    assert [choice["index"] for choice in by_kwargs.get(timeout=WAIT_S)["choices"]] == [0, 1]
    assert [choice["index"] for choice in by_queue.get(timeout=WAIT_S)["choices"]] == [0, 1]
    with pytest.raises(BadRequest, match="n: must be"):
        bad.get(timeout=WAIT_S)


def test_the_workload_defaults_to_that_of_the_queue(service: Celery, gateway: GatewayProcess) -> None:
    gateway.reset()
    for queue, options in (("batch", {}), ("interactive", {}), ("celery", {}), ("batch", {"workload": "interactive"})):
        service.send_task("brimful.sample", ("p",), {"max_tokens": 4, **options}, queue=queue).get(timeout=WAIT_S)
    assert gateway.ledger()["workloads"] == {"batch": 1, "interactive": 3}


def test_revoking_a_running_request_closes_its_connection(service: Celery, gateway: GatewayProcess) -> None:
    gateway.reset()
    gateway.set_options(latency_s=60.0)
    try:
        task = service.send_task("brimful.sample", ("long",), {"max_tokens": 4})
        wait_until(lambda: gateway.ledger()["active"] == 1, "the request at the gateway")
        service.control.revoke(task.id, terminate=True)
        wait_until(lambda: gateway.ledger()["active"] == 0, "its end at the gateway")
    finally:
        gateway.set_options(latency_s=0.05)
    assert wait_until(lambda: task.state == "REVOKED", "its state")


def test_sigterm_finishes_sent_requests_and_requeues_waiting_ones(gateway: GatewayProcess, valkey: Valkey) -> None:
    gateway.reset()
    gateway.set_options(latency_s=3.0)
    env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY, "BRIMFUL_REDIS_URL": valkey.url, "BRIMFUL_SLOTS": "1"}
    try:
        with (
            Background(command("worker", "--name", "w"), environment(**env, **QUICK)) as worker,
            client(valkey.url) as app,
            redis.Redis.from_url(valkey.url) as store,
        ):
            worker.ready()
            tasks = [app.send_task("brimful.sample", ("p",), {"max_tokens": 4}) for _ in range(5)]
            wait_until(lambda: gateway.ledger()["active"] == 1, "one at the gateway", WAIT_S)
            wait_until(lambda: store.hlen("unacked") == 5, "the others to wait for its slot")
            assert worker.stop() == 0
            wait_until(lambda: [task.state for task in tasks].count("SUCCESS") == 1, "its result")
            assert settled(store)
            assert store.llen("interactive") + store.llen("celery") == 4
            assert gateway.ledger()["arrivals"] == 1
    finally:
        gateway.set_options(latency_s=0.05)


def test_batch_work_leaves_room_for_interactive_work(service: Celery, gateway: GatewayProcess, server: Valkey) -> None:
    gateway.reset()
    gateway.set_options(latency_s=60.0)
    with redis.Redis.from_url(server.url) as store:
        batch = [service.send_task("brimful.sample", ("long",), {"max_tokens": 4}, queue="batch") for _ in range(10)]
        wait_until(lambda: gateway.ledger()["active"] == 8, "batch to fill the concurrency")
        wait_until(lambda: store.llen("batch") == 2, "the rest to wait in the queue, for any worker")
        gateway.set_options(latency_s=0.05)
        assert service.send_task("brimful.sample", ("quick",), {"max_tokens": 4}).get(timeout=WAIT_S)
        assert store.llen("batch") == 2
        service.control.revoke([task.id for task in batch], terminate=True)
        wait_until(lambda: settled(store), "all to be over")


def test_prompts_and_keys_appear_in_no_event_log_or_redis_value(
    service: Celery, server: Valkey, worker: Background, gateway: Any
) -> None:
    seen: list[dict[str, Any]] = []
    listening = threading.Event()

    def capture() -> None:
        with client(server.url) as own, own.connection() as connection:
            receiver = own.events.Receiver(connection, handlers={"*": seen.append})
            for _ in receiver.itercapture(limit=None, timeout=WAIT_S, wakeup=False):
                listening.set()
                if any(event["type"] == "task-failed" for event in seen):
                    return

    thread = threading.Thread(target=capture)
    thread.start()
    wait_until(listening.is_set, "the first event (a heartbeat)")
    gateway.set_options(latency_s=3.0)
    try:
        good = service.send_task("brimful.sample", (SECRET,), {"max_tokens": 4})
        wait_until(lambda: gateway.ledger()["active"] == 1, "the request at the gateway")
        active = service.control.inspect(["one@test"], timeout=10).active()
    finally:
        gateway.set_options(latency_s=0.05)
    good.get(timeout=WAIT_S)
    with pytest.raises(BadRequest):
        service.send_task("brimful.sample", (SECRET,), {"max_tokens": 0}).get(timeout=WAIT_S)
    service.send_task("brimful.smaple", (SECRET,))  # unknown
    wait_until(lambda: "brimful.smaple" in worker.output, "the unknown task's refusal")
    thread.join(WAIT_S)

    received = [event for event in seen if event["type"] == "task-received" and event["uuid"] == good.id]
    assert received[0]["args"] == "(<1 request, 1 prompt>,)"
    assert active["one@test"][0]["args"] == "(<1 request, 1 prompt>,)"
    assert active["one@test"][0]["worker_pid"] == worker.process.pid
    with redis.Redis.from_url(server.url, decode_responses=True) as store:
        wait_until(lambda: settled(store), "all to be acknowledged")
        assert not store.llen("batch")
        keys = json.dumps([(key, store.type(key), _value(store, key)) for key in store.scan_iter()])
    for where in (json.dumps(seen, default=str), json.dumps(active), worker.output, keys):
        assert SECRET not in where
        assert KEY not in where
        assert PASSWORD not in where


def _value(store: redis.Redis, key: str) -> str:
    read = {"string": store.get, "hash": store.hgetall, "set": store.smembers}.get(store.type(key))
    if read is not None:
        return str(read(key))
    return str(store.lrange(key, 0, -1) if store.type(key) == "list" else store.zrange(key, 0, -1))
