"""Malformed messages: each costs only itself. The worker lives, the sender gets a FAILURE, a letter says why."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from brimful.state.dead_letters import read
from brimful_worker.local.server.valkey import Valkey
from support.messages import FAILED_BY_CELERY, SECRET, WITH_ID, WITHOUT_ID, item, spoilt
from support.pool_worker import PoolWorker, client, settled
from support.waiting import wait_until


@pytest.fixture
def worker(valkey: Valkey, tmp_path: Path) -> Iterator[PoolWorker]:
    with PoolWorker(valkey.url, visibility_s=4, directory=tmp_path) as worker:
        yield worker.ready()


@pytest.fixture
def app(valkey: Valkey) -> Iterator[Celery]:
    with client(valkey.url) as app:
        yield app


@pytest.fixture
def store(valkey: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey.url) as store:
        yield store


def lives(worker: PoolWorker, app: Celery) -> None:
    assert app.send_task("t.plain", (1, 2)).get(timeout=60) == 3
    assert worker.process.poll() is None, worker.output


def test_malformed_messages_with_an_id(worker: PoolWorker, app: Celery, store: redis.Redis) -> None:
    results = {}
    for form, changes in WITH_ID.items():
        id = uuid.uuid4().hex
        store.lpush("celery", json.dumps(spoilt(id, changes)))
        results[form] = app.AsyncResult(id)
    lives(worker, app)
    wait_until(lambda: settled(store), "all to be given up")
    unanswered = {form: result.state for form, result in results.items() if result.state != "FAILURE"}
    assert not unanswered, worker.output
    total, letters = read(store, 100)
    assert total == len(results) - len(FAILED_BY_CELERY)
    assert {letter.id for letter in letters} == {results[form].id for form in WITH_ID if form not in FAILED_BY_CELERY}
    assert all(letter.why and letter.sha256 and letter.queue == "celery" for letter in letters)
    assert worker.output.count("set aside a message") == total
    for seen in (worker.output, str([result.result for result in results.values()]), str(letters)):
        assert SECRET not in seen


def test_what_dead_workers_left_is_swept_past_junk(worker: PoolWorker, app: Celery, store: redis.Redis) -> None:
    id = uuid.uuid4().hex
    good, lost = item(id), item("x", headers={"brimful_lost": "many"}) | {"headers": None}
    for tag, value in {
        "a": b"\xff",
        "b": b"5",
        "c": b"[1, 2]",
        "d": json.dumps([{"headers": {}}, "", "celery"]),
        "e": json.dumps([item("y"), "no-such-exchange", "no-such-queue"]),
        "f": json.dumps([lost, "", "celery"]),
        "g": json.dumps([good, "no-such-exchange", "celery"]),
    }.items():
        store.hset("unacked", tag, value)
        store.zadd("unacked_index", {tag: 1})
    assert app.AsyncResult(id).get(timeout=60) == 3
    wait_until(lambda: settled(store), "the rest to be set aside")
    assert read(store, 0)[0] == 6  # "f" is put back, and set aside when it is received
    lives(worker, app)


def test_malformed_broadcasts_are_ignored(worker: PoolWorker, app: Celery, store: redis.Redis) -> None:
    for raw in (b"hello", b"5", b"{}", b"[]", b"\xff\xfe", json.dumps(item("x")).encode(), *WITHOUT_ID.values()):
        # Celery renews its subscription after a command that fails
        wait_until(lambda: store.publish("/0.celery.pidbox", raw), "the worker to listen")  # noqa: B023
    lives(worker, app)
    wait_until(lambda: app.control.ping(timeout=1.0), "an answer to a broadcast")


def test_malformed_messages_without_an_id(worker: PoolWorker, app: Celery, store: redis.Redis) -> None:
    for raw in WITHOUT_ID.values():
        store.lpush("celery", raw)
    lives(worker, app)
    wait_until(lambda: settled(store) and read(store, 0)[0] == len(WITHOUT_ID), "all to be given up")


def test_a_message_s_own_delivery_tag_does_not_matter(worker: PoolWorker, app: Celery, store: redis.Redis) -> None:
    ids = [uuid.uuid4().hex for _ in range(4)]
    for id, tag in zip(ids, ("the same", "the same", "\ud800", "unacked"), strict=True):
        store.lpush("celery", json.dumps(item(id, properties={"delivery_tag": tag})))
    assert [app.AsyncResult(id).get(timeout=60) for id in ids] == [3] * 4
    wait_until(lambda: settled(store), "all to be acknowledged")
