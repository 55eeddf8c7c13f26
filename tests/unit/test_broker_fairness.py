"""How much of a worker each queue may take."""

from __future__ import annotations

import pytest

from brimful.names import QUEUES
from brimful_worker.broker.fairness import Fairness
from brimful_worker.broker.unacked import UnackedMessages
from support.requests import FakeRequest


@pytest.mark.parametrize(("concurrency", "batch", "urgent"), [(32, 24, 28), (8, 6, 7), (2, 1, 1)])
def test_no_queue_may_fill_a_worker(concurrency: int, batch: int, urgent: int) -> None:
    messages = UnackedMessages()
    fairness = Fairness(messages)
    live = []
    assert fairness.full_queues() == frozenset()
    fairness.set_concurrency(concurrency)
    for number in range(concurrency):
        assert ("batch" in fairness.full_queues()) == (number >= batch)
        live.append(FakeRequest(f"b{number}"))
        messages.add(f"b{number}", live[-1])
    live.clear()
    for number in range(concurrency):
        assert fairness.full_queues() == (frozenset(QUEUES) - {"batch"} if number >= urgent else frozenset())
        live.append(FakeRequest(f"i{number}", queue=("interactive", "celery")[number % 2]))
        messages.add(f"i{number}", live[-1])


def test_a_worker_of_concurrency_one_takes_what_comes() -> None:
    messages = UnackedMessages()
    fairness = Fairness(messages)
    fairness.set_concurrency(1)
    live = FakeRequest("a")
    messages.add("a", live)
    assert fairness.full_queues() == frozenset()


def test_after_a_large_shard_the_other_workers_go_first_for_a_moment() -> None:
    now = 100.0
    fairness = Fairness(UnackedMessages(), lambda: now)
    fairness.received("batch", 10**6)
    assert fairness.pause_s() == 0.0, "no concurrency is set"
    fairness.set_concurrency(64)
    fairness.received("interactive", 10**6)
    assert fairness.pause_s() == 0.0
    fairness.received("batch", 2**15 - 1)
    assert fairness.pause_s() == 0.0, "no shard, or a small one"
    fairness.received("batch", 2**15)
    assert fairness.pause_s() == pytest.approx(2**15 / 2**21), "as long as its loop takes"
    fairness.received("batch", 10**9)
    assert fairness.pause_s() == pytest.approx(0.05), "the longest pause, also where there are no other workers"
    now += 0.05
    assert fairness.pause_s() == 0.0
    assert fairness.full_queues() == frozenset()
