"""What a process believes of its leases: renewals, changed lease lengths, releases, losses. No server."""

from __future__ import annotations

import asyncio
import math
import random
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from brimful.errors import BudgetExhausted, FleetError
from brimful_worker.admission import Lease, LeaseLost, StaleGrant
from brimful_worker.admission import lease as lease_module
from brimful_worker.admission import lease_table as lease_table_module
from brimful_worker.admission import local_state as local_state_module
from brimful_worker.admission.local_state import LocalState
from brimful_worker.admission.policy import Limits, Rules
from brimful_worker.admission.slot import Slot
from brimful_worker.admission.turns import NO_FLOW, Flow
from brimful_worker.admission.waiters import Queue
from brimful_worker.admission.wire import outgoing as outgoing_module
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.liveness.boot_time import boot_time
from support.boot_clock import BootClock
from support.waiting import wait_until_async

LOCAL_LEASE_S = 8 - 1.25
"""Of the default limits."""


@pytest.fixture
def wakes() -> list[None]:
    return []


@pytest.fixture
async def state(wakes: list[None]) -> AsyncIterator[LocalState]:
    """With Redis's clock 1000 s ahead of this process's."""
    clock = RedisClock()
    now = boot_time()
    clock.note(now, now, (now + 1000) * 1000)
    state = LocalState("abc", Limits(starts=None), clock, lambda: wakes.append(None))
    yield state
    state.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> BootClock:
    return BootClock().used_by(monkeypatch, local_state_module, lease_module, lease_table_module, outgoing_module)


@pytest.fixture
async def timed(clock: BootClock) -> AsyncIterator[LocalState]:
    """On a clock moved by hand, which Redis's clock equals."""
    redis_clock = RedisClock()
    redis_clock.note(clock.now, clock.now, clock.now * 1000)
    state = LocalState("abc", Limits(starts=None), redis_clock, lambda: None)
    yield state
    state.close()


async def grant(state: LocalState, at: float, ahead: float = 1000.0) -> Lease:
    """A lease granted at this time by the process's clock."""
    waiter = state.ask(Queue.BATCH, NO_FLOW, 0, at)
    state.waiting.register(32)
    state.granted(waiter.id, (at + ahead) * 1000)
    return await waiter.future


def set_lease(state: LocalState, lease_s: float) -> None:
    state.apply(Rules(starts=None, lease_s=lease_s))


async def test_a_join_does_not_revive_a_lease_that_had_ended(state: LocalState) -> None:
    old, young = await grant(state, boot_time() - 3), await grant(state, boot_time())
    received = old.deadline + 0.01
    assert state.leases.to_join(boot_time()) == [old.id, young.id]
    state.rejoined(received - 2, received)
    assert old.lost
    assert not young.lost
    assert young.deadline == pytest.approx(received - 2 + LOCAL_LEASE_S)
    assert list(state.leases.held) == [young.id]
    assert list(state.ending) == [old.id]
    state.end(old, failed=True)
    assert not state.ending


async def test_a_grant_that_took_long_to_arrive_is_renewed_first(state: LocalState, wakes: list[None]) -> None:
    await grant(state, boot_time())
    del wakes[:]
    late = await grant(state, boot_time() - 6)
    assert wakes
    renewal = state.leases.next_renewal()
    assert renewal is not None
    assert renewal < boot_time()
    assert state.leases.to_renew() == [late.id]


async def test_the_end_of_a_grant_that_took_long_to_arrive(state: LocalState) -> None:
    young = await grant(state, boot_time())
    late = await grant(state, boot_time() - LOCAL_LEASE_S + 0.05)
    state.plan_aborts()
    await wait_until_async(lambda: late.lost, "it is ended")
    assert not young.lost


async def test_leases_that_become_shorter_end_sooner(state: LocalState) -> None:
    lease = await grant(state, boot_time())
    set_lease(state, 3)
    assert lease.deadline == pytest.approx(lease.renewed + 1.75)
    set_lease(state, 8)
    assert lease.deadline == pytest.approx(lease.renewed + 1.75)


async def test_leases_that_become_longer_keep_their_end_until_they_are_renewed(
    state: LocalState, wakes: list[None]
) -> None:
    """Redis has granted the short lease, also to a grant that was on its way when the limit changed."""
    set_lease(state, 3)
    before = await grant(state, boot_time())
    del wakes[:]
    set_lease(state, 30)
    late = await grant(state, boot_time() - 0.5)
    assert wakes
    for lease in (before, late):
        assert lease.deadline == pytest.approx(lease.renewed + 1.75)
    assert set(state.leases.to_renew()) == {before.id, late.id}
    sent = boot_time()
    state.leases.renewed(sent)
    assert before.deadline == late.deadline == pytest.approx(sent + 28.75)
    assert state.leases.to_renew() == []
    after = await grant(state, boot_time())
    assert after.deadline == pytest.approx(after.renewed + 28.75)


async def test_a_grant_of_the_moment_in_which_leases_became_longer_is_a_short_one(
    timed: LocalState, clock: BootClock
) -> None:
    set_lease(timed, 3)
    clock.now += 10
    set_lease(timed, 30)
    assert timed.leases.lease_at(clock.now) == 1.75
    assert timed.leases.lease_at(clock.now + 2**-20) == 28.75


async def test_a_lease_that_ends_now_is_not_registered_by_a_join(timed: LocalState, clock: BootClock) -> None:
    lease = await grant(timed, clock.now, 0)
    assert timed.leases.to_join(lease.deadline - 2**-20) == [lease.id]
    assert timed.leases.to_join(lease.deadline) == []


async def test_the_connection_of_a_lease_that_becomes_shorter_is_shut_sooner() -> None:
    """By the watchdog's thread, which waits for the end that it knows."""
    now, clock = boot_time(), RedisClock()
    clock.note(now, now, (now + 1000) * 1000)
    state = LocalState("abc", Limits(starts=None, lease_s=3600), clock, lambda: None)
    lease = await grant(state, boot_time() - 600)
    with socket.socket() as client, socket.create_server(("127.0.0.1", 0)) as server:
        client.connect(server.getsockname())
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=client)
        lease.watch(transport)
        assert lease.deadline > boot_time() + 600
        set_lease(state, 60)
        await wait_until_async(lambda: lease.lost, "its connection is shut")
        transport.abort()
        state.end(lease, failed=True)
        state.close()


async def test_a_grant_is_good_for_one_request(state: LocalState) -> None:
    lease = await grant(state, boot_time())
    lease.sent()
    with pytest.raises(StaleGrant):
        lease.sent()
    assert not lease.given_back


async def test_leases_granted_during_a_renewal_are_not_renewed_by_it(timed: LocalState, clock: BootClock) -> None:
    early = await grant(timed, clock.now, 0)
    clock.now += 3
    assert timed.leases.to_renew() == [early.id]
    late = await grant(timed, clock.now, 0)
    gone = await grant(timed, clock.now, 0)
    timed.end(gone, failed=False)
    timed.leases.renewed(clock.now)
    assert early.deadline == late.deadline == clock.now + LOCAL_LEASE_S
    clock.now += 1
    assert timed.leases.to_renew() == []
    assert timed.leases.next_renewal() == pytest.approx(clock.now - 1 + 8 / 3)


async def test_a_lease_is_renewed_from_three_quarters_of_a_heartbeat_on(timed: LocalState, clock: BootClock) -> None:
    lease = await grant(timed, clock.now, 0)
    clock.now += 2 - 2**-20
    assert timed.leases.to_renew() == []
    clock.now += 2**-20
    assert timed.leases.to_renew() == [lease.id]


async def test_what_was_to_be_renewed_by_a_command_that_failed_is_not_by_a_later_one(
    timed: LocalState, clock: BootClock
) -> None:
    old = await grant(timed, clock.now, 0)
    clock.now += 3
    assert timed.leases.to_renew() == [old.id]
    timed.end(old, failed=False)
    young = await grant(timed, clock.now, 0)
    assert timed.leases.to_renew() == []
    timed.leases.renewed(clock.now + 1)
    assert young.renewed == clock.now


async def test_most_leases_of_a_busy_process_end_before_they_need_a_renewal(
    timed: LocalState, clock: BootClock
) -> None:
    old = await grant(timed, clock.now, 0)
    clock.now += 1.9
    young = await grant(timed, clock.now, 0)
    assert timed.leases.to_renew() == []
    clock.now += 0.2
    assert timed.leases.to_renew() == [old.id]
    assert timed.leases.next_renewal() == pytest.approx(old.renewed + 8 / 3)
    timed.leases.renewed(clock.now)
    assert timed.leases.next_renewal() == pytest.approx(young.renewed + 8 / 3)


async def test_many_leases_are_renewed_when_the_oldest_is_due_and_no_sooner(
    timed: LocalState, clock: BootClock
) -> None:
    """A command renews all that are held, so that each one too many costs as much as another command."""
    leases = [await grant(timed, clock.now, 0) for _ in range(100)]
    clock.now += 2.5
    assert timed.leases.to_renew() == []
    due = timed.leases.next_renewal()
    assert due == pytest.approx(clock.now - 2.5 + 8 / 3)
    clock.now = due
    assert timed.leases.to_renew() == [lease.id for lease in leases]


async def test_how_long_requests_last_is_known_from_those_that_ended(timed: LocalState, clock: BootClock) -> None:
    for _ in range(200):
        lease = await grant(timed, clock.now, 0)
        lease.sent()
        clock.now += 3
        timed.end(lease, failed=False)
    assert timed.outgoing.lasting_s == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize("seed", range(20))
async def test_no_lease_ends_or_falls_due_unnoticed(timed: LocalState, clock: BootClock, seed: int) -> None:
    """Against a plain look at every lease, under random grants, ends, renewals and changes of the lease."""
    randomly, leases = random.Random(seed), dict[str, Lease]()
    for _ in range(200):
        clock.now += randomly.random()
        what = randomly.choice(["grant", "grant", "end", "renew", "renew", "change"])
        if what == "grant":
            lease = await grant(timed, clock.now - 3 * randomly.random() ** 4, 0)
            leases[lease.id] = lease
        elif what == "end" and leases:
            timed.end(leases.pop(randomly.choice(list(leases))), failed=False)
        elif what == "renew":
            after_s = timed.rules.renew_after_s(len(leases))
            old = {ticket for ticket, lease in leases.items() if clock.now - lease.renewed > after_s}
            assert old <= set(timed.leases.to_renew())
            timed.leases.renewed(clock.now)
        elif what == "change":
            set_lease(timed, randomly.choice([6, 8, 20]))
        timed.plan_aborts()
        for _ in range(2):  # until a timer that is due has run
            await asyncio.sleep(0)
        leases = {ticket: lease for ticket, lease in leases.items() if not lease.lost}
        assert timed.leases.held == leases
        assert all(lease.deadline > clock.now for lease in leases.values())
        due = timed.leases.next_renewal()
        oldest = min((lease.renewed for lease in leases.values()), default=None)
        assert (due is None) == (oldest is None)
        if due is not None and oldest is not None:
            assert due <= oldest + timed.rules.heartbeat_s + 1e-6
            end = min(lease.deadline for lease in leases.values())
            assert timed.leases.stall_limit_s() <= end - clock.now + 1e-6


async def test_a_release_carries_what_was_reported(timed: LocalState, clock: BootClock) -> None:
    finished, aborted, raised, returned = [await grant(timed, clock.now, 0) for _ in range(4)]
    finished.sent()
    finished.report(ok=True, tokens_used=7, cooldown_s=0.0051)
    aborted.report(ok=None, cooldown_s=1.0)
    returned.give_back()
    returned.report(ok=None, cooldown_s=1.0)
    timed.end(finished, failed=False)
    timed.end(aborted, failed=True)
    timed.end(raised, failed=True)
    timed.end(returned, failed=False)
    assert timed.outgoing.releases == [
        [finished.id, 6, 1, 7, 0],
        [aborted.id, 1000, -1, -1, 0],
        [raised.id, 1000, -1, -1, 0],
        [returned.id, 0, -1, -1, 1],
    ]
    assert not timed.leases.held


async def test_a_lease_that_redis_reports_as_lost_ends_at_once(timed: LocalState, clock: BootClock) -> None:
    """The command that reports it has just renewed it, with all others."""
    lost, kept = await grant(timed, clock.now, 0), await grant(timed, clock.now, 0)
    clock.now += 3
    timed.leases.to_renew()
    timed.leases.renewed(clock.now)
    timed.lost(lost.id)
    assert lost.deadline <= clock.now < kept.deadline
    assert list(timed.ending) == [lost.id]


async def test_how_long_a_process_may_stand_still(timed: LocalState, clock: BootClock) -> None:
    whole = LOCAL_LEASE_S - 8 / 3
    assert timed.leases.stall_limit_s() == pytest.approx(whole)
    await grant(timed, clock.now, 0)
    clock.now += 1
    assert timed.leases.stall_limit_s() == pytest.approx(whole), "renewals are due in time"
    clock.now += 4
    assert timed.leases.stall_limit_s() == pytest.approx(1.75), "they did not come: Redis is away"
    clock.now += 1.75
    assert timed.leases.stall_limit_s() == pytest.approx(whole), "the watchdog has ended it"


async def test_how_long_a_process_that_holds_nothing_any_more_may_stand_still(
    timed: LocalState, clock: BootClock
) -> None:
    lease = await grant(timed, clock.now, 0)
    clock.now += 6
    timed.end(lease, failed=False)
    assert timed.leases.stall_limit_s() == pytest.approx(LOCAL_LEASE_S - 8 / 3)


@pytest.mark.parametrize("cancel", [True, False])
async def test_stopping_ends_every_wait(state: LocalState, cancel: bool) -> None:
    error = FleetError("the admission is closed")
    waiting = [asyncio.create_task(Slot(state, Queue.BATCH, NO_FLOW, 0).__aenter__()) for _ in range(3)]
    await wait_until_async(lambda: state.waiting.count(Queue.BATCH) == 3, "three wait")
    state.stop(error, cancel=cancel)
    results: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
    kind = asyncio.CancelledError if cancel else FleetError
    assert [type(result) for result in results] == [kind] * 3
    with pytest.raises(FleetError, match="closed"):
        state.ask(Queue.BATCH, NO_FLOW, 0, boot_time())


async def test_a_body_whose_lease_is_lost_raises_lease_lost(state: LocalState) -> None:
    async def body() -> None:
        async with Slot(state, Queue.BATCH, NO_FLOW, 0) as lease:
            asyncio.get_running_loop().call_soon(state.lost, lease.id)
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await wait_until_async(lambda: state.waiting.count(Queue.BATCH) == 1, "it waits")
    (waiter,) = state.waiting.register(32)
    state.granted(waiter.id, (boot_time() + 1000) * 1000)
    with pytest.raises(LeaseLost):
        await task


async def end_one(state: LocalState, clock: BootClock, *, ok: bool | None = True, cooldown_s: float = 0.005) -> None:
    lease = await grant(state, clock.now, 0)
    state.outgoing.take()
    lease.report(ok=ok, cooldown_s=cooldown_s)
    state.end(lease, failed=False)


async def test_a_release_waits_for_the_end_of_a_short_cooldown(timed: LocalState, clock: BootClock) -> None:
    """The slot could not be given to anybody before: one command does what two did."""
    await end_one(timed, clock)
    assert not timed.outgoing
    assert timed.outgoing.due == pytest.approx(clock.now + 0.005)
    clock.now += 0.006
    assert [release[1] for release in timed.outgoing.take().releases] == [0]
    assert timed.outgoing.due == math.inf


async def test_taken_before_it_carries_the_rest_of_its_cooldown(timed: LocalState, clock: BootClock) -> None:
    await end_one(timed, clock)
    clock.now += 0.0025
    assert [release[1] for release in timed.outgoing.take().releases] == [3]


@pytest.mark.parametrize(("idle", "full_s", "due_s"), [(True, 0, 0.02), (False, 0.01, 0.01), (False, 9, 0.1)])
async def test_a_release_waits_where_its_slot_serves_nobody(
    timed: LocalState, clock: BootClock, idle: bool, full_s: float, due_s: float
) -> None:
    timed.outgoing.idle, timed.outgoing.full_until = idle, clock.now + full_s
    await end_one(timed, clock, cooldown_s=0.0)
    assert not timed.outgoing
    assert timed.outgoing.due == pytest.approx(clock.now + due_s)


@pytest.mark.parametrize(
    "fields",
    [
        {"ok": False},
        {"ok": None},
        {"cooldown_s": 1.0},
        {"learning": True},
        {"tokens": 9},
        {"budget": 9},
        {"idle": False},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_other_releases_are_sent_at_once(timed: LocalState, clock: BootClock, fields: dict[str, Any]) -> None:
    """Those that say more than that a slot is free, and those whose slot somebody may wait for."""
    timed.outgoing.idle, timed.learning = fields.pop("idle", True), fields.pop("learning", False)
    limits = {name: fields.pop(name) for name in ("tokens", "budget") if name in fields}
    timed.rules = replace(timed.rules, **limits)
    await end_one(timed, clock, **({"cooldown_s": 0.0} | fields))
    assert timed.outgoing


async def test_a_release_that_was_put_back_is_sent_at_once(timed: LocalState, clock: BootClock) -> None:
    await end_one(timed, clock)
    timed.outgoing.put_back(timed.outgoing.take())
    assert timed.outgoing


async def test_a_grant_of_a_request_that_was_given_up_is_given_back(timed: LocalState, clock: BootClock) -> None:
    waiter = timed.ask(Queue.BATCH, NO_FLOW, 0, clock.now)
    timed.waiting.register(32)
    waiter.future.cancel()
    timed.granted(waiter.id, clock.now * 1000)
    assert timed.outgoing.take().releases == [[waiter.id, 0, -1, -1, 1]]
    later = timed.ask(Queue.BATCH, NO_FLOW, 0, clock.now)
    timed.waiting.register(32)
    timed.granted(later.id, clock.now * 1000)
    timed.cancel(later)
    assert timed.outgoing.take().releases == [[later.id, 0, -1, -1, 1]]
    assert not timed.leases.held


async def test_a_grant_that_goes_to_another_request_is_used_once_redis_knows(
    state: LocalState, wakes: list[None]
) -> None:
    """At once: a command is sent for it, which is why none is awaited."""
    rare = Flow("rare", 0.01)  # one grant more than it may be ahead
    first, second = [state.ask(Queue.BATCH, rare, 0, boot_time(), name) for name in ("one", "two")]
    state.waiting.register(32)
    state.granted(first.id, (boot_time() + 1000) * 1000)
    other = state.ask(Queue.BATCH, Flow("other"), 0, boot_time(), "three")
    state.waiting.register(32)
    state.outgoing.take()
    del wakes[:]
    ticket = second.id
    state.granted(ticket, (boot_time() + 1000) * 1000)
    assert wakes
    assert state.outgoing.renames == [[ticket, other.name]]
    assert not other.future.done()
    state.renamed([(ticket, 2)])
    lease = other.future.result()
    assert (lease.id, lease.name, lease.deaths) == (ticket, other.name, 2)
    assert not second.future.done()


async def test_what_the_provider_states_goes_with_the_release(timed: LocalState, clock: BootClock) -> None:
    lease = await grant(timed, clock.now, 0)
    lease.report(ok=True, stated_starts=500)
    timed.end(lease, failed=False)
    assert timed.outgoing.stated_starts == 500


async def test_twenty_grants_in_a_row_that_came_too_late_are_logged_once(
    timed: LocalState, clock: BootClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def grants(times: int, *, stale: bool) -> None:
        for _ in range(times):
            lease = await grant(timed, clock.now, 0)
            lease.wire_deadline = clock.now - stale
            if stale:
                lease.give_back()
            timed.end(lease, failed=False)

    await grants(19, stale=True)
    await grants(1, stale=False)
    await grants(19, stale=True)
    assert not caplog.records
    await grants(5, stale=True)
    (record,) = caplog.records
    assert record.getMessage().startswith("admission: 20 grants in a row arrived too late to be used")


async def test_redis_forgets_a_registered_waiter_that_gives_up(timed: LocalState, clock: BootClock) -> None:
    waiter, unknown = [timed.ask(Queue.BATCH, NO_FLOW, 0, clock.now) for _ in range(2)]
    timed.waiting.register(1)
    timed.outgoing.take()
    for each in (unknown, waiter):
        each.future.cancel()
        timed.cancel(each)
    assert timed.outgoing.cancels == [waiter.id]
    assert timed.outgoing.urgent


async def test_a_waiter_for_which_the_budget_has_no_room(timed: LocalState, clock: BootClock) -> None:
    waiter, gone = [timed.ask(Queue.BATCH, NO_FLOW, 0, clock.now) for _ in range(2)]
    timed.waiting.register(32)
    timed.outgoing.take()
    gone.future.cancel()
    for each in (waiter, gone):
        timed.refused(each.id)
    with pytest.raises(BudgetExhausted):
        waiter.future.result()
    assert timed.outgoing.cancels == [waiter.id, gone.id]
    assert len(timed.waiting) == 0
