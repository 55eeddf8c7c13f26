"""The pool's semaphore, and its queue of calls for the main thread."""

from __future__ import annotations

from kombu.asynchronous import Hub
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from brimful_worker.pool.mainthread import MainThreadQueue
from brimful_worker.pool.semaphore import PoolSemaphore


class Tasks:
    """Runs tasks through a semaphore as Celery's worker does."""

    def __init__(self, size: int) -> None:
        self.celerys = LaxBoundedSemaphore(size)
        self.semaphore = PoolSemaphore(self.celerys, size)
        self.running = 0

    def come(self, number: int) -> None:
        for _ in range(number):
            self.celerys.acquire(self._run)

    def end(self, number: int) -> None:
        for _ in range(number):
            self.running -= 1
            self.semaphore.release()

    def _run(self) -> None:
        self.running += 1


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
