"""Whose turn it is among flows: shares by weight, and nothing for the past."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from brimful_worker.admission.places import Places
from brimful_worker.admission.turns import Flow
from brimful_worker.admission.waiters import Queue, Waiter, Waiters

FINE = 1 / 128
"""A weight so small that one grant is more than a flow may be ahead of another."""
_numbers = count()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Process:
    """Waiters of one process, of which Redis knows ``registered``, granted in the order in which Redis knows them.

    ``unit`` is what a flow of weight 1 weighs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, registered: int = 1000, unit: float = FINE) -> None:
        self.loop = loop
        self.unit = unit
        self.waiters = Waiters("abc")
        self.registered = registered

    def ask(self, flow: str, times: int = 1, weight: float = 1.0, tokens: int = 7) -> list[Waiter]:
        added = [
            self.waiters.add(
                Queue.BATCH, Flow(flow, weight * self.unit), tokens, float(next(_numbers)), self.loop.create_future()
            )
            for _ in range(times)
        ]
        self.waiters.register(self.registered)
        return added

    def grant(self, times: int, *, same_tokens: bool = False) -> list[str]:
        """The flows that got the next grants."""
        served = []
        for _ in range(times):
            ticket = next(self.waiters.registered()).id
            waiter = self.waiters.take(ticket, same_tokens=same_tokens)
            assert waiter is not None
            assert waiter.id == ticket
            served.append(waiter.flow.name)
            self.waiters.register(self.registered)
        return served


def test_a_grant_changes_hands_only_where_a_flow_is_ahead(loop: asyncio.AbstractEventLoop) -> None:
    process = Process(loop, unit=1)
    process.ask("big", 400)
    process.grant(100)
    small = process.ask("small", 20)
    assert 6 <= Counter(process.grant(20))["small"] <= 12
    process.grant(40)
    assert all(waiter not in list(process.waiters.registered()) for waiter in small)
    steady = Process(loop, unit=1)
    for _ in range(10):  # as runs do that keep enqueued what their weights demand
        steady.ask("light")
        steady.ask("heavy", 3, weight=3)
    tickets = {waiter.id: waiter for waiter in steady.waiters.registered()}
    for ticket, waiter in tickets.items():
        assert steady.waiters.take(ticket, same_tokens=False) is waiter


@pytest.mark.parametrize("registered", [1000, 8])
def test_flows_share_by_weight_whoever_came_first(loop: asyncio.AbstractEventLoop, registered: int) -> None:
    process = Process(loop, registered)
    process.ask("big", 400)
    assert set(process.grant(100)) == {"big"}
    process.ask("small", 50)
    process.ask("heavy", 200, weight=3)
    served = Counter(process.grant(200))
    for flow, share in {"big": 40, "small": 40, "heavy": 120}.items():
        assert abs(served[flow] - share) <= 1
    assert process.waiters.count(Queue.BATCH) == 350


def test_one_that_comes_back_has_saved_nothing_and_one_that_never_left_loses_nothing(
    loop: asyncio.AbstractEventLoop,
) -> None:
    process = Process(loop)
    process.ask("steady", 300)
    process.ask("other", 1)
    process.grant(100)
    process.ask("other", 100)
    assert abs(Counter(process.grant(50))["other"] - 25) <= 1
    # A flow of a third of the weight that always has one waiter gets no more than its share.
    light = Counter[str]()
    for _ in range(100):
        if not light or light["asked"] == light["light"]:
            process.ask("light", 1, weight=1 / 3)
            light["asked"] += 1
        light.update(process.grant(1))
    assert 12 <= light["light"] <= 16  # 1/3 of 1 + 1 + 1/3


def test_one_that_left_while_it_was_ahead_is_so_when_it_comes_back(loop: asyncio.AbstractEventLoop) -> None:
    process = Process(loop)
    process.ask("steady", 100)
    process.ask("light", weight=1 / 10)
    assert sorted(process.grant(2)) == ["light", "steady"]
    process.ask("new", 100)
    process.ask("light", weight=1 / 10)
    assert set(process.grant(15)) == {"steady", "new"}  # until they have had ten each


def test_within_a_flow_it_is_first_come_first_served(loop: asyncio.AbstractEventLoop) -> None:
    process = Process(loop)
    one, two = process.ask("a", 2)
    process.ask("b", 2)
    assert process.waiters.take(one.id, same_tokens=False) is one
    assert process.grant(1) == ["b"]
    assert process.waiters.take(two.id, same_tokens=False) is two


def test_one_that_gave_up_is_passed_over_and_leaves_no_trace(loop: asyncio.AbstractEventLoop) -> None:
    process = Process(loop)
    process.ask("a", 3)
    gone, stays = process.ask("b", 2)
    process.grant(1)
    gone.future.cancel()
    assert process.grant(1) == ["b"]
    assert process.waiters.cancel(gone)
    assert stays not in list(process.waiters.registered())
    assert process.grant(2) == ["a", "a"]
    assert process.waiters.count(Queue.BATCH) == 0


def test_where_tokens_are_counted_only_equals_change_places(loop: asyncio.AbstractEventLoop) -> None:
    process = Process(loop)
    process.ask("a", 3, tokens=10)
    process.ask("b", 3, tokens=99)
    assert process.grant(3, same_tokens=True) == ["a"] * 3
    process.ask("a", 3, tokens=99)
    assert process.grant(3, same_tokens=True) == ["b"] * 3  # it was served less so far
    process.ask("b", 3, tokens=99)
    assert sorted(process.grant(4, same_tokens=True)) == ["a", "a", "b", "b"]


def test_an_exchanged_waiter_is_granted_later_under_the_ticket_that_it_got(loop: asyncio.AbstractEventLoop) -> None:
    process = Process(loop, registered=2)
    first, second, third = process.ask("a", 3)
    [late] = process.ask("b")
    process.waiters.take(first.id, same_tokens=False)
    place = second.id, late.id
    assert process.waiters.take(second.id, same_tokens=False) is late
    assert (late.id, second.id) == place
    assert process.waiters.behind(Queue.BATCH) == 2  # it waits in the place of the one that went before it
    process.waiters.register(2)
    assert process.waiters.take(second.id, same_tokens=False) is second
    assert process.waiters.take(third.id, same_tokens=False) is third


def test_places_of_others_order_a_process_s_waiters(loop: asyncio.AbstractEventLoop) -> None:
    process = Process(loop, registered=4)
    waiters = process.ask("a", 8)
    places = Places([30.0, 20.0, 10.0], 2, now=100.0)
    process.waiters.places[Queue.BATCH] = places
    before = [waiter.id for waiter in waiters[:4]]
    assert process.waiters.withdraw(Queue.BATCH, 5.0) == before
    assert process.waiters.register(4) == waiters[:4]
    assert [waiter.place for waiter in waiters[:4]] == [70.0, 70.0, 80.0, 80.0]
    assert not set(before) & {waiter.id for waiter in waiters}, "a ticket is never used again"
    assert process.waiters.take(before[0], same_tokens=False) is None
    assert process.waiters.take(waiters[0].id, same_tokens=False) is waiters[0]
    process.waiters.register(4)
    assert waiters[4].place == 90.0
    assert process.waiters.withdraw(Queue.BATCH, 10.0) == []
    gone = waiters[1]
    gone.future.cancel()
    process.waiters.places[Queue.BATCH] = Places([0.0], 1, now=100.0)
    assert len(process.waiters.withdraw(Queue.BATCH, 5.0)) == 3
    assert process.waiters.cancel(gone)


def test_what_flows_got_elsewhere_counts(loop: asyncio.AbstractEventLoop) -> None:
    process = Process(loop)
    process.ask("a", 50)
    process.ask("b", 50, weight=2)
    turns = process.waiters.turns[Queue.BATCH]
    turns.granted = Counter()
    process.grant(3)
    assert sum(turns.granted.values()) == 3
    turns.granted.clear()
    served = {"a": 10 / FINE, "b": 5 / FINE}
    turns.correct(served, served["b"])
    assert process.grant(10) == ["b"] * 10
    assert turns.granted == {Flow("b", 2 * FINE): 10}
    turns.correct(served, served["b"])  # the grants since the report are not in it
    assert Counter(process.grant(30)) == {"a": 10, "b": 20}
    assert turns.demands()["b"][:2] == (2 * FINE, turns.demands()["b"].number)


def test_one_that_asks_again_goes_to_the_front_of_its_flow(loop: asyncio.AbstractEventLoop) -> None:
    process = Process(loop, registered=1)
    first, second, _ = process.ask("a", 3)
    process.waiters.take(first.id, same_tokens=False)
    process.waiters.register(1)
    process.ask("b")
    again = process.waiters.add(Queue.BATCH, Flow("b", FINE), 7, -1.0, loop.create_future())
    assert process.waiters.take(second.id, same_tokens=False) is again


def test_nothing_is_kept_of_a_flow_that_is_not_ahead(loop: asyncio.AbstractEventLoop) -> None:
    """There is one for each run, and a process sees thousands."""

    class Name(str):
        """Unlike a ``str``, it can be referred to weakly."""

    process, name = Process(loop), Name("gone")
    kept = weakref.ref(name)
    [waiter] = process.ask(name)
    waiter.future.cancel()
    process.waiters.cancel(waiter)
    process.ask("other")
    del name, waiter
    gc.collect()
    assert kept() is None
