"""A slot and the queue that processes share, on a local state whose grants the test gives. No server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from brimful_worker.admission import Lease, LeaseLost
from brimful_worker.admission import lease as lease_module
from brimful_worker.admission import lease_table as lease_table_module
from brimful_worker.admission import local_state as local_state_module
from brimful_worker.admission import slot as slot_module
from brimful_worker.admission import waiters as waiters_module
from brimful_worker.admission.lease import current_lease
from brimful_worker.admission.local_state import LocalState
from brimful_worker.admission.places import Places
from brimful_worker.admission.policy import Limits
from brimful_worker.admission.shared_queue import SharedQueue
from brimful_worker.admission.slot import Slot
from brimful_worker.admission.turns import NO_FLOW, Flow
from brimful_worker.admission.waiters import Queue
from brimful_worker.admission.wire import outgoing as outgoing_module
from brimful_worker.admission.wire.redis_clock import RedisClock
from support.boot_clock import BootClock

LOCAL_LEASE_S = 6.75
"""Of the default limits."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> BootClock:
    return BootClock().used_by(
        monkeypatch, local_state_module, lease_module, lease_table_module, outgoing_module, slot_module, waiters_module
    )


@pytest.fixture
async def state(clock: BootClock) -> AsyncIterator[LocalState]:
    redis_clock = RedisClock()
    redis_clock.note(clock.now, clock.now, clock.now * 1000)
    state = LocalState("abc", Limits(starts=None), redis_clock, lambda: None)
    yield state
    state.close()


async def turn() -> None:
    """Let every task run until it waits; nothing here waits for more than another task."""
    for _ in range(10):
        await asyncio.sleep(0)


async def grant(state: LocalState, at: float) -> str:
    """Grant the first waiter its ticket at this time, and let the tasks run. Returns the ticket."""
    await turn()
    state.waiting.register(32)
    ticket = next(state.waiting.registered()).id
    state.granted(ticket, at * 1000)
    await turn()
    return ticket


async def entered(state: LocalState, clock: BootClock, slot: Slot | None = None) -> Slot:
    """A slot that the running task has entered."""
    slot = slot or Slot(state, Queue.BATCH, NO_FLOW, 0)
    granting = asyncio.create_task(grant(state, clock.now))
    await slot.__aenter__()
    await granting
    return slot


class Body:
    """A task inside a slot until ``end`` is set; ``lease`` is its lease as soon as it is inside."""

    def __init__(self, slot: Slot, error: Exception | None = None) -> None:
        self.lease: Lease | None = None
        self.end = asyncio.Event()
        self.cancelling = 0
        self.after: Lease | None = None
        """The current lease when it was outside again."""
        self._error = error
        self.task = asyncio.create_task(self._run(slot))

    async def _run(self, slot: Slot) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with slot as self.lease:
                assert current_lease.get() is self.lease
                await self.end.wait()
                if self._error is not None:
                    raise self._error
        finally:
            self.cancelling = task.cancelling()
            self.after = current_lease.get()


async def inside(state: LocalState, clock: BootClock, error: Exception | None = None) -> tuple[Body, Lease]:
    body = Body(Slot(state, Queue.BATCH, NO_FLOW, 0), error)
    await grant(state, clock.now)
    assert body.lease is not None
    return body, body.lease


def released(state: LocalState) -> list[list[Any]]:
    return state.outgoing.take().releases


async def test_it_holds_the_slot_until_the_block_ends(state: LocalState, clock: BootClock) -> None:
    body, lease = await inside(state, clock)
    assert list(state.leases.held) == [lease.id]
    assert not lease.given_back
    lease.report(ok=True)
    body.end.set()
    await turn()
    assert body.task.done()
    await body.task
    assert not state.leases.held
    assert lease.ended
    assert body.after is None
    assert released(state) == [[lease.id, 0, 1, -1, 0]]


@pytest.mark.parametrize(("since", "waited_s"), [(None, 2.0), (990.0, 12.0)])
async def test_how_long_it_has_waited(
    state: LocalState, clock: BootClock, since: float | None, waited_s: float
) -> None:
    body = Body(Slot(state, Queue.BATCH, NO_FLOW, 5, "request", since))
    await turn()
    clock.now += 2
    ticket = await grant(state, clock.now)
    assert ticket.endswith(".5")
    assert body.lease is not None
    assert (body.lease.waited_s, body.lease.size) == (waited_s, 5)
    body.end.set()
    await body.task


@pytest.mark.parametrize("late", [LOCAL_LEASE_S, LOCAL_LEASE_S + 1], ids=["at its end", "after its end"])
async def test_a_grant_that_cannot_be_used_any_more_is_given_back_and_asked_for_again(
    state: LocalState, clock: BootClock, late: float
) -> None:
    body = Body(Slot(state, Queue.BATCH, NO_FLOW, 0))
    stale = await grant(state, clock.now - late)
    assert body.lease is None
    assert released(state) == [[stale, 0, -1, -1, 1]]
    fresh = await grant(state, clock.now - LOCAL_LEASE_S + 0.25)
    assert body.lease is not None
    assert (body.lease.id, fresh != stale) == (fresh, True)
    body.end.set()
    await body.task


async def test_a_lease_that_is_lost_before_its_task_runs_is_given_back(state: LocalState, clock: BootClock) -> None:
    body = Body(Slot(state, Queue.BATCH, NO_FLOW, 0))
    await turn()
    state.waiting.register(32)
    ticket = next(state.waiting.registered()).id
    state.granted(ticket, clock.now * 1000)
    state.lost(ticket)
    await turn()
    assert body.lease is None
    assert [release[0] for release in released(state)] == [ticket]
    body.task.cancel()
    await asyncio.gather(body.task, return_exceptions=True)
    assert len(state.waiting) == 0


async def test_a_task_that_gives_up_as_it_is_granted_gives_the_grant_back(state: LocalState, clock: BootClock) -> None:
    body = Body(Slot(state, Queue.BATCH, NO_FLOW, 0))
    await turn()
    state.waiting.register(32)
    ticket = next(state.waiting.registered()).id
    state.granted(ticket, clock.now * 1000)
    body.task.cancel()
    await asyncio.gather(body.task, return_exceptions=True)
    assert body.task.cancelled()
    assert released(state) == [[ticket, 0, -1, -1, 1]]


async def test_a_lost_lease_ends_its_body_and_leaves_no_cancellation(state: LocalState, clock: BootClock) -> None:
    body, lease = await inside(state, clock)
    state.lost(lease.id)
    await turn()
    with pytest.raises(LeaseLost):
        await body.task
    assert body.cancelling == 0
    assert not state.ending


async def test_a_body_that_is_cancelled_besides_stays_cancelled(state: LocalState, clock: BootClock) -> None:
    body, lease = await inside(state, clock)
    body.task.cancel()
    state.lost(lease.id)
    await turn()
    assert body.task.cancelled()
    assert body.cancelling == 1


async def test_a_cancelled_body_whose_lease_was_not_lost(state: LocalState, clock: BootClock) -> None:
    body, lease = await inside(state, clock)
    body.task.cancel()
    await turn()
    assert body.task.cancelled()
    assert body.cancelling == 1
    assert released(state) == [[lease.id, 1000, -1, -1, 0]], "it stays taken for the cooldown"


async def test_a_body_that_raises_raises_its_own_error(state: LocalState, clock: BootClock) -> None:
    body, lease = await inside(state, clock, ValueError("of the body"))
    body.end.set()
    with pytest.raises(ValueError, match="of the body"):
        await body.task
    assert released(state) == [[lease.id, 1000, -1, -1, 0]]


async def test_an_error_after_the_grant_was_given_back_is_the_body_s_own(state: LocalState, clock: BootClock) -> None:
    body, lease = await inside(state, clock, ValueError("of the body"))
    lease.give_back()
    lease.lost = True
    body.end.set()
    with pytest.raises(ValueError, match="of the body"):
        await body.task


async def test_an_error_of_a_body_whose_lease_was_lost_is_its_cause(state: LocalState, clock: BootClock) -> None:
    error = ValueError("its connection was shut")
    body, lease = await inside(state, clock, error)
    lease.lost = True  # as by the watchdog, which has shut the connection
    body.end.set()
    with pytest.raises(LeaseLost) as caught:
        await body.task
    assert caught.value.__cause__ is error


async def test_a_body_that_ended_well_though_its_lease_was_lost(state: LocalState, clock: BootClock) -> None:
    body, lease = await inside(state, clock)
    lease.lost = True
    body.end.set()
    await body.task
    assert lease.ended


async def test_the_task_that_has_moved_in_is_cancelled_in_place_of_the_first(
    state: LocalState, clock: BootClock
) -> None:
    slot = Slot(state, Queue.BATCH, NO_FLOW, 0)
    first = asyncio.create_task(slot.__aenter__())
    ticket = await grant(state, clock.now)
    assert first.done()
    cancelling = 0

    async def other() -> None:
        nonlocal cancelling
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        slot.move()  # with a cancellation of its own, which is nobody else's here
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            await slot.__aexit__(type(error), error, None)
        finally:
            cancelling = task.cancelling()

    task = asyncio.create_task(other())
    await turn()
    state.lost(ticket)
    await turn()
    with pytest.raises(LeaseLost):
        await task
    assert cancelling == 1


async def test_a_task_that_was_cancelled_before_it_entered_is_not_taken_for_cancelled(
    state: LocalState, clock: BootClock
) -> None:
    leases: list[Lease] = []

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        async with Slot(state, Queue.BATCH, NO_FLOW, 0) as lease:
            leases.append(lease)
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    ticket = await grant(state, clock.now)
    assert [lease.id for lease in leases] == [ticket]
    state.lost(ticket)
    with pytest.raises(LeaseLost):
        await task


async def test_slots_within_each_other(state: LocalState, clock: BootClock) -> None:
    slot = await entered(state, clock)
    outer = current_lease.get()
    assert outer is not None
    await entered(state, clock, slot)
    inner = current_lease.get()
    assert inner not in (None, outer)
    await slot.__aexit__(None, None, None)
    assert list(state.leases.held) == [outer.id], "the last one entered is left first"
    assert current_lease.get() is outer
    await slot.__aexit__(None, None, None)
    assert not state.leases.held
    assert current_lease.get() is None


async def test_each_of_two_tasks_leaves_its_own(state: LocalState, clock: BootClock) -> None:
    slot = Slot(state, Queue.BATCH, NO_FLOW, 0)
    one, other = Body(slot), Body(slot)
    first, second = await grant(state, clock.now), await grant(state, clock.now)
    one.end.set()
    await one.task
    assert list(state.leases.held) == [second]
    other.end.set()
    await other.task
    assert not state.leases.held
    assert [release[0] for release in released(state)] == [first, second]


async def test_another_task_leaves_it_while_one_is_inside_only(state: LocalState, clock: BootClock) -> None:
    slot = Slot(state, Queue.BATCH, NO_FLOW, 0)
    bodies = [Body(slot), Body(slot)]
    await grant(state, clock.now)
    await grant(state, clock.now)
    with pytest.raises(RuntimeError, match="2 tasks are inside this slot"):
        await slot.__aexit__(None, None, None)
    assert len(state.leases.held) == 2
    bodies[0].end.set()
    await bodies[0].task
    await slot.__aexit__(None, None, None)
    assert not state.leases.held
    bodies[1].task.cancel()
    with pytest.raises(RuntimeError, match="0 tasks are inside"):
        await bodies[1].task


async def ask(state: LocalState, flow: str, times: int, weight: float = 1.0) -> None:
    for _ in range(times):
        state.ask(Queue.BATCH, Flow(flow, weight), 0, 1000.0)
    state.waiting.register(32)


async def test_a_shared_queue_reports_what_waits_and_was_granted(state: LocalState, clock: BootClock) -> None:
    queue = SharedQueue(state, Queue.BATCH)
    assert queue.registered == 32
    await ask(state, "run", 3, weight=2.0)
    demand = queue.demands()["run"]
    assert (demand.weight, demand.number, demand.since) == (2.0, 3, 1000.0)
    assert SharedQueue(state, Queue.INTERACTIVE).demands() == {}
    await grant(state, clock.now)
    assert queue.take_granted() == Counter(), "nothing was counted yet"
    assert isinstance(queue.take_granted(), Counter)
    await grant(state, clock.now)
    assert queue.take_granted() == {Flow("run", 2.0): 1}
    assert queue.take_granted() == Counter()
    assert queue.demands()["run"].number == 1


async def test_what_the_others_got_orders_a_shared_queue(state: LocalState, clock: BootClock) -> None:
    queue = SharedQueue(state, Queue.BATCH)
    await ask(state, "first", 2)
    await ask(state, "second", 2)
    queue.correct({"first": 100.0, "second": 0.0}, 0.0)
    queue.take_granted()
    await grant(state, clock.now)
    assert queue.take_granted() == {Flow("second"): 1}


async def test_places_in_a_shared_queue(state: LocalState, clock: BootClock) -> None:
    queue = SharedQueue(state, Queue.BATCH)
    await ask(state, "run", 3)
    before = [waiter.id for waiter in state.waiting.registered()]
    state.outgoing.take()
    queue.place(Places([30.0], 1, clock.now), 5.0)
    assert state.outgoing.cancels == before
    assert state.outgoing.urgent, "they are registered again by the next command, which is sent at once"
    assert [waiter.place for waiter in state.waiting.register(32)] == [970.0] * 3
    state.outgoing.take()
    queue.place(Places([33.0], 1, clock.now), 5.0)
    assert not state.outgoing.cancels
    assert not state.outgoing.urgent
    queue.place(Places([30.5], 1, clock.now))
    assert len(state.outgoing.cancels) == 3, "without a tolerance each is registered again"
    queue.place(Places([30.0], 1, clock.now))
    state.waiting.register(32)
    queue.place(None)
    await ask(state, "run", 1)
    assert [waiter.place for waiter in state.waiting.registered()] == [970.0] * 3 + [1000.0]
    queue.place(None)  # also without any
