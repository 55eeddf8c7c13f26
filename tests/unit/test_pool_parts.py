"""The pool's semaphore, and its queue of calls for the main thread."""

from __future__ import annotations

from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from brimful_worker.pool.mainthread import MainThread
from brimful_worker.pool.semaphore import Places


class Tasks:
    """Runs tasks through a semaphore as Celery's worker does."""

    def __init__(self, places: int) -> None:
        self.semaphore = LaxBoundedSemaphore(places)
        self.room = Places(self.semaphore, places)
        self.running = 0

    def come(self, number: int) -> None:
        for _ in range(number):
            self.semaphore.acquire(self._run)

    def end(self, number: int) -> None:
        for _ in range(number):
            self.running -= 1
            self.room.leave()

    def _run(self) -> None:
        self.running += 1


def test_growing_lets_in_just_as_many_more() -> None:
    tasks = Tasks(2)
    tasks.come(10)
    assert tasks.running == 2
    tasks.room.grow(3)
    assert tasks.running == 5
    tasks.end(1)
    assert tasks.running == 5


def test_shrinking_while_all_places_are_taken_waits_for_them() -> None:
    tasks = Tasks(4)
    tasks.come(10)
    tasks.room.shrink(2)
    tasks.end(2)
    assert tasks.running == 2
    tasks.end(1)
    assert tasks.running == 2
    tasks.room.grow(1)
    assert tasks.running == 3


def test_shrinking_takes_free_places_first() -> None:
    tasks = Tasks(4)
    tasks.come(1)
    tasks.room.shrink(2)
    tasks.come(5)
    assert tasks.running == 2


def test_after_a_reconnection_running_tasks_keep_their_places() -> None:
    tasks = Tasks(4)
    tasks.come(6)
    tasks.semaphore.clear()  # Celery does, and forgets who waited
    tasks.room.recount(tasks.running)
    tasks.come(3)
    assert tasks.running == 4
    tasks.end(2)
    assert tasks.running == 4


def test_a_closed_room_starts_nobody() -> None:
    tasks = Tasks(1)
    tasks.come(2)
    tasks.room.close()
    tasks.end(1)
    assert tasks.running == 0


def test_the_main_threads_calls_come_in_order_and_a_failure_stops_none() -> None:
    main, done = MainThread(), []

    def fail() -> None:
        raise ValueError

    for call in (lambda: done.append(1), fail, lambda: done.append(2)):
        main.put(call)
    main.drain()
    assert done == [1, 2]
