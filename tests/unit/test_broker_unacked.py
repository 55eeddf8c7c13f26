"""Which messages a worker renews and keeps, and when it may look for abandoned ones."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

from celery import Celery
from kombu.asynchronous import Hub, set_event_loop

from brimful_worker.broker.dead_letters import DeadLetters
from brimful_worker.broker.unacked import UnackedMessages
from support.requests import FakeRequest
from support.waiting import wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_messages_of_live_unacknowledged_requests_are_renewed() -> None:
    messages = UnackedMessages()
    live, acknowledged = FakeRequest("a"), FakeRequest("b", acknowledged=True)
    messages.add("a", live)
    messages.add("b", acknowledged)
    assert messages.to_renew() == {"a"}
    del live
    gc.collect()
    assert messages.to_renew() == set()


def test_a_message_that_is_being_set_aside_counts_for_its_queue() -> None:
    messages = UnackedMessages()
    letters = DeadLetters(messages)
    channel = SimpleNamespace(qos=SimpleNamespace(leave_to_other_thread=lambda tag: None))
    message = SimpleNamespace(delivery_tag="a", channel=channel)
    letters.set_aside("why", content="5", headers={}, queue="batch", message=message)
    assert messages.count_by_queue() == {"batch": 1}
    assert messages.to_renew() == {"a"}


def test_a_message_of_rabbitmq_is_acknowledged_by_the_main_thread_alone() -> None:
    messages, hub = UnackedMessages(), Hub()
    acknowledged: list[int] = []
    letters = DeadLetters(messages)
    message = SimpleNamespace(
        delivery_tag=7,
        channel=SimpleNamespace(),
        ack_log_error=lambda *_: acknowledged.append(threading.get_ident()),
    )
    set_event_loop(hub)
    with Celery("letters", broker="memory://", set_as_current=False) as app:
        letters.start(app, "w")
        letters.set_aside("why", content="5", headers={"ignore_result": True}, queue="batch", message=message)
        wait_until(lambda: hub.fire_timers() and acknowledged, "the letter to be written")
        letters.stop(60)
    set_event_loop(None)
    hub.close()
    assert acknowledged == [threading.get_ident()]
    assert (messages.kept(), messages.to_renew()) == (set(), set())


def test_a_message_is_kept_until_its_deferred_acknowledgement_is_sent() -> None:
    messages = UnackedMessages()
    request = FakeRequest("a")
    messages.add("a", request)
    messages.defer_ack("a")
    assert messages.kept() == {"a"}
    assert messages.to_renew() == set()
    messages.acks_sent({"a"})
    assert messages.kept() == set()


def test_redis_is_stable_after_a_time_of_renewals_without_a_gap() -> None:
    monotonic, wall = Clock(), Clock()
    messages = UnackedMessages(monotonic, wall)
    messages.stable_after_s, messages.gap_s = 5.0, 10.0

    def renew(after: float) -> bool:
        monotonic.now += after
        wall.now += after
        messages.renewed(wall.now + 100)
        return messages.stable()

    assert not messages.stable()
    assert [renew(2.0) for _ in range(4)] == [False, False, False, True]
    assert messages.server_time() == wall.now + 100
    messages.renewal_failed()
    assert not messages.stable()
    assert [renew(3.0) for _ in range(3)] == [False, False, True]
    wall.now += 60  # the machine slept: its monotonic clock stood still, Redis's did not
    assert not messages.stable()
    assert not renew(1.0)


def test_tasks_that_wait_for_their_eta_do_not_count_for_their_queue() -> None:
    messages = UnackedMessages()
    later = FakeRequest("a", eta="tomorrow")
    messages.add("a", later)
    assert not messages.count_by_queue()
    messages.begun("a", "batch")
    assert messages.count_by_queue() == {"batch": 1}


def test_a_message_counts_for_its_queue_until_it_is_acknowledged_or_its_request_is_gone() -> None:
    messages = UnackedMessages()
    live = [FakeRequest(tag, queue=queue) for tag, queue in (("a", "batch"), ("b", "batch"), ("c", "celery"))]
    for request in live:
        messages.add(request.message.delivery_tag, request)
    assert messages.count_by_queue() == {"batch": 2, "celery": 1}
    messages.acknowledged("a")
    assert messages.count_by_queue() == {"batch": 1, "celery": 1}
    messages.remove("c")
    assert messages.count_by_queue() == {"batch": 1}
    again = FakeRequest("b", queue="batch")  # delivered again: only the later delivery counts
    messages.add("b", again)
    live.clear()
    gc.collect()
    assert messages.count_by_queue() == {"batch": 1}
    del request, again
    gc.collect()
    assert not messages.count_by_queue()
