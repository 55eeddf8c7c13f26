"""Metrics of the broker's queues, read from a real Valkey."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import redis
from celery import Celery
from prometheus_client import CollectorRegistry

from brimful.addresses import FleetAddress
from brimful.names import SENT_AT, TASK_SAMPLE, TASK_SHARD
from brimful.state.broker_queues import UNACKED, list_names, read_oldest
from brimful.state.keys import FLEETS
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey, free_port
from brimful_worker.metrics.queues import QUEUE_CATALOGUE, QueueCollector
from support.messages import item

UNNAMED, EVALS = FleetAddress("redis://here"), FleetAddress("redis://here", "evals")


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    with sync_redis_client(valkey.url, decode_responses=False) as client:
        yield client


def message(id: str, *, age_s: float | None = None, queue: str = "batch") -> str:
    headers = {} if age_s is None else {SENT_AT: time.time() - age_s}
    return json.dumps(item(id, task=TASK_SHARD, queue=queue, headers=headers))


def scraped(collector: QueueCollector) -> dict[tuple[str, str, str], float]:
    """(name, key, queue) -> value."""
    registry = CollectorRegistry()
    registry.register(collector)
    samples = [sample for family in registry.collect() for sample in family.samples]
    return {(s.name, s.labels["key"], s.labels.get("queue", "")): s.value for s in samples}


def test_depth_and_oldest_age_of_every_queue(client: redis.Redis) -> None:
    client.hset(FLEETS, "", "0123abcd rehearsal")
    urgent, *_, least = list_names("batch")
    client.lpush(urgent, message("old", age_s=90), message("new", age_s=1))
    client.lpush(least, message("older", age_s=500))
    client.hset(UNACKED, "tag", message("running"))
    found = scraped(QueueCollector(client, UNNAMED))
    assert found["brimful_queue_messages", "0123abcd", "batch"] == 3
    assert found["brimful_queue_messages", "0123abcd", "interactive"] == 0
    assert found["brimful_queue_unacked_messages", "0123abcd", ""] == 1
    assert 500 <= found["brimful_queue_oldest_seconds", "0123abcd", "batch"] < 560
    assert found["brimful_queue_oldest_seconds", "0123abcd", "celery"] == 0
    assert {name for name, _, _ in found} == {metric.name for metric in QUEUE_CATALOGUE}


def test_a_named_fleet_s_queues_are_its_own(client: redis.Redis) -> None:
    client.hset(FLEETS, mapping={"": "aaaa", "evals": "bbbb"})
    client.lpush("evals.batch", message("theirs", queue="evals.batch"))
    assert scraped(QueueCollector(client, EVALS))["brimful_queue_messages", "bbbb", "batch"] == 1
    assert scraped(QueueCollector(client, UNNAMED))["brimful_queue_messages", "aaaa", "batch"] == 0


def test_a_message_without_a_time_ages_from_when_it_was_first_the_oldest(client: redis.Redis) -> None:
    client.lpush("celery", "{", message("second"))
    now = 100.0
    collector = QueueCollector(client, UNNAMED, clock=lambda: now)

    def age_s() -> float:
        return scraped(collector)["brimful_queue_oldest_seconds", "", "celery"]

    assert age_s() == 0
    now = 130.0
    assert age_s() == 30
    client.rpop("celery")
    now = 160.0
    assert age_s() == 0
    now = 165.0
    assert age_s() == 5


@pytest.mark.parametrize("sent", ["yesterday", True, None, float("inf"), [1], 1e400])
def test_a_time_that_is_none_is_no_age(client: redis.Redis, sent: object) -> None:
    client.lpush("batch", json.dumps(item("x", headers={SENT_AT: sent})))
    assert [oldest.age_s for oldest in read_oldest(client)] == [None]


def test_a_sender_whose_clock_is_ahead_sends_no_message_from_the_future(client: redis.Redis) -> None:
    client.lpush("batch", message("x", age_s=-3600))
    assert [oldest.age_s for oldest in read_oldest(client)] == [0.0]


def test_without_redis_there_are_no_series() -> None:
    with redis.Redis(port=free_port()) as nobody:
        assert scraped(QueueCollector(nobody, UNNAMED)) == {}


@pytest.mark.parametrize("task", [TASK_SAMPLE, "service.task"])
def test_every_message_of_the_app_says_when_it_was_sent(client: redis.Redis, valkey: Valkey, task: str) -> None:
    app = Celery("service", broker=valkey.url, set_as_current=False, amqp="brimful.runtime.redaction:DiscreetAMQP")
    app.send_task(task, ("a prompt",), queue="interactive")
    [oldest] = read_oldest(client)
    assert oldest.queue == "interactive"
    assert oldest.age_s is not None
    assert oldest.age_s < 60
    app.close()
