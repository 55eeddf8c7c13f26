"""Several messages taken in one step: noted as unacknowledged as kombu notes them, in order, for free places only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Consumer, Exchange, Queue
from kombu.transport import redis as kombu_redis

from brimful.names import QUEUES
from brimful_worker.broker import qos
from brimful_worker.broker import taking as take
from brimful_worker.broker import transport as broker
from brimful_worker.broker.fairness import Fairness
from brimful_worker.broker.unacked import UnackedMessages
from brimful_worker.local.server.valkey import Valkey
from support.messages import item
from support.requests import FakeRequest
from support.waiting import wait_until

BOUND = [Queue(name, Exchange(name, "direct"), routing_key=name) for name in QUEUES]


class Taking:
    """A channel with places for so many messages. It holds what it receives until :meth:`end`."""

    def __init__(self, valkey: Valkey, hub: Any, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.redis = redis.Redis.from_url(valkey.url)
        self._messages = UnackedMessages()
        self.fairness = Fairness(self._messages)
        self.fairness.set_concurrency(places)
        for module in (take, qos):
            monkeypatch.setattr(module, "fairness", self.fairness)
        monkeypatch.setattr(qos, "unacked", self._messages)
        self.set_aside: list[str] = []
        monkeypatch.setattr(
            broker.dead_letters, "set_aside", lambda why, **letter: self.set_aside.append(str(letter["id"]))
        )
        self.app = Celery(broker=valkey.url)
        self.app.conf.broker_transport_options = {"queue_order_strategy": "priority"}
        broker.install(self.app)
        self._hub = hub
        self.got: list[str] = []
        self.held: list[FakeRequest] = []

    def put(self, *ids: str, queue: str = "interactive", **changes: Any) -> None:
        with self.app.connection_for_write() as connection, connection.channel() as channel:
            for one in BOUND:
                one(channel).declare()
        for id in ids:
            self.redis.lpush(queue, json.dumps(item(id, queue=queue, **changes)))

    def commands(self, name: str) -> int:
        return int(self.redis.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0))

    @property
    def asked(self) -> int:
        """How often queues were asked."""
        return self.commands("eval") + self.commands("evalsha")

    def _take(self, body: Any, message: Any) -> None:
        self.got.append(message.properties["correlation_id"])
        request = FakeRequest(message.delivery_tag, queue=message.delivery_info["routing_key"])
        request.message = message
        self._messages.add(message.delivery_tag, request)
        self.held.append(request)

    def leave(self, number: int) -> None:
        """The first so many that have not done so leave their places."""
        for request in [one for one in self.held if not one.left][:number]:
            request.left = True
            request.message.channel.qos.leave_place(request.message.delivery_tag)

    def end(self, number: int) -> None:
        for _ in range(number):
            request = self.held.pop(0)
            request.acknowledged = True
            request.message.ack()

    @contextmanager
    def consuming(self) -> Iterator[Any]:
        with self.app.connection_for_read() as connection, connection.channel() as channel:
            connection.register_with_event_loop(self._hub)
            with Consumer(channel, BOUND, callbacks=[self._take], accept=["json"]):
                yield self._hub.create_loop()

    def run(self, loop: Any, number: int) -> None:
        wait_until(lambda: next(loop) is None and len(self.got) >= number, f"{number} messages")


def test_as_many_as_have_places_are_taken_at_once(valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taking = Taking(valkey, hub, 8, monkeypatch)
    ids = [str(number) for number in range(24)]
    taking.put(*ids)
    with taking.consuming() as loop:
        taking.run(loop, 8)
        assert taking.got == ids[:8]
        assert taking.redis.llen("interactive") == 16
        noted = {json.loads(value)[0]["properties"]["correlation_id"] for value in taking.redis.hvals("unacked")}
        assert noted == set(ids[:8])
        assert taking.redis.zcard("unacked_index") == 8
        taking.end(8)
        taking.run(loop, 16)
        taking.end(8)
        taking.run(loop, 24)
        assert taking.asked < 12
        taking.end(8)
        wait_until(lambda: next(loop) is None and taking.redis.zcard("unacked_index") == 0, "the acknowledgements")
    assert taking.got == ids
    assert taking.redis.hlen("unacked") == 0


def test_what_was_taken_is_noted_as_kombu_notes_it(valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taking = Taking(valkey, hub, 4, monkeypatch)
    taking.put("first", "é \ud83d\ude00", queue="celery")
    with taking.consuming() as loop:
        taking.run(loop, 2)
        one, other = (json.loads(value) for value in taking.redis.hvals("unacked"))
        for noted in (one, other):
            del noted[0]["properties"]["delivery_tag"], noted[0]["properties"]["correlation_id"], noted[0]["headers"]
        assert one == other
        assert one[1:] == ["", "celery"]
    assert taking.redis.hlen("unacked") == 0  # given back
    assert taking.redis.llen("celery") == 2


def test_a_message_that_has_left_its_place_lets_the_next_one_come_before_it_is_acknowledged(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking = Taking(valkey, hub, 2, monkeypatch)
    taking.put("1", "2", "3", "4", "5")
    with taking.consuming() as loop:
        taking.run(loop, 2)
        wait_until(lambda: next(loop) is None and taking.asked >= 2, "batch to be asked")
        assert taking.fairness.backlog
        taking.leave(2)
        taking.run(loop, 4)
        assert taking.got == ["1", "2", "3", "4"], "two places"
        assert taking.redis.zcard("unacked_index") == 4
        taking.end(2)
        taking.leave(1)
        taking.run(loop, 5)
        assert not taking.fairness.backlog
        taking.end(3)
        wait_until(lambda: next(loop) is None and taking.redis.zcard("unacked_index") == 0, "the acknowledgements")
    assert taking.redis.hlen("unacked") == 0


def test_acknowledgements_that_wait_for_others_are_sent_before_the_channel_closes(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking = Taking(valkey, hub, 2, monkeypatch)
    taking.put("1", "2")
    with taking.consuming() as loop:
        taking.run(loop, 2)
        taking.leave(2)
        taking.end(2)
        assert taking.redis.zcard("unacked_index") == 2
    assert taking.redis.zcard("unacked_index") == taking.redis.hlen("unacked") == 0
    assert taking.redis.llen("interactive") == 0


def test_a_queue_that_is_known_to_be_empty_is_asked_again_when_redis_reports_a_change(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kombu_redis.Transport, "brpop_timeout", 3600)  # nothing is asked again by itself
    taking = Taking(valkey, hub, 2, monkeypatch)
    ids = [str(number) for number in range(20)]
    taking.put(*ids)
    with taking.consuming() as loop:
        taking.run(loop, 2)
        taking.end(1)
        taking.run(loop, 3)
        before = taking.asked
        for number in range(4, 19):
            taking.end(1)
            taking.run(loop, number)
        assert taking.asked - before <= 16, "one command a message: batch is not asked beside it"
        taking.put("batch", queue="batch")
        taking.run(loop, 19)
        assert taking.got == [*ids[:18], "batch"]


def test_a_queue_that_changes_just_before_only_others_are_asked_is_asked_next(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of the change is read before the reply, and is no reason to wait for another one."""
    monkeypatch.setattr(kombu_redis.Transport, "brpop_timeout", 3600)  # nothing is asked again by itself
    taking = Taking(valkey, hub, 2, monkeypatch)
    pause_s, before = taking.fairness.pause_s, list[str]()

    def put_before_asking() -> float:
        """It is looked at just before the queues are asked."""
        while before:
            taking.put(before.pop(), queue="batch")
        return pause_s()

    monkeypatch.setattr(taking.fairness, "pause_s", put_before_asking)
    taking.put("1", "2", "3")
    with taking.consuming() as loop:
        taking.run(loop, 2)
        wait_until(lambda: next(loop) is None and taking.asked >= 2, "batch alone to be asked")
        taking.end(1)
        taking.run(loop, 3)  # after the answer that batch is empty
        before.append("batch")
        taking.end(2)
        taking.run(loop, 4)
        assert taking.got == ["1", "2", "3", "batch"]


def test_queues_that_stay_empty_are_asked_ever_more_rarely(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In case the report of a change is missed."""
    taking, now, pauses = Taking(valkey, hub, 2, monkeypatch), [1000.0], list[float]()

    def wake_at_once(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds + 0.001
        qos.wake_after(0.0)

    monkeypatch.setattr(take, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(take, "wake_after", wake_at_once)
    with taking.consuming() as loop:
        wait_until(lambda: next(loop) is None and len(pauses) >= 5, "the fifth question")
        assert pauses[:5] == pytest.approx([1, 2, 4, 4, 4])
        taking.put("1")
        taking.run(loop, 1)
        pauses.clear()
        wait_until(lambda: next(loop) is None and len(pauses) >= 3, "the third question")
        assert pauses[:3] == pytest.approx([1, 2, 4])


def test_no_timer_of_kombu_wakes_an_idle_worker_every_second(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking, before = Taking(valkey, hub, 2, monkeypatch), monotonic()
    with taking.consuming():
        waiting = [timer for timer in hub.timer.queue if not timer.entry.canceled]
        assert len(waiting) >= 5
        assert all(timer.eta - before >= 10 for timer in waiting)


def test_messages_are_taken_though_redis_has_forgotten_the_script(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking = Taking(valkey, hub, 2, monkeypatch)
    taking.put("1", "2")
    with taking.consuming() as loop:
        taking.run(loop, 2)
        taking.end(1)
        wait_until(lambda: next(loop) is None and taking.commands("evalsha") > 0, "a question by hash")
        assert taking.commands("eval") == 1
        taking.redis.script_flush()
        taking.put("3")
        taking.run(loop, 3)
        assert taking.commands("eval") == 2
        assert taking.redis.zcard("unacked_index") == 2
    assert taking.got == ["1", "2", "3"]


def test_a_malformed_item_among_them_costs_only_itself(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking = Taking(valkey, hub, 10, monkeypatch)
    taking.put("good 1")
    taking.put("bad 1", properties={"delivery_info": {}})
    taking.put("bad 2", body=5)
    taking.put("bad 3", properties={"delivery_tag": ["list"]})
    taking.redis.lpush("interactive", "[" * 2000, "no JSON", "5")
    taking.put("good 2")
    with taking.consuming() as loop:
        taking.run(loop, 2)
        assert taking.got == ["good 1", "good 2"]
        assert taking.set_aside == ["bad 1", "bad 2", "bad 3", "None", "None", "None"]
        assert taking.redis.hlen("unacked") == taking.redis.zcard("unacked_index") == 8  # until the letters stand


def test_the_most_urgent_come_first(valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taking = Taking(valkey, hub, 10, monkeypatch)
    taking.put("late")
    taking.redis.rename("interactive", "interactive\x06\x166")
    taking.put("strange", queue="celery")
    taking.put("first", "second")
    with taking.consuming() as loop:
        taking.run(loop, 4)
    assert taking.got == ["first", "second", "strange", "late"]


def test_nothing_is_taken_from_a_server_that_takes_no_writes(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taking = Taking(valkey, hub, 2, monkeypatch)
    taking.put("1", "2", "3", "4")
    with taking.consuming() as loop:
        taking.run(loop, 2)
        taking.redis.config_set("min-replicas-to-write", "1")
        script = resources.files("brimful_worker.broker").joinpath("take.lua").read_text("utf-8")
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            taking.redis.eval(script, 3, "unacked", "unacked_index", "interactive", 2, 0, "tag", ',"",""]', 0)
        taking.end(2)
        wait_until(lambda: next(loop) is None and "cannot take tasks" in caplog.text, "Redis to refuse")
        assert taking.redis.llen("interactive") == 2
        taking.redis.config_set("min-replicas-to-write", "0")
        taking.run(loop, 4)
    assert taking.got == ["1", "2", "3", "4"]


def test_the_lock_for_abandoned_messages_is_taken_only_where_there_are_some(
    valkey: Valkey, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking = Taking(valkey, hub, 2, monkeypatch)
    monkeypatch.setattr(qos.unacked, "stable", lambda: True)
    with taking.app.connection_for_read() as connection, connection.channel() as channel:
        locks = taking.commands("set")
        channel.qos.restore_visible()
        assert taking.commands("set") == locks
        taking.redis.zadd("unacked_index", {"its worker died": 1.0})
        channel.qos.restore_visible()
        assert taking.commands("set") == locks + 1
        assert taking.redis.zcard("unacked_index") == 0
