"""A dead letter that is written while Redis is away, refuses it, or never comes back."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from brimful.addresses import FleetAddress
from brimful.celery import app_for
from brimful.state.dead_letters import read
from brimful_worker.broker import dead_letters, results, transport
from brimful_worker.broker.dead_letters import DeadLetters
from brimful_worker.broker.unacked import UnackedMessages
from brimful_worker.local.server.valkey import Valkey
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings(
    "ignore:Call to deprecated setex:DeprecationWarning"
)  # Celery's, in its backend


class _Writer:
    """Dead letters of a process that holds one message for each."""

    def __init__(self, app: Celery) -> None:
        self.messages = UnackedMessages()
        self.letters = DeadLetters(self.messages, retry_s=0.05)
        self.letters.start(app, "w1@here")

    def set_aside(self) -> str:
        """Returns the id of the task that fails by it."""
        id = uuid.uuid4().hex
        qos = SimpleNamespace(leave_to_other_thread=lambda tag: None)
        message = SimpleNamespace(delivery_tag=id, channel=SimpleNamespace(qos=qos))
        given: dict[str, Any] = {"content": b"{", "headers": {"id": id}, "queue": "celery", "message": message}
        assert self.letters.set_aside("is not JSON", **given) == id
        return id


@pytest.fixture
def app(valkey: Valkey) -> Iterator[Celery]:
    app = app_for(FleetAddress(valkey.url))
    transport.install(app)
    results.install()
    yield app
    app.close()


@pytest.fixture
def writer(app: Celery, caplog: pytest.LogCaptureFixture) -> Iterator[_Writer]:
    caplog.set_level(logging.DEBUG, dead_letters.__name__)
    writer = _Writer(app)
    yield writer
    writer.letters.stop(10.0)


def _waits(caplog: pytest.LogCaptureFixture, tries: int = 3) -> None:
    wait_until(lambda: caplog.text.count("a dead letter waits for Redis") >= tries, "several tries to write it")


def test_a_letter_waits_for_redis_and_its_message_is_kept_meanwhile(
    valkey: Valkey, app: Celery, writer: _Writer, caplog: pytest.LogCaptureFixture
) -> None:
    first = writer.set_aside()
    wait_until(lambda: writer.messages.deferred_acks() == {first}, "the first letter, with Redis there")
    valkey.kill()
    second = writer.set_aside()
    _waits(caplog)
    assert writer.messages.deferred_acks() == {first}
    valkey.start()
    wait_until(lambda: writer.messages.deferred_acks() == {first, second}, "the message to be given up")
    with redis.Redis.from_url(valkey.url) as client:
        assert [letter.id for letter in read(client, 9)[1]][:1] == [second]
    assert app.AsyncResult(second).state == "FAILURE"


def test_a_redis_that_is_full_for_now_is_asked_again(
    valkey: Valkey, writer: _Writer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.config_set("maxmemory", "1")
        id = writer.set_aside()
        _waits(caplog)
        assert not writer.messages.deferred_acks()
        client.config_set("maxmemory", "0")
        wait_until(lambda: writer.messages.deferred_acks() == {id}, "the message to be given up")
        assert read(client, 9)[0] == 1


def test_a_redis_that_refuses_for_good_holds_no_message_back(
    valkey: Valkey, writer: _Writer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.set("brimful:dead_letters", "somebody else's")
    id = writer.set_aside()
    wait_until(lambda: writer.messages.deferred_acks() == {id}, "the message to be given up")
    assert "a dead letter could not be kept: WRONGTYPE" in caplog.text


def test_a_worker_that_stops_without_redis_leaves_the_message_to_the_next_one(
    valkey: Valkey, writer: _Writer, caplog: pytest.LogCaptureFixture
) -> None:
    valkey.kill()
    writer.set_aside()
    _waits(caplog, tries=1)
    writer.letters.stop(5.0)
    assert "brimful-dead-letters" not in {thread.name for thread in threading.enumerate()}
    assert not writer.messages.deferred_acks()
    valkey.start()
