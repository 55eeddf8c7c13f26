"""The pool's small parts: places, shares, the main thread's queue, leases, and what monitors may see."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from brimful.names import QUEUES, TASK_SAMPLE, TASK_SHARD
from brimful.runtime.redaction import describe
from brimful_worker.broker.fairness import Shares
from brimful_worker.broker.unacked import Leases
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


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def request(tag: str, queue: str = "batch", acknowledged: bool = False) -> Any:
    return SimpleNamespace(
        message=SimpleNamespace(delivery_tag=tag),
        delivery_info={"routing_key": queue},
        acknowledged=acknowledged,
        eta=None,
    )


class Weak(SimpleNamespace):
    __hash__ = object.__hash__


def weak(tag: str, queue: str = "batch", acknowledged: bool = False) -> Weak:
    return Weak(**vars(request(tag, queue, acknowledged)))


def test_leases_follow_the_living_requests() -> None:
    leases = Leases()
    one, two = weak("a"), weak("b", acknowledged=True)
    leases.add("a", one)
    leases.add("b", two)
    assert leases.renewable() == {"a"}
    del one
    gc.collect()
    assert leases.renewable() == set()


def test_owed_acknowledgements_are_held_until_paid() -> None:
    leases = Leases()
    leases.owe("a")
    assert leases.held() == {"a"}
    leases.paid({"a"})
    assert leases.held() == set()


def test_nobody_is_taken_for_dead_until_redis_has_been_there_a_while() -> None:
    monotonic, wall = Clock(), Clock()
    leases = Leases(monotonic, wall)
    leases.grace_s, leases.patience_s = 5.0, 10.0

    def renew(after: float) -> bool:
        monotonic.now += after
        wall.now += after
        leases.renewed(wall.now + 100)
        return leases.steady()

    assert not leases.steady()
    assert [renew(2.0) for _ in range(4)] == [False, False, False, True]
    assert leases.server_time() == wall.now + 100
    leases.lost()
    assert not leases.steady()
    assert [renew(3.0) for _ in range(3)] == [False, False, True]
    wall.now += 60  # the machine slept: its monotonic clock stood still, Redis's did not
    assert not leases.steady()
    assert not renew(1.0)


@pytest.mark.parametrize(("places", "batch", "urgent"), [(32, 24, 28), (8, 6, 7), (2, 1, 1)])
def test_no_queue_may_fill_a_worker(places: int, batch: int, urgent: int) -> None:
    leases = Leases()
    shares = Shares(leases)
    kept = []
    assert shares.full() == frozenset()
    shares.limit(places)
    for number in range(places):
        assert ("batch" in shares.full()) == (number >= batch)
        kept.append(weak(f"b{number}"))
        leases.add(f"b{number}", kept[-1])
    kept.clear()
    for number in range(places):
        assert shares.full() == (frozenset(QUEUES) - {"batch"} if number >= urgent else frozenset())
        kept.append(weak(f"i{number}", ("interactive", "celery")[number % 2]))
        leases.add(f"i{number}", kept[-1])


def test_a_worker_with_one_place_takes_what_comes() -> None:
    leases = Leases()
    shares = Shares(leases)
    shares.limit(1)
    held = weak("a")
    leases.add("a", held)
    assert shares.full() == frozenset()


def test_after_a_large_shard_the_others_come_first_for_a_moment() -> None:
    now = 100.0
    shares = Shares(Leases(), lambda: now)
    shares.took("batch", 10**6)
    assert shares.moment() == 0.0, "a worker without shares"
    shares.limit(64)
    shares.took("interactive", 10**6)
    assert shares.moment() == 0.0
    shares.took("batch", 2**15 - 1)
    assert shares.moment() == 0.0, "no shard, or a small one"
    shares.took("batch", 2**15)
    assert shares.moment() == pytest.approx(2**15 / 2**21), "as long as its loop takes"
    shares.took("batch", 10**9)
    assert shares.moment() == pytest.approx(0.05), "work waits no longer, also where there are no others"
    now += 0.05
    assert shares.moment() == 0.0
    assert shares.full() == frozenset()


def test_tasks_that_wait_for_their_time_take_no_share() -> None:
    leases = Leases()
    later = weak("a")
    later.eta, later.time_start = "tomorrow", None
    leases.add("a", later)
    assert not leases.in_hand()
    later.time_start = 1.0
    assert leases.in_hand() == {"batch": 1}


SECRET = "my secret prompt"


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ((SECRET,), {"max_tokens": 8}, ("(<1 request, 1 prompt>,)", "{'max_tokens': 8}")),
        (([SECRET, SECRET],), {}, ("(<1 request, 2 prompts>,)", "{}")),
        (([1, 2, 3],), {}, ("(<1 request, 1 prompt>,)", "{}")),
        ((), {"prompt": SECRET, "n": SECRET}, ("(<1 request, 1 prompt>,)", "{}")),
        (({"messages": [{"content": SECRET}], "n": 2},), None, ("(<1 request, 1 prompt>,)", "{'n': 2}")),
        (SECRET, SECRET, ("(<1 request, 1 prompt>,)", "{}")),
    ],
)
def test_a_sample_shows_how_much_was_asked_and_not_what(args: Any, kwargs: Any, shown: tuple[str, str]) -> None:
    assert describe(TASK_SAMPLE, args, kwargs) == shown


def test_a_shard_shows_its_names_and_its_size() -> None:
    shown = describe(TASK_SHARD, ("run", "s1", [{"request": {"prompt": SECRET}}] * 3), {})
    assert shown == ("(run, s1, <3 requests>)", "{}")


def test_other_peoples_tasks_are_theirs() -> None:
    assert describe("their.task", (1,), {}) is None
