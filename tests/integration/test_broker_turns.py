"""How a worker's broker channel lets other workers go first at the batch queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Consumer, Exchange, Queue
from kombu.asynchronous import Hub, set_event_loop

from brimful.names import QUEUES
from brimful_worker.broker import qos
from brimful_worker.broker import transport as broker
from brimful_worker.broker.fairness import Fairness
from brimful_worker.broker.unacked import UnackedMessages
from brimful_worker.local.server.valkey import Valkey
from support.waiting import wait_until

LARGE, SMALL = 64_000, 5_000


@pytest.fixture
def hub() -> Iterator[Any]:
    hub = Hub()
    set_event_loop(hub)
    yield hub
    hub.close()
    set_event_loop(None)


@pytest.mark.parametrize("queues", [QUEUES, ("batch",)], ids=["all", "batch"])
def test_only_a_large_shard_lets_other_workers_go_first(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch, queues: tuple[str, ...]
) -> None:
    fairness = Fairness(UnackedMessages())
    fairness.set_concurrency(100)
    for module in (broker, qos):
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
            wait_until(lambda: next(loop) is None and len(got) == len(sizes), "all messages", 30)
    assert got == sizes
    assert len(later) == 3, "a pause after each large one, and none after the others"
    assert all(0 < delay < 0.06 for delay in later)
    assert max(slept) < 0.06, "it asks again as soon as the pause is over"
