"""How a worker ends: warm, soft, cold, and killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from brimful_worker.broker.qos import LOST_HEADER
from brimful_worker.broker.requests import MAX_LOST
from brimful_worker.local.server.valkey import Valkey
from support.chaos import long_only
from support.pool_worker import PoolWorker, client, settled
from support.waiting import wait_until

WAIT_S = 60


@pytest.fixture
def app(valkey: Valkey) -> Iterator[Celery]:
    with client(valkey.url) as app:
        yield app


@pytest.fixture
def store(valkey: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey.url, decode_responses=True) as store:
        yield store


def started(store: redis.Redis, results: list[Any]) -> None:
    wait_until(lambda: all(store.llen(f"starts:{result.id}") for result in results), "the tasks to start")


def once(store: redis.Redis, results: list[Any]) -> bool:
    return all(store.llen(f"ends:{result.id}") == 1 for result in results)


def test_a_warm_shutdown_finishes_running_tasks_and_a_cold_one_requeues_them(
    valkey: Valkey, app: Celery, store: redis.Redis
) -> None:
    with PoolWorker(valkey.url, concurrency=2, arguments=("--prefetch-multiplier", "3")) as worker:
        worker.ready()
        running = [app.send_task("t.nap", (1.0,)) for _ in range(2)]
        started(store, running)
        waiting = [app.send_task("t.nap", (0.01,)) for _ in range(6)]
        wait_until(lambda: store.hlen("unacked") == 6, "four more to be prefetched")
        assert worker.stop() == 0
    assert once(store, running)
    assert not any(store.llen(f"starts:{task.id}") for task in waiting)
    assert settled(store)
    assert store.llen("celery") == len(waiting)
    with PoolWorker(valkey.url, name="w2") as worker:
        wait_until(lambda: once(store, waiting), "another worker to do the rest", WAIT_S)
        wait_until(lambda: settled(store), "all to be acknowledged")
        cold_shutdown(worker, app, store)


def cold_shutdown(worker: PoolWorker, app: Celery, store: redis.Redis) -> None:
    """It gives running tasks back at once."""
    running = [app.send_task("t.nap", (600,)) for _ in range(3)]
    started(store, running)
    worker.stop(signal.SIGQUIT)
    assert settled(store)
    assert store.llen("celery") == 3
    assert all(store.llen(f"cancelled:{task.id}") == 1 for task in running)


def test_a_second_signal_turns_a_warm_shutdown_cold_and_the_next_worker_ends_softly(
    valkey: Valkey, app: Celery, store: redis.Redis
) -> None:
    with PoolWorker(valkey.url) as worker:
        worker.ready()
        long = app.send_task("t.nap", (600,))
        started(store, [long])
        worker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Warm shutdown" in worker.output, "the warm shutdown to begin")
        worker.stop(signal.SIGQUIT)
    assert settled(store)
    assert store.llen("celery") == 1
    with PoolWorker(valkey.url, name="soft", environment={"POOL_APP_SOFT_SHUTDOWN": "2"}) as worker:
        worker.ready()
        wait_until(lambda: store.llen(f"starts:{long.id}") == 2, "the long task to start again")
        short = app.send_task("t.nap", (0.5,))
        started(store, [short])
        worker.stop(signal.SIGQUIT)
    assert short.get(timeout=WAIT_S)["id"] == short.id
    assert settled(store)
    assert store.llen("celery") == 1  # the long one alone: the short one ended while the main thread slept


@pytest.mark.parametrize("rounds", [1, pytest.param(25, marks=[pytest.mark.chaos, long_only])])
def test_sigterm_under_load_loses_and_doubles_nothing(
    valkey: Valkey, app: Celery, store: redis.Redis, rounds: int
) -> None:
    tasks: list[Any] = []
    for number in range(rounds):
        with PoolWorker(valkey.url, name=f"w{number}", concurrency=8) as worker:
            worker.ready()
            batch = [app.send_task("t.nap", (0.05,)) for _ in range(60)]
            tasks += batch
            wait_until(lambda batch=batch: any(store.llen(f"ends:{task.id}") for task in batch), "some of them to end")
            assert worker.stop() == 0
            assert settled(store)
    with PoolWorker(valkey.url, name="last", concurrency=50):
        wait_until(lambda: sum(store.llen(f"ends:{task.id}") for task in tasks) >= len(tasks), "all to end", WAIT_S)
        wait_until(lambda: settled(store), "all to be acknowledged")
    assert once(store, tasks)


def test_a_killed_workers_tasks_are_done_by_another(valkey: Valkey, app: Celery, store: redis.Redis) -> None:
    with PoolWorker(valkey.url, name="doomed", visibility_s=3) as doomed:
        doomed.ready()
        tasks = [app.send_task("t.nap", (3.0,)) for _ in range(6)]
        started(store, tasks)
        doomed.process.kill()  # before any of them can end
        store.set("unacked_mutex", "somebody dead", px=2000)  # as left by one that died while it swept
        with PoolWorker(valkey.url, name="other", visibility_s=3) as other:
            other.ready()
            wait_until(lambda: once(store, tasks), "all to end", WAIT_S)
            wait_until(lambda: settled(store), "all to be acknowledged")
    assert all(store.llen(f"starts:{task.id}") == 2 for task in tasks)


def test_a_poison_task_ends_as_a_failure_and_costs_its_neighbours_nothing(
    valkey: Valkey, app: Celery, store: redis.Redis
) -> None:
    """All have been with workers that died, and one more death would set any of them aside."""
    headers = {LOST_HEADER: MAX_LOST - 1}
    tasks = [app.send_task(name, args, headers=headers) for name, args in [*[("t.nap", (0.2,))] * 4, ("t.die", ())]]
    tasks += [app.send_task("t.nap", (0.2,), headers=headers) for _ in range(4)]
    with PoolWorker(valkey.url, name="first", visibility_s=3) as worker:
        worker.process.wait(WAIT_S)
    with PoolWorker(valkey.url, name="second", visibility_s=3):
        wait_until(lambda: all(task.ready() for task in tasks), "all to end", WAIT_S)
        wait_until(lambda: settled(store), "all to be acknowledged")
    poison = tasks.pop(4)
    assert poison.state == "FAILURE"
    with pytest.raises(Exception, match="worker_lost"):
        poison.get(timeout=WAIT_S)
    assert store.llen(f"starts:{poison.id}") == 1
    assert [task.state for task in tasks] == ["SUCCESS"] * 8
    assert not store.hlen("unacked_begun")


def test_a_worker_that_starts_later_knows_what_was_revoked(valkey: Valkey, app: Celery, store: redis.Redis) -> None:
    with PoolWorker(valkey.url, concurrency=1) as busy:
        busy.ready()
        running = app.send_task("t.nap", (600,))
        started(store, [running])
        waiting, wanted = app.send_task("t.nap", (0.01,)), app.send_task("t.nap", (0.01,))
        app.control.revoke(waiting.id)
        wait_until(lambda: waiting.id in (app.control.inspect([busy.node]).revoked() or {}).get(busy.node, ()), "it")
        with PoolWorker(valkey.url, name="late"):
            wait_until(lambda: once(store, [wanted]), "the other task to be done")
            wait_until(lambda: waiting.state == "REVOKED", "the revocation")
    assert not store.llen(f"starts:{waiting.id}")


@pytest.mark.chaos
def test_a_cold_shutdown_ends_even_while_redis_hangs(valkey: Valkey, app: Celery, store: redis.Redis) -> None:
    with PoolWorker(valkey.url) as worker:
        worker.ready()
        started(store, [app.send_task("t.nap", (600,))])
        os.kill(valkey.pid, signal.SIGSTOP)
        try:
            worker.stop(signal.SIGQUIT, timeout=60)
        finally:
            os.kill(valkey.pid, signal.SIGCONT)
