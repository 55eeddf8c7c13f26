"""The pool's semaphore, its queue of calls for the main thread, and its batches of events."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.events.dispatcher import EventDispatcher
from celery.worker.consumer.consumer import Consumer
from kombu.asynchronous import Hub
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from brimful_worker.pool.events import EventBatches
from brimful_worker.pool.mainthread import MainThreadQueue
from brimful_worker.pool.semaphore import PoolSemaphore


class Tasks:
    """Runs tasks through a semaphore as Celery's worker does."""

    def __init__(self, size: int) -> None:
        self.celerys = LaxBoundedSemaphore(size)
        self.semaphore = PoolSemaphore(self.celerys, size)
        self.begun: list[int] = []
        self._ids = itertools.count()

    @property
    def running(self) -> int:
        return len(self.begun)

    def come(self, number: int) -> None:
        for _ in range(number):
            self.celerys.acquire(self._run)

    def end(self, number: int) -> None:
        for _ in range(number):
            self.semaphore.release(self.begun.pop(0))

    def _run(self) -> None:
        self.begun.append(next(self._ids))


def test_growing_lets_in_just_as_many_more() -> None:
    tasks = Tasks(2)
    tasks.come(10)
    assert tasks.running == 2
    tasks.semaphore.grow(3)
    assert tasks.running == 5
    tasks.end(1)
    assert tasks.running == 5


def test_shrinking_a_full_pool_waits_for_tasks_to_end() -> None:
    tasks = Tasks(4)
    tasks.come(10)
    tasks.semaphore.shrink(2)
    tasks.end(2)
    assert tasks.running == 2
    tasks.end(1)
    assert tasks.running == 2
    tasks.semaphore.grow(1)
    assert tasks.running == 3


def test_shrinking_takes_free_places_first() -> None:
    tasks = Tasks(4)
    tasks.come(1)
    tasks.semaphore.shrink(2)
    tasks.come(5)
    assert tasks.running == 2


def test_after_a_reconnection_running_tasks_count() -> None:
    tasks = Tasks(4)
    tasks.come(6)
    tasks.celerys.clear()  # Celery does, and forgets who waited
    tasks.semaphore.resync(tasks.running)
    tasks.come(3)
    assert tasks.running == 4
    tasks.end(2)
    assert tasks.running == 4


def test_a_body_that_has_ended_lets_the_next_task_in_once() -> None:
    tasks = Tasks(2)
    tasks.come(10)
    assert tasks.semaphore.leave(0)
    assert tasks.begun == [0, 1, 2]
    tasks.end(1)
    assert tasks.begun == [1, 2], "its place was free already"
    tasks.end(1)
    assert tasks.begun == [2, 3]


def test_no_more_results_are_left_to_be_stored_than_there_are_places() -> None:
    tasks = Tasks(2)
    tasks.come(10)
    assert [tasks.semaphore.leave(task) for task in (0, 1, 2, 3)] == [True, True, False, False]
    assert tasks.running == 4
    tasks.end(1)  # the first is stored
    assert tasks.semaphore.leave(2)
    assert tasks.running == 4


def test_after_a_reconnection_those_that_have_left_their_places_do_not_count() -> None:
    tasks = Tasks(2)
    tasks.come(2)
    tasks.semaphore.leave(0)
    tasks.celerys.clear()
    tasks.semaphore.resync(tasks.running)
    tasks.come(3)
    assert tasks.begun == [0, 1, 2]


def test_a_closed_semaphore_starts_nothing() -> None:
    tasks = Tasks(1)
    tasks.come(2)
    tasks.semaphore.close()
    tasks.end(1)
    assert tasks.running == 0


def test_resizing_grows_or_shrinks() -> None:
    tasks = Tasks(2)
    tasks.come(10)
    tasks.semaphore.resize(4)
    assert tasks.running == 4
    tasks.semaphore.resize(3)
    tasks.end(2)
    assert tasks.running == 3


def test_what_a_call_leaves_to_the_hub_does_not_wait_for_the_hub_to_wake() -> None:
    hub, main, done = Hub(), MainThreadQueue(), []
    main.attach(hub)
    main.put(hub.call_soon, lambda: hub.call_soon(done.append, "acknowledged"))
    main.drain()
    hub.close()
    assert done == ["acknowledged"]


def test_the_main_threads_calls_are_made_in_order_and_a_failure_stops_none() -> None:
    main, done = MainThreadQueue(), []

    def fail() -> None:
        raise ValueError

    for call in (lambda: done.append(1), fail, lambda: done.append(2)):
        main.put(call)
    main.drain()
    assert done == [1, 2]


class Published:
    """A consumer with Celery's own dispatcher, and a producer that keeps what it is given."""

    def __init__(self, hub: Hub | None) -> None:
        self.hub = hub
        self.messages: list[list[dict[str, Any]]] = []
        self.batches = EventBatches()
        with Celery("events", broker="memory://", set_as_current=False) as app:
            self.event_dispatcher = EventDispatcher(
                app.connection_for_write(), app=app, buffer_group=["task"], on_send_buffered=self._buffered
            )
        self.event_dispatcher.producer = SimpleNamespace(publish=lambda events, **_: self.messages.append(events))

    def _buffered(self) -> None:
        self.batches.buffered(self)

    def _flush_events(self) -> None:
        Consumer._flush_events(self)

    def send(self, number: int) -> None:
        for one in range(number):
            self.event_dispatcher.send("task-started", uuid=str(one))


def test_events_of_a_moment_are_one_message() -> None:
    hub = Hub()
    published = Published(hub)
    published.send(30)
    assert published.messages == []
    published.batches.flush()
    published.send(5)
    published.batches.flush()
    assert [len(events) for events in published.messages] == [30, 5]
    assert len(hub.timer) == 2
    hub.close()


def test_many_events_do_not_wait() -> None:
    hub = Hub()
    published = Published(hub)
    published.send(250)
    assert [len(events) for events in published.messages] == [100, 100]
    published.batches.flush()
    assert sum(map(len, published.messages)) == 250
    hub.close()
