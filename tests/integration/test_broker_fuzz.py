"""Random queue items, from Redis to the pool: the worker lives, and every sender with an id gets an answer."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from brimful_worker.local.server.valkey import Valkey
from support.messages import ABSENT, item
from support.pool_worker import PoolWorker, client, settled
from support.waiting import wait_until

EXAMPLES = 1000 if os.environ.get("BRIMFUL_CHAOS") else 60
ITEMS = 12

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["t.plain", "t.nap", "celery", "application/json", "base64", "utf-8", "x-gzip", "\ud800"])
    | st.sampled_from(["2001-02-03T04:05:06", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59", "1e999", "[]"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        | st.fixed_dictionaries({"__type__": st.sampled_from(["datetime", "uuid", "decimal"]), "__value__": inner})
    ),
    max_leaves=6,
)


def one_of(names: str) -> st.SearchStrategy[str]:
    return st.sampled_from(names.split())


header_names = one_of(
    "lang task id shadow eta expires group group_index retries timelimit root_id parent_id argsrepr kwargsrepr origin "
    "ignore_result replaced_task_nesting stamped_headers stamps compression redelivered brimful_lost update get "
    "headers delivery_info properties args kwargs chord chain callbacks errbacks hostname is_eager utc"
)
property_names = one_of(
    "correlation_id reply_to delivery_mode delivery_info priority body_encoding delivery_tag expiration"
)
embed_names = one_of("callbacks errbacks chain chord group x")
part_names = one_of("body content-encoding content-type headers properties")
absent_or = st.just(ABSENT) | values


@st.composite
def items(draw: st.DrawFn) -> tuple[str, bytes]:
    """An id of its own, and a queue item that may have it."""
    id = uuid.UUID(int=draw(st.integers(0, 2**128 - 1))).hex
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return id, draw(st.binary(max_size=30))
    call: Any = [[1, 2], {}, {}]
    if kind in (1, 2):
        call = draw(values)
    elif kind == 3:
        call[draw(st.integers(0, 2))] = draw(values)
    elif kind == 4:
        call[2] = draw(st.dictionaries(embed_names, values, max_size=2))
    raw = item(
        id,
        call=call,
        headers=draw(st.dictionaries(header_names, absent_or, max_size=2)) if kind in (5, 6) else None,
        properties=draw(st.dictionaries(property_names, absent_or, max_size=2)) if kind == 7 else None,
    )
    if kind == 8:
        raw |= draw(st.dictionaries(part_names, values, max_size=2))
    text = json.dumps(raw if kind != 9 else draw(values)).encode()
    return id, text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 19)) == 0 else text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("valkey")) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def worker(server: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolWorker]:
    with PoolWorker(server.url, visibility_s=4, directory=tmp_path_factory.mktemp("worker")) as worker:
        yield worker.ready()


@pytest.fixture(scope="module")
def app(server: Valkey) -> Iterator[Celery]:
    with client(server.url) as app:
        yield app


def has(id: str, raw: bytes) -> bool:
    """Whether the sender of this item can wait for the id's result."""
    try:
        message = json.loads(raw)
        return bool(message["headers"]["id"] == id and not message["headers"].get("ignore_result"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return False


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not os.environ.get("BRIMFUL_CHAOS"),
    database=None,
    phases=(Phase.generate,),  # to shrink takes minutes, with a worker's start in each step,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batch=st.lists(items(), min_size=1, max_size=ITEMS, unique_by=lambda pair: pair[0]))
def test_no_item_ends_the_worker_or_leaves_its_sender_without_an_answer(
    batch: list[tuple[str, bytes]], worker: PoolWorker, app: Celery, server: Valkey
) -> None:
    with redis.Redis.from_url(server.url) as store:
        for _, raw in batch:
            store.lpush("celery", raw)
        probe = app.send_task("t.plain", (1, 2))
        wait_until(lambda: probe.ready() or worker.process.poll() is not None, "the probe")
        assert worker.process.poll() is None, worker.output[-4000:]

        def unanswered() -> list[str]:
            return [id for id, raw in batch if has(id, raw) and not app.AsyncResult(id).ready()]

        wait_until(lambda: not unanswered() or worker.process.poll() is not None, f"answers to {batch}")
        assert worker.process.poll() is None, worker.output[-4000:]


def test_afterwards_nothing_is_left_unacknowledged(worker: PoolWorker, server: Valkey) -> None:
    with redis.Redis.from_url(server.url) as store:
        wait_until(lambda: not store.llen("celery") and settled(store), "all to be given up")
    assert worker.process.poll() is None, worker.output[-4000:]
