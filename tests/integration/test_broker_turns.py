"""When a worker's broker channel asks its queues: at once when a place is free, and not just after a large shard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from kombu import Consumer, Exchange, Queue
from kombu.transport import redis as kombu_redis

from brimful.names import QUEUES
from brimful_worker.broker import qos, taking
from brimful_worker.broker import transport as broker
from brimful_worker.broker.fairness import Fairness
from brimful_worker.broker.unacked import UnackedMessages
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.pool.mainthread import MainThreadQueue
from support.requests import FakeRequest
from support.waiting import wait_until

LARGE, SMALL = 64_000, 5_000


@pytest.mark.parametrize("queues", [QUEUES, ("batch",)], ids=["all", "batch"])
def test_only_a_large_shard_lets_other_workers_go_first(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch, queues: tuple[str, ...]
) -> None:
    fairness = Fairness(UnackedMessages())
    fairness.set_concurrency(100)
    for module in (taking, qos):
        monkeypatch.setattr(module, "fairness", fairness)
    later: list[float] = []
    call_later: Callable[..., Any] = hub.call_later

    def note(delay: float, call: Callable[[], None], *arguments: Any) -> Any:
        later.append(delay)
        return call_later(delay, call, *arguments)

    monkeypatch.setattr(hub, "call_later", note)
    slept: list[float] = []
    poll: Callable[[float], Any] = hub.poller.poll

    def sleep(timeout: float) -> Any:
        events = poll(timeout)
        slept.extend([] if events else [timeout])
        return events

    monkeypatch.setattr(hub.poller, "poll", sleep)
    app = Celery(broker=valkey.url)
    broker.install(app)
    bound = [Queue(name, Exchange(name, "direct"), routing_key=name) for name in queues]
    sizes = [SMALL] * 40 + [LARGE] * 3 + [SMALL] * 2
    with app.connection_for_write() as connection:
        producer = connection.Producer()
        for size in sizes:
            producer.publish({"a": "x" * size}, exchange=bound[-1].exchange, routing_key="batch", declare=bound)
    got: list[int] = []

    def take(body: dict[str, str], message: Any) -> None:
        got.append(len(body["a"]))
        message.ack()

    with app.connection_for_read() as connection, connection.channel() as channel:
        connection.register_with_event_loop(hub)
        with Consumer(channel, bound, callbacks=[take]):
            loop = hub.create_loop()
            wait_until(lambda: next(loop) is None and len(got) == len(sizes), "all messages")
    assert got == sizes
    assert len(later) == 3, "a pause after each large one, and none after the others"
    assert all(0 < delay < 0.09 for delay in later)
    assert max(slept) < 0.09, "it asks again as soon as the pause is over"


def test_a_freed_place_takes_the_next_message_though_a_pop_without_its_queue_is_under_way(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = UnackedMessages()
    fairness = Fairness(messages)
    fairness.set_concurrency(4)
    for module in (taking, qos):
        monkeypatch.setattr(module, "fairness", fairness)
    monkeypatch.setattr(kombu_redis.Transport, "brpop_timeout", 60)  # no pop ends by itself during the test
    app = Celery(broker=valkey.url)
    broker.install(app)
    bound = [Queue(name, Exchange(name, "direct"), routing_key=name) for name in QUEUES]
    with app.connection_for_write() as connection:
        producer = connection.Producer()
        for number in range(40):
            producer.publish({"number": number}, exchange=bound[-1].exchange, routing_key="batch", declare=bound)
    main_thread = MainThreadQueue()
    main_thread.attach(hub)
    held: list[FakeRequest] = []
    got: list[int] = []

    def take(body: dict[str, int], message: Any) -> None:
        got.append(body["number"])
        held.append(FakeRequest(message.delivery_tag))
        held[-1].message = message
        messages.add(message.delivery_tag, held[-1])
        if len(held) == 4:
            threading.Timer(0.01, main_thread.put, (end,)).start()

    def end() -> None:
        for request in held:
            request.acknowledged = True
            request.message.ack()
        held.clear()

    with app.connection_for_read() as connection, connection.channel() as channel:
        connection.register_with_event_loop(hub)
        with Consumer(channel, bound, callbacks=[take]):
            loop = hub.create_loop()
            wait_until(lambda: next(loop) is None and len(got) == 40 and not held, "all messages")
        assert channel.client.zcard("unacked_index") == channel.client.hlen("unacked") == 0
    assert got == list(range(40))
