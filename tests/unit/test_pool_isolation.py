"""Tasks that killed workers run alone."""

from __future__ import annotations

from collections.abc import Callable

from brimful_worker.pool.isolation import ALONE_AFTER, MOST_WAIT_S, TaskIsolation


class Tasks:
    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Callable[[], None]] = []
        self.running: set[int] = set()
        self.isolation = TaskIsolation(lambda _, call: self.timers.append(call), lambda: self.now)

    def begin(self, id: int, deaths: int = 0) -> None:
        self.isolation.begin(id, deaths, lambda: self.running.add(id))

    def end(self, id: int) -> None:
        self.running.remove(id)
        self.isolation.ended(id)


def test_tasks_without_deaths_run_together() -> None:
    tasks = Tasks()
    for id in range(5):
        tasks.begin(id, ALONE_AFTER - 1)
    assert len(tasks.running) == 5
    assert not tasks.timers


def test_a_suspect_waits_for_the_others_and_they_for_it() -> None:
    tasks = Tasks()
    tasks.begin(1)
    tasks.begin(2, ALONE_AFTER)
    tasks.begin(3, ALONE_AFTER)
    tasks.begin(4)
    tasks.begin(5)
    assert tasks.running == {1}
    for ended, running in ((1, {2}), (2, {3}), (3, {4, 5})):
        tasks.end(ended)
        assert tasks.running == running


def test_nothing_waits_for_ever() -> None:
    """A task that runs may wait for a suspect."""
    tasks = Tasks()
    tasks.begin(1)
    tasks.begin(2, ALONE_AFTER)
    tasks.begin(3)
    tasks.now = MOST_WAIT_S
    for timer in tasks.timers:
        timer()
    assert tasks.running == {1, 2, 3}


def test_what_waits_is_forgotten_with_the_connection() -> None:
    tasks = Tasks()
    tasks.begin(1, ALONE_AFTER)
    tasks.begin(2)
    tasks.isolation.forget_waiting()
    tasks.end(1)
    assert tasks.running == set()
