"""Malformed messages: each costs only itself. The worker lives, the sender gets a FAILURE, a letter says why."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from brimful.state.dead_letters import read
from brimful_worker.local.server.valkey import Valkey
from support.messages import ABSENT, item
from support.pool_worker import PoolWorker, client, settled
from support.waiting import wait_until

SECRET = "prompt-canary-5d1e"
NAN = float("nan")

WITH_ID: dict[str, dict[str, Any]] = {
    "body is a number": {"raw_body": "5"},
    "body is null": {"raw_body": "null"},
    "body is an empty list": {"raw_body": "[]"},
    "body has two elements": {"raw_body": "[[], {}]"},
    "body has four elements": {"raw_body": "[[], {}, {}, {}]"},
    "body is a string": {"raw_body": f'"{SECRET}"'},
    "body is not JSON": {"raw_body": f"[[{SECRET}"},
    "body nests too deeply": {"raw_body": "[" * 100_000},
    "body holds a broken date": {"raw_body": json.dumps([[{"__type__": "datetime", "__value__": SECRET}], {}, {}])},
    "body is a list that names args": {"raw_body": '["args", {}, {}]'},
    "body is empty": {"body": ""},
    "body is absent": {"body": ABSENT},
    "body is an object": {"body": {}},
    "body is not base64": {"body": "%%%"},
    "args are an object": {"raw_body": "[{}, {}, {}]"},
    "args are null": {"raw_body": "[null, {}, {}]"},
    "kwargs are null": {"raw_body": '[["a"], null, {}]'},
    "kwargs are a list": {"raw_body": '[["a"], [], {}]'},
    "embed is a number": {"raw_body": "[[1, 2], {}, 5]"},
    "callbacks are a number": {"raw_body": '[[1, 2], {}, {"callbacks": 5}]'},
    "chain of numbers": {"raw_body": '[[1, 2], {}, {"chain": [5]}]'},
    "chord is a list": {"raw_body": '[[1, 2], {}, {"chord": []}]'},
    "content-type is null": {"content_type": None},
    "content-type is a number": {"content_type": 5},
    "content-type is unknown": {"content_type": "application/x-flurb"},
    "content-type is pickle": {"content_type": "application/x-python-serialize"},
    "content-encoding is a list": {"content_encoding": []},
    "task is a list": {"task": [1]},
    "task is null": {"task": None},
    "task is absent": {"task": ABSENT},
    "task is unknown": {"task": "no.such.task"},
    "timelimit is a string": {"headers": {"timelimit": "abc"}},
    "timelimit of three": {"headers": {"timelimit": [1, 2, 3]}},
    "timelimit of strings": {"headers": {"timelimit": ["1", "2"]}},
    "timelimit is not a number": {"headers": {"timelimit": [NAN, NAN]}},
    "stamps are a list": {"headers": {"stamps": [1], "stamped_headers": ["a"]}},
    "stamped_headers are a number": {"headers": {"stamped_headers": 7}},
    "stamped_headers of lists": {"headers": {"stamped_headers": [[1]], "stamps": {}}},
    "eta is no time": {"headers": {"eta": "yesterday-ish"}},
    "eta is a number": {"headers": {"eta": 5}},
    "eta is an object": {"headers": {"eta": {}}},
    "eta is in the year 1": {"headers": {"eta": "0001-01-01T00:00:00+14:00"}},
    "eta is in the year 9999": {"headers": {"eta": "9999-12-31T23:59:59-14:00"}},
    "expires is no time": {"headers": {"expires": "never"}},
    "expires is a list": {"headers": {"expires": []}},
    "retries are a string": {"headers": {"retries": "many"}},
    "group is a list": {"headers": {"group": [1]}},
    "root_id is an object": {"headers": {"root_id": {}}},
    "parent_id is an object": {"headers": {"parent_id": {}}},
    "shadow is a list": {"headers": {"shadow": [1]}},
    "argsrepr is a list": {"headers": {"argsrepr": [1]}},
    "compression is unknown": {"headers": {"compression": "application/x-squash"}},
    "compression is a list": {"headers": {"compression": [1]}},
    "compressed by nobody": {"headers": {"compression": "application/x-gzip"}},
    "headers are a string": {"headers_": "x"},
    "headers are a list": {"headers_": [1]},
    "headers are null": {"headers_": None},
    "delivery_info is a string": {"properties": {"delivery_info": "x"}},
    "delivery_info is absent": {"properties": {"delivery_info": ABSENT}},
    "delivery_info is empty": {"properties": {"delivery_info": {}}},
    "routing_key is a number": {"properties": {"delivery_info": {"exchange": "", "routing_key": 5}}},
    "delivery_tag is an object": {"properties": {"delivery_tag": {}}},
    "delivery_tag is a number": {"properties": {"delivery_tag": 5}},
    "delivery_tag is absent": {"properties": {"delivery_tag": ABSENT}},
    "delivery_tag is half a character": {"properties": {"delivery_tag": "\ud800"}},
    "body_encoding is unknown": {"properties": {"body_encoding": "rot13"}},
    "body_encoding is a number": {"properties": {"body_encoding": 5}},
    "reply_to is a list": {"properties": {"reply_to": [1]}},
}
"""Changes to a good message that keep its id."""
FAILED_BY_CELERY = ("eta is in the year 1", "eta is in the year 9999")
WITHOUT_ID: dict[str, bytes] = {
    "id is an object": json.dumps(item({"a": 1})).encode(),
    "id is null": json.dumps(item(None)).encode(),
    "id is a number": json.dumps(item(5)).encode(),
    "id is half a character": json.dumps(item("\ud800")).encode(),
    "properties are absent": json.dumps({"body": "", "headers": {}}).encode(),
    "properties are a list": json.dumps(item("x") | {"properties": [1]} | {"headers": {}}).encode(),
    "item is not JSON": b"hello",
    "item is empty": b"",
    "item is binary": b"\x80\x04\xff\x00\xfe",
    "item is a list": b"[]",
    "item is a number": b"5",
    "item is null": b"null",
    "item is a string": b'"x"',
    "item is an empty object": b"{}",
    "item is cut short": json.dumps(item("y")).encode()[:-9],
    "item nests too deeply": b"[" * 100_000,
    "item is a long number": b"9" * 10_000,
}


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


def spoilt(id: str, changes: dict[str, Any]) -> dict[str, Any]:
    changes = dict(changes)
    headers = changes.pop("headers_", ABSENT)
    message = item(id, **changes)
    return message if headers is ABSENT else message | {"headers": headers}


def lives(worker: PoolWorker, app: Celery) -> None:
    assert app.send_task("t.plain", (1, 2)).get(timeout=30) == 3
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
    assert app.AsyncResult(id).get(timeout=12) == 3
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
