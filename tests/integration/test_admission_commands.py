"""The commands that one process sends to Redis, against a server whose answers the test chooses.

Times are the test's own, and pass only where it says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from brimful.errors import RedisRefused, RedisUnreachable
from brimful_worker.admission import Limits, SchemaMismatch, ScriptFailed, lease, lease_table, local_state, waiters
from brimful_worker.admission.errors import TooFar
from brimful_worker.admission.turns import NO_FLOW
from brimful_worker.admission.waiters import Queue, Waiter
from brimful_worker.admission.wire import coordinator as coordinator_module
from brimful_worker.admission.wire import eviction, outgoing, redis_clock
from brimful_worker.admission.wire import rpc as rpc_module
from brimful_worker.admission.wire.coordinator import Coordinator
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.admission.wire.rpc import Answer, Rpc
from brimful_worker.admission.wire.subscriber import Subscriber
from support.boot_clock import BootClock
from support.scripted_redis import Reply, ScriptedRedis
from support.waiting import wait_until_async

TAG = "tag"
OK: Reply = {"status": "ok"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> BootClock:
    return BootClock().used_by(
        monkeypatch,
        coordinator_module,
        rpc_module,
        eviction,
        outgoing,
        redis_clock,
        lease,
        lease_table,
        local_state,
        waiters,
    )


def answers(*replies: Reply) -> Callable[[dict[str, Any]], Reply]:
    """One after the other."""
    following: Iterator[Reply] = iter(replies)
    return lambda message: next(following)


class TestRpc:
    @asynccontextmanager
    async def rpc(self, *replies: Reply, clock: RedisClock | None = None) -> AsyncIterator[tuple[Rpc, ScriptedRedis]]:
        async with ScriptedRedis(answers(*replies)) as server:
            subscriber = Subscriber(server.url, TAG, "ab", lambda _: None)
            running = asyncio.create_task(subscriber.run())
            rpc = Rpc(server.url, TAG, "ab", subscriber, clock or RedisClock())
            try:
                yield rpc, server
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await rpc.close()

    async def test_what_is_added_to_each_command(self, clock: BootClock) -> None:
        redis_clock = RedisClock()
        async with self.rpc(OK, {"status": "ok", "clock": "c2"}, OK, clock=redis_clock) as (rpc, server):
            assert rpc.commands == 0
            answer = await rpc.call({"command": 1}, lambda: 5)
            assert answer == Answer(clock.now, clock.now, clock.now, {"status": "ok"})
            redis_clock.note(clock.now, clock.now, clock.ms)
            redis_clock.id = "c1"
            await rpc.call({"command": 2}, lambda: 6)
            assert redis_clock.bound_ms(clock.now) is None, "what was known of another clock is of no use"
            await rpc.call({"command": 3}, lambda: 7)
            assert rpc.commands == 3
        marks = [message.pop("new_epoch") for message in server.messages]
        assert len(set(marks)) == 3
        assert server.messages == [
            {"command": 1, "server": "scripted", "clock": "", "read": 0, "seen": 5},
            {
                "command": 2,
                "server": "scripted",
                "clock": "c1",
                "read": clock.ms,
                "seen": 6,
                "bound_ms": clock.ms + 250,
                "least_ms": clock.ms - 2,
            },
            {"command": 3, "server": "scripted", "clock": "c2", "read": 0, "seen": 7},
        ]

    async def test_a_command_is_sent_until_it_is_answered(
        self, clock: BootClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with self.rpc(OK, None, OK, None, None, None, OK) as (rpc, server):
            for command in (1, 2, 3):
                await rpc.call({"command": command}, lambda: 0)
                assert rpc.failure is None
                assert bool(caplog.records) == (command == 3), "one broken connection is not worth a line"
        assert [message["command"] for message in server.messages] == [1, 2, 2, 3, 3, 3, 3]
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
        assert "Redis cannot be reached: " in caplog.messages[0]
        assert "Nothing is started until this ends" in caplog.messages[0]
        assert "Redis answers again" in caplog.messages[1]

    @pytest.mark.parametrize(
        ("text", "kind", "level"),
        [
            ("SCRIPTERROR no such field", ScriptFailed, logging.ERROR),
            ("NOPERM this user may not", RedisRefused, logging.WARNING),
            (None, RedisUnreachable, logging.WARNING),
        ],
    )
    async def test_why_there_is_no_answer(
        self, clock: BootClock, caplog: pytest.LogCaptureFixture, text: str | None, kind: type[Exception], level: int
    ) -> None:
        failures: list[Exception | None] = []

        def seen() -> int:
            failures.append(rpc.failure)
            return 0

        async with self.rpc(text, text, text, OK) as (rpc, _):
            await rpc.call({}, seen)
        assert [type(failure) for failure in failures] == [type(None), kind, kind, kind]
        assert caplog.records[0].levelno == level
        assert len(caplog.records) == 2, "once, and once that it has ended"

    async def test_an_answer_that_does_not_come_in_time(self, clock: BootClock) -> None:
        failures: list[str] = []

        def seen() -> int:
            failures.append(str(rpc.failure))
            rpc.set_timeout(0.2 if len(failures) == 1 else 60.0)
            return 0

        async with self.rpc({}, None, OK) as (rpc, _):
            await rpc.call({}, seen)
        assert ["set BRIMFUL_LEASE_S" in text for text in failures] == [False, True, False]

    async def test_whether_the_server_evicts_is_looked_up_every_minute(self, clock: BootClock) -> None:
        async with self.rpc(OK, OK, OK, OK) as (rpc, server):
            for seconds in (0, 59, 1, 1):
                clock.now += seconds
                await rpc.call({}, lambda: 0)
        assert server.sections == ["server", "memory", "memory"]

    async def test_a_clock_that_stands_still_is_waited_for(self, clock: BootClock) -> None:
        frozen: Reply = {"status": "frozen", "now": 50, "real": 70, "clock": "c"}
        async with self.rpc(frozen, OK) as (rpc, server):
            answer = await rpc.call({}, lambda: 0)
        assert answer.reply == OK
        assert "waited" not in server.messages[0]
        assert server.messages[1]["waited"] == [50, 0, "c", 320]

    @pytest.mark.parametrize(
        ("ahead_ms", "stepped"), [(250, [None, None, None, True]), (251, [None, True, True, True])]
    )
    async def test_a_command_that_came_late(self, clock: BootClock, ahead_ms: int, stepped: list[bool | None]) -> None:
        """It says so where the clock was stepped forward, or where that goes on."""
        redis_clock = RedisClock()
        redis_clock.note(clock.now, clock.now, clock.ms)
        late: Reply = {"status": "late", "now": clock.ms + ahead_ms}
        async with self.rpc(late, late, late, OK, clock=redis_clock) as (rpc, server):
            await rpc.call({}, lambda: 0)
        assert [message.get("stepped") for message in server.messages] == stepped

    async def test_one_slow_answer_does_not_make_redis_too_far(self, clock: BootClock) -> None:
        async with self.rpc(OK) as (rpc, server):
            answer = await rpc.call({}, lambda: 0)
            slow = Answer(clock.now, clock.now, clock.now + 3, answer.reply)
            trips = iter((1.0, 0.6, 0.5))

            def ping() -> None:
                clock.now += next(trips)

            server.on_ping = ping
            await rpc.check_distance(slow, 2.0)
            assert not list(trips)
            trips = iter([0.6] * 5)
            with pytest.raises(TooFar, match="600 ms"):
                await rpc.check_distance(slow, 2.0)


class Fleet:
    """Answers as a fleet of one process in epoch "e1" gets; ``replies`` are fields of the next answers."""

    def __init__(self, clock: BootClock) -> None:
        self.clock = clock
        self.replies: list[dict[str, Any]] = []
        self.answered = 0
        self.limits = Limits().fields()

    def __call__(self, message: dict[str, Any]) -> Reply:
        joined = {"base": 0, "limits": self.limits, "rev": "7"} if "join" in message else {}
        fields = self.replies.pop(0) if self.replies else {}
        self.answered += 1
        return {"status": "ok", "epoch": "e1", "now": self.clock.ms, "spent": self.answered, **joined, **fields}


@pytest.fixture
def fleet(clock: BootClock) -> Fleet:
    return Fleet(clock)


class Conversation:
    def __init__(self, server: ScriptedRedis, coordinator: Coordinator) -> None:
        self.server, self.coordinator = server, coordinator
        self.running = asyncio.create_task(coordinator.run())

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.server.messages

    async def sent(self, number: int) -> dict[str, Any]:
        """The message of this number, counted from 1."""
        await wait_until_async(lambda: len(self.messages) >= number, f"{number} commands")
        return self.messages[number - 1]

    async def settled(self) -> None:
        """Nothing is to be sent, and all answers have been taken: each carries its number."""
        state, view = self.coordinator.local_state, self.coordinator.fleet_view

        def settled() -> bool:
            return not state.outgoing and view.join_fields(0.0).get("spent") == len(self.messages)

        await wait_until_async(settled, "all is sent and answered")

    def ask(self) -> Waiter:
        state = self.coordinator.local_state
        return state.ask(Queue.BATCH, NO_FLOW, 0, 1000.0)


@pytest.fixture
async def talk(fleet: Fleet) -> AsyncIterator[Conversation]:
    """A process that has joined."""
    async with conversation(fleet) as talk:
        await talk.coordinator.joined
        yield talk


@asynccontextmanager
async def conversation(fleet: Fleet, **limits: Any) -> AsyncIterator[Conversation]:
    async with ScriptedRedis(fleet) as server:
        talk = Conversation(server, Coordinator(server.url, TAG, Limits(**limits), lambda **n: json.dumps(n)))
        try:
            yield talk
        finally:
            talk.running.cancel()
            await asyncio.gather(talk.running, return_exceptions=True)


async def test_a_process_joins_asks_and_leaves(talk: Conversation) -> None:
    waiter = talk.ask()
    asked = await talk.sent(2)
    joined = talk.messages[0]
    assert (joined["command"], joined["epoch"], joined["rev"], joined["lease_ms"]) == (1, "", "", 8000)
    assert joined["join"] == {"defaults": Limits().fields(), "leases": [], "starts": []}
    assert json.loads(joined["worker"])["rtt_ms"] == 0
    assert (asked["command"], asked["epoch"], asked["rev"]) == (2, "e1", "7")
    assert asked["ask"] == [[waiter.id, 0]]
    assert "join" not in asked
    assert "leave" not in asked
    await talk.settled()
    talk.coordinator.leave()
    left = await talk.sent(3)
    assert left["leave"] is True
    await talk.running
    assert waiter.future.cancelled()


async def test_an_idle_process_is_heard_of_within_its_lease(talk: Conversation, clock: BootClock) -> None:
    await talk.settled()
    clock.now += 6.001
    beat = await talk.sent(2)
    assert "ask" not in beat


@pytest.mark.parametrize("holds", [False, True])
async def test_a_process_that_waits_or_holds_speaks_more_often(
    talk: Conversation, fleet: Fleet, clock: BootClock, *, holds: bool
) -> None:
    waiter = talk.ask()
    await talk.sent(2)
    if holds:
        talk.server.publish({"epoch": "e1", "now": clock.ms, "grants": [[1, waiter.id, clock.ms]]})
        held = await waiter.future
        assert list(talk.coordinator.local_state.leases.held) == [held.id]
    await talk.settled()
    clock.now += 8 / 3 + 0.001
    beat = await talk.sent(3)
    assert beat.get("renew") == ([waiter.id] if holds else None)


async def test_a_waiting_process_that_receives_no_pushes_polls(talk: Conversation, clock: BootClock) -> None:
    talk.server.refuse_subscribing = True
    talk.server.cut_subscriber()
    await talk.sent(2)  # something may have been missed
    talk.ask()
    await talk.sent(3)
    for number in (4, 5):
        await talk.settled()
        clock.now += 0.251
        await talk.sent(number)


async def test_a_process_that_waits_for_nothing_does_not_poll(talk: Conversation, clock: BootClock) -> None:
    talk.server.refuse_subscribing = True
    talk.server.cut_subscriber()
    await talk.sent(2)
    await talk.settled()
    clock.now += 0.3
    refused = talk.server.refused
    await wait_until_async(lambda: talk.server.refused > refused + 1, "it has looked at its clock meanwhile")
    assert len(talk.messages) == 2


async def test_pauses_are_sent_at_once(talk: Conversation) -> None:
    talk.coordinator.pause(1.5, "a refusal")
    talk.coordinator.pause(2.5, "a full provider", until_accepted=True)
    paused = await talk.sent(2)
    assert paused["pause"] == [1500, "a refusal"]
    assert paused["busy"] == [2500, "a full provider"]


async def test_limits_that_differ_are_stated_until_they_do_not(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.replies = [{"differs": True}, {"differs": True}]
    async with conversation(fleet) as talk:
        await talk.coordinator.joined
        for number in (2, 3, 4):
            talk.ask()
            await talk.sent(number)
            await talk.settled()
    assert [message.get("defaults") for message in talk.messages[1:]] == [fleet.limits, fleet.limits, None]
    (record,) = caplog.records
    assert "the fleet's limits stay in force" in record.getMessage()


async def test_how_far_away_redis_is(talk: Conversation, fleet: Fleet, clock: BootClock) -> None:
    def slow(message: dict[str, Any]) -> Reply:
        reply = fleet(message)
        clock.now += 0.05
        return reply

    talk.server.answer = slow
    waiter = talk.ask()
    await talk.sent(2)
    await talk.settled()
    talk.server.publish({"epoch": "e1", "now": clock.ms - 300, "grants": [[1, waiter.id, clock.ms - 300]]})
    await waiter.future
    talk.ask()
    described = json.loads((await talk.sent(3))["worker"])
    assert (described["rtt_ms"], described["lag_ms"]) == (25, 119)  # the median of 0 and 50 ms; 300 less 200 ms


async def test_grants_of_this_epoch_are_taken_from_pushes(talk: Conversation, clock: BootClock) -> None:
    first, second = talk.ask(), talk.ask()
    await talk.sent(2)
    await talk.settled()
    talk.server.publish({"epoch": "e0", "now": clock.ms, "grants": [[1, first.id, clock.ms]]})
    talk.server.publish({"epoch": "e1", "now": clock.ms, "grants": [[1, second.id, clock.ms]]})
    held = await second.future
    assert held.id == second.id
    assert not first.future.done()
    talk.server.publish({"epoch": "e1", "now": clock.ms, "grants": [[2, first.id, clock.ms]]})
    await first.future
    clock.now += 3
    assert (await talk.sent(3))["seen"] == 2


@pytest.mark.parametrize(("late_ms", "subscriptions"), [(500, 1), (501, 2)])
async def test_a_grant_whose_push_was_lost(
    talk: Conversation, fleet: Fleet, clock: BootClock, late_ms: int, subscriptions: int
) -> None:
    """The subscriber's connection is given up."""
    waiter = talk.ask()
    await talk.sent(2)
    await talk.settled()
    fleet.replies = [{"grants": [[1, waiter.id, clock.ms - late_ms]]}]
    another = talk.ask()
    await waiter.future
    await wait_until_async(lambda: len(talk.server.subscriptions) >= subscriptions, "it is subscribed")
    talk.server.publish({"epoch": "e1", "now": clock.ms, "grants": [[2, another.id, clock.ms]]})
    await another.future
    assert len(talk.server.subscriptions) == subscriptions


async def test_it_speaks_when_redis_says(talk: Conversation, fleet: Fleet, clock: BootClock) -> None:
    fleet.replies = [{"at": clock.ms + 1000}]
    talk.ask()
    await talk.sent(2)
    await talk.settled()
    clock.now += 1.002
    await talk.sent(3)
    await talk.settled()
    talk.server.publish({"epoch": "e1", "now": clock.ms, "at": clock.ms + 500})
    talk.server.publish({"epoch": "e1", "now": clock.ms, "at": clock.ms + 900})
    clock.now += 0.502
    await talk.sent(4)


async def test_a_pause_outlasts_a_server_that_lost_its_memory(
    talk: Conversation, fleet: Fleet, clock: BootClock
) -> None:
    fleet.replies = [{"pause": [5000, "a refusal"]}, {"status": "join", "epoch": "e2"}, {"epoch": "e2"}]
    waiter = talk.ask()
    await talk.sent(2)
    await talk.settled()
    clock.now += 1
    talk.server.publish({"epoch": "e2"})
    again = await talk.sent(4)
    assert (talk.messages[2]["epoch"], again["epoch"]) == ("e1", "")
    assert again["pause"] == [4000, "a refusal"]
    assert [ask[0] for ask in again["ask"]] == [waiter.id]


@pytest.mark.parametrize("lease_s", [2.0, 8.0])
async def test_a_server_too_far_away_for_the_lease(fleet: Fleet, clock: BootClock, lease_s: float) -> None:
    def slow(message: dict[str, Any] | None = None) -> None:
        clock.now += 0.75

    fleet.limits = Limits(lease_s=lease_s).fields()
    async with conversation(fleet, lease_s=lease_s) as talk:
        answer = fleet.__call__

        def late(message: dict[str, Any]) -> Reply:
            reply = answer(message)
            slow()
            return reply

        talk.server.answer, talk.server.on_ping = late, slow
        if lease_s > 3:
            await talk.coordinator.joined
        else:
            with pytest.raises(TooFar, match="750 ms"):
                await talk.coordinator.joined


async def test_a_fleet_of_another_version(fleet: Fleet) -> None:
    fleet.replies = [{"status": "schema", "schema": 2}]
    async with conversation(fleet) as talk:
        with pytest.raises(SchemaMismatch, match=r"version 1 .* version 2"):
            await talk.coordinator.joined
        await talk.running
        with pytest.raises(SchemaMismatch):
            talk.ask()
