"""Outages, broken connections and long tasks: every task runs exactly once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from brimful_worker.local.server.valkey import Valkey
from support.chaos import long_only
from support.pool_worker import PoolWorker, client, settled
from support.waiting import wait_until

WAIT_S = 60


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Valkey]:
    """The fleet's own server, which keeps its memory through kill -9."""
    with Valkey(tmp_path / "fleet", appendonly=True, options=("appendfsync always",)) as server:
        yield server


@pytest.fixture
def app(fleet: Valkey) -> Iterator[Celery]:
    with client(fleet.url) as app:
        yield app


@pytest.fixture
def notes(valkey: Valkey) -> Iterator[redis.Redis]:
    """On a server of their own, which stays."""
    with redis.Redis.from_url(valkey.url, decode_responses=True) as notes:
        yield notes


def started(notes: redis.Redis, results: list[Any]) -> None:
    wait_until(lambda: all(notes.llen(f"starts:{result.id}") for result in results), "the tasks to start")


def all_once(notes: redis.Redis, fleet: Valkey, results: list[Any]) -> None:
    """Each has run once, has its result, and is acknowledged."""
    wait_until(lambda: all(notes.llen(f"ends:{result.id}") for result in results), "all to end", WAIT_S)
    with redis.Redis.from_url(fleet.url, decode_responses=True) as store:
        wait_until(lambda: settled(store), "all to be acknowledged", WAIT_S)
        for result in results:
            assert '"SUCCESS"' in store.get(f"celery-task-meta-{result.id}")
    assert {notes.llen(f"starts:{result.id}") for result in results} == {1}
    assert {notes.llen(f"ends:{result.id}") for result in results} == {1}


def away(server: Valkey, seconds: float) -> None:
    server.kill()
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, "the outage to last")
    server.start()


@pytest.mark.parametrize(
    "seconds",
    [
        6.0,
        # longer than the visibility timeout: whoever is back first must not take the others' tasks for abandoned
        pytest.param(20.0, marks=[pytest.mark.chaos, long_only]),
    ],
)
def test_tasks_in_flight_run_once_through_an_outage(
    fleet: Valkey, valkey: Valkey, notes: redis.Redis, app: Celery, seconds: float
) -> None:
    with (
        PoolWorker(fleet.url, notes=valkey.url, name="a", visibility_s=4) as a,
        PoolWorker(fleet.url, notes=valkey.url, name="b", visibility_s=4) as b,
    ):
        a.ready()
        b.ready()
        tasks = [app.send_task("t.nap", (nap,)) for nap in (1.0, 3.0, seconds + 2.0) * 4]  # ends during and after it
        started(notes, tasks)
        later = [app.send_task("t.nap", (0.01,), countdown=seconds + 2) for _ in range(4)]
        with redis.Redis.from_url(fleet.url) as store:
            wait_until(lambda: store.hlen("unacked") == len(tasks + later), "all to be delivered")
        away(fleet, seconds)
        all_once(notes, fleet, tasks + later)
        more = [app.send_task("t.nap", (0.01,)) for _ in range(10)]
        all_once(notes, fleet, more)
        assert a.process.poll() is None
        assert b.process.poll() is None


def test_tasks_run_once_when_connections_are_cut_repeatedly(
    fleet: Valkey, valkey: Valkey, notes: redis.Redis, app: Celery
) -> None:
    with PoolWorker(fleet.url, notes=valkey.url) as worker:
        worker.ready()
        running = [app.send_task("t.nap", (2.0,)) for _ in range(4)]
        started(notes, running)
        asking = ("eval", "evalsha")
        with redis.Redis.from_url(fleet.url) as store:
            for _ in range(3):
                for kind in ("normal", "pubsub"):
                    store.client_kill_filter(_type=kind, skipme=True)
                wait_until(lambda: any(one["cmd"] in asking for one in store.client_list()), "the worker to be back")
        tasks = [app.send_task("t.nap", (0.01,)) for _ in range(10)]
        all_once(notes, fleet, running + tasks)
        assert worker.process.poll() is None


def test_long_tasks_and_tasks_with_a_countdown_start_once(
    fleet: Valkey, valkey: Valkey, notes: redis.Redis, app: Celery
) -> None:
    with (
        PoolWorker(fleet.url, notes=valkey.url, name="a", visibility_s=3),
        PoolWorker(fleet.url, notes=valkey.url, name="b", visibility_s=3) as b,
    ):
        b.ready()
        long = [app.send_task("t.nap", (12.0,)) for _ in range(2)]
        later = [app.send_task("t.nap", (0.01,), countdown=9) for _ in range(4)]
        all_once(notes, fleet, long + later)


def test_what_arrives_while_an_idle_worker_stands_still_is_not_lost_with_it(
    fleet: Valkey, valkey: Valkey, notes: redis.Redis, app: Celery
) -> None:
    """Redis gives a blocked BRPOP its message even if nobody reads it any more."""
    with PoolWorker(fleet.url, notes=valkey.url, name="a", visibility_s=3) as still:
        still.ready()
        assert app.send_task("t.plain", (1, 2)).get(timeout=60) == 3
        still.process.send_signal(signal.SIGSTOP)
        tasks = [app.send_task("t.nap", (0.01,)) for _ in range(4)]
        still.process.kill()
    with PoolWorker(fleet.url, notes=valkey.url, name="b", visibility_s=3):
        all_once(notes, fleet, tasks)
