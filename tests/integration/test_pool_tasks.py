"""The pool with real tasks: states, results, events, control, limits. One worker serves the whole module."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded, WorkerLostError

from brimful_worker.local.server.valkey import Valkey
from support.pool_worker import PoolWorker, client, settled
from support.waiting import wait_until

WAIT_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("valkey")) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def worker(server: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolWorker]:
    with PoolWorker(server.url, concurrency=100, directory=tmp_path_factory.mktemp("worker")) as worker:
        yield worker.ready()


@pytest.fixture
def app(server: Valkey, worker: PoolWorker) -> Iterator[Celery]:
    with client(server.url) as app:
        yield app


@pytest.fixture
def store(server: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, decode_responses=True) as store:
        yield store


def started(store: redis.Redis, result: Any) -> None:
    wait_until(lambda: store.llen(f"starts:{result.id}"), "the task to start")


def test_coroutines_and_plain_functions_succeed(app: Celery) -> None:
    assert app.send_task("t.nap", (0.01,)).get(timeout=WAIT_S)["peak"] >= 1
    assert app.send_task("t.plain", (1, 2)).get(timeout=WAIT_S) == 3


def test_a_failure_keeps_its_exception_and_traceback(app: Celery) -> None:
    result = app.send_task("t.fail", ("no luck",))
    with pytest.raises(ValueError, match="no luck"):
        result.get(timeout=WAIT_S)
    assert result.state == "FAILURE"
    assert "pool_app.py" in result.traceback


def test_a_running_task_is_in_state_started(app: Celery, store: redis.Redis) -> None:
    result = app.send_task("t.nap", (60,))
    started(store, result)
    assert wait_until(lambda: result.state == "STARTED", "STARTED")
    app.control.revoke(result.id, terminate=True)


def test_request_and_current_task_are_the_coroutines_own(app: Celery) -> None:
    results = [app.send_task("t.whoami") for _ in range(20)]
    for result in results:
        own, child, current = result.get(timeout=WAIT_S)
        assert own == current == result.id
        assert app.AsyncResult(child).get(timeout=WAIT_S) == 3


def test_system_exit_fails_the_task_and_not_the_worker(app: Celery, worker: PoolWorker) -> None:
    with pytest.raises(WorkerLostError):
        app.send_task("t.exit").get(timeout=WAIT_S)
    assert app.send_task("t.plain", (1, 2)).get(timeout=WAIT_S) == 3


def test_a_rejected_task_is_delivered_again(app: Celery) -> None:
    assert app.send_task("t.give_back").get(timeout=WAIT_S) == "second time"


def test_a_hundred_tasks_run_at_once_on_one_loop(app: Celery, store: redis.Redis) -> None:
    results = [app.send_task("t.meet", (100,)) for _ in range(100)]
    assert [result.get(timeout=WAIT_S) for result in results] == [100] * 100
    wait_until(lambda: settled(store), "all to be acknowledged")


def test_inspect_shows_running_tasks(app: Celery, store: redis.Redis, worker: PoolWorker) -> None:
    result = app.send_task("t.nap", (60,))
    started(store, result)
    active = app.control.inspect([worker.node], timeout=5).active()[worker.node]
    assert [task["id"] for task in active] == [result.id]
    assert active[0]["time_start"]
    app.control.revoke(result.id, terminate=True)
    wait_until(
        lambda: app.control.inspect([worker.node], timeout=5).active() == {worker.node: []}, "the end to be seen"
    )


@pytest.mark.parametrize("task", ["t.nap", "t.stubborn", "t.plain_loop"])
def test_revoke_with_terminate_ends_a_running_task(app: Celery, store: redis.Redis, task: str) -> None:
    result = app.send_task(task, (60,) if task == "t.nap" else ())
    started(store, result)
    app.control.revoke(result.id, terminate=True)
    if task == "t.nap":
        wait_until(lambda: store.llen(f"cancelled:{result.id}"), "the coroutine's cancellation")
    if task == "t.stubborn":
        wait_until(lambda: store.llen(f"ends:{result.id}"), "the late success")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=WAIT_S)
    wait_until(lambda: settled(store), "it to be acknowledged")
    assert result.state == "REVOKED"


def test_a_hard_limit_fails_the_task_even_if_it_goes_on(app: Celery, store: redis.Redis) -> None:
    result = app.send_task("t.stubborn", time_limit=0.3)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=WAIT_S)
    wait_until(lambda: store.llen(f"ends:{result.id}"), "the late success")
    wait_until(lambda: settled(store), "it to be acknowledged")
    assert app.AsyncResult(result.id).state == "FAILURE"


@pytest.mark.parametrize("task", ["t.soft", "t.plain_loop"])
def test_a_soft_limit_can_be_caught_in_the_body(app: Celery, task: str) -> None:
    assert app.send_task(task, soft_time_limit=0.3).get(timeout=WAIT_S) == "soft"


def test_a_soft_limit_not_caught_fails_the_task(app: Celery) -> None:
    with pytest.raises(SoftTimeLimitExceeded):
        app.send_task("t.nap", (60,), soft_time_limit=0.3).get(timeout=WAIT_S)


def test_events_report_a_tasks_states_and_its_runtime(app: Celery, store: redis.Redis, worker: PoolWorker) -> None:
    seen: list[dict[str, Any]] = []
    listening = threading.Event()

    def capture() -> None:
        with client(str(app.conf.broker_url)) as own, own.connection() as connection:
            receiver = own.events.Receiver(connection, handlers={"*": seen.append})
            wake = receiver.itercapture(limit=None, timeout=WAIT_S, wakeup=False)
            for _ in wake:
                listening.set()
                if any(event["type"] == "task-revoked" for event in seen):
                    return

    thread = threading.Thread(target=capture)
    thread.start()
    wait_until(listening.is_set, "the first event (a heartbeat)")
    good = app.send_task("t.nap", (0.2,))
    good.get(timeout=WAIT_S)
    revoked = app.send_task("t.nap", (60,))
    started(store, revoked)
    app.control.revoke(revoked.id, terminate=True)
    thread.join(WAIT_S)
    mine = [event for event in seen if event.get("uuid") == good.id]
    assert [event["type"] for event in mine] == ["task-received", "task-started", "task-succeeded"]
    assert 0.2 <= mine[-1]["runtime"] < 10
    last = [event["type"] for event in seen if event.get("uuid") == revoked.id][-1]
    assert last == "task-revoked"


def test_the_pool_shrinks_and_grows(app: Celery, store: redis.Redis, worker: PoolWorker) -> None:
    def running() -> int:
        stats = app.control.inspect([worker.node], timeout=5).stats()
        return int(stats[worker.node]["pool"]["running"]) if stats else -1

    app.control.pool_shrink(98, destination=[worker.node], reply=True, timeout=5)
    naps = [app.send_task("t.nap", (60,)) for _ in range(6)]
    for nap in naps[:2]:
        started(store, nap)
    assert app.send_task("t.plain", (1, 2)).state == "PENDING"
    assert wait_until(lambda: running() == 2, "two at a time")
    app.control.pool_grow(2, destination=[worker.node], reply=True, timeout=5)
    wait_until(lambda: running() == 4, "four at a time")
    app.control.pool_grow(96, destination=[worker.node], reply=True, timeout=5)
    for nap in naps:
        started(store, nap)
    app.control.revoke([nap.id for nap in naps], terminate=True)
    wait_until(lambda: settled(store), "all to be acknowledged")


def test_an_unknown_task_is_refused_without_showing_its_arguments(app: Celery, worker: PoolWorker) -> None:
    app.send_task("t.unknown", ("my secret prompt",))
    wait_until(lambda: "t.unknown" in worker.output, "the refusal in the log")
    assert app.send_task("t.plain", (1, 2)).get(timeout=WAIT_S) == 3
    assert "my secret prompt" not in worker.output
