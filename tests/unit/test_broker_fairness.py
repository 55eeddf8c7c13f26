"""How much of a worker each queue may take."""

from __future__ import annotations

import pytest

from brimful.names import QUEUES
from brimful_worker.broker.fairness import Fairness
from brimful_worker.broker.unacked import UnackedMessages
from support.requests import FakeRequest


@pytest.mark.parametrize(("concurrency", "reserve"), [(32, 8), (8, 2), (2, 1)])
def test_either_kind_of_work_may_fill_the_concurrency_and_leaves_the_reserve_to_the_other(
    concurrency: int, reserve: int
) -> None:
    messages = UnackedMessages()
    fairness = Fairness(messages)
    live = []
    assert fairness.full_queues() == frozenset()
    assert fairness.reserve == 0
    fairness.set_concurrency(concurrency)
    assert fairness.reserve == fairness.prefetch_reserve == reserve
    for number in range(concurrency):
        assert fairness.full_queues() == frozenset()
        live.append(FakeRequest(f"b{number}"))
        messages.add(f"b{number}", live[-1])
    assert fairness.full_queues() == {"batch"}
    live.clear()
    for number in range(concurrency):
        assert fairness.full_queues() == frozenset()
        live.append(FakeRequest(f"i{number}", queue=("interactive", "celery")[number % 2]))
        messages.add(f"i{number}", live[-1])
    assert fairness.full_queues() == frozenset(QUEUES) - {"batch"}


def test_a_pool_that_scales_itself_sees_as_many_messages_as_it_may_run() -> None:
    messages = UnackedMessages()
    maximum = 8
    fairness = Fairness(messages, autoscale_maximum=lambda: maximum)
    fairness.set_concurrency(2)
    assert (fairness.reserve, fairness.prefetch_reserve) == (1, 2)
    live = [FakeRequest(f"b{number}") for number in range(8)]
    for number, request in enumerate(live):
        assert fairness.full_queues() == frozenset()
        messages.add(f"b{number}", request)
    assert fairness.full_queues() == {"batch"}
    maximum = 9
    assert fairness.full_queues() == frozenset()


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
    assert fairness.pause_s() == pytest.approx(2**15 / 2**19), "as long as its loop takes"
    fairness.received("batch", 10**9)
    assert fairness.pause_s() == pytest.approx(0.08), "the longest pause, also where there are no other workers"
    now += 0.08
    assert fairness.pause_s() == 0.0
    assert fairness.full_queues() == frozenset()
