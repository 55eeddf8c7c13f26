"""A slot whose request has ended is kept back for a moment, where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brimful_worker.admission import Lease
from brimful_worker.admission import lease as lease_module
from brimful_worker.admission import local_state as local_state_module
from brimful_worker.admission.local_state import LocalState
from brimful_worker.admission.policy import Limits
from brimful_worker.admission.waiters import Queue


class SameClock:
    """Redis's clock shows what the steady one does."""

    def not_after(self, at_ms: float) -> float:
        return at_ms / 1000


class Future:
    """As much of a future as a ticket needs."""

    value: Lease | None = None

    def done(self) -> bool:
        return self.value is not None

    def set_result(self, value: Lease) -> None:
        self.value = value


class Clock:
    """The steady clock and the loop's timers, both moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> Timer:
        timer = Timer(self.now + delay, call, args)
        self.timers.append(timer)
        return timer

    def create_future(self) -> Future:
        return Future()

    def move(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.at <= self.now]
        self.timers = [timer for timer in self.timers if timer.at > self.now]
        for timer in due:
            if not timer.cancelled:
                timer.call(*timer.args)


class Timer:
    def __init__(self, at: float, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.at, self.call, self.args, self.cancelled = at, call, args, False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (local_state_module, lease_module):
        monkeypatch.setattr(module, "boot_time", lambda: clock.now)
    monkeypatch.setattr(local_state_module.asyncio, "get_running_loop", lambda: clock)
    return clock


@pytest.fixture
def local_state(clock: Clock) -> LocalState:
    return LocalState("abc", Limits(starts=None, cooloff_s=1.0), SameClock(), lambda: None)  # type: ignore[arg-type]


def wired(local_state: LocalState, clock: Clock, seconds: float) -> Lease:
    """A lease whose request was on the wire for so long."""
    ticket = local_state.ask(Queue.BATCH, 0, clock.now)
    local_state.waiting.register(32)
    local_state.granted(ticket.id, clock.now * 1000)
    lease = ticket.future.value  # type: ignore[attr-defined]
    assert isinstance(lease, Lease)
    lease.sent()
    clock.now += seconds
    return lease


@pytest.mark.parametrize(("seconds", "rest"), [(0.1, 0.005), (1.2, 0.012), (5.0, 0.02)])
def test_it_is_released_one_hundredth_of_its_time_later(
    local_state: LocalState, clock: Clock, seconds: float, rest: float
) -> None:
    lease = wired(local_state, clock, seconds)
    lease.report(ok=True, tokens_used=7, settle_s=0.02)
    local_state.end(lease, failed=False)
    clock.move(rest - 0.001)
    assert not local_state.outbox
    assert list(local_state.held) == [lease], "held and renewed"
    clock.move(0.003)
    assert local_state.outbox.releases == [[lease.id, 0, 1, 7, 0]]
    assert not local_state.held


def test_without_being_asked_for_it_is_at_once(local_state: LocalState, clock: Clock) -> None:
    lease = wired(local_state, clock, 1.0)
    lease.report(ok=True)
    local_state.end(lease, failed=False)
    assert local_state.outbox.releases == [[lease.id, 0, 1, -1, 0]]
    assert not clock.timers


def test_a_cooloff_and_a_return_do_not_settle_besides(local_state: LocalState, clock: Clock) -> None:
    aborted, returned = wired(local_state, clock, 1.0), wired(local_state, clock, 0.0)
    returned.wired = False
    returned.give_back()
    aborted.report(ok=None, cooloff_s=1.0, settle_s=0.02)
    returned.report(ok=None, settle_s=0.02)
    local_state.end(aborted, failed=False)
    local_state.end(returned, failed=False)
    assert local_state.outbox.releases == [[aborted.id, 1000, -1, -1, 0], [returned.id, 0, -1, -1, 1]]


def test_what_is_left_at_the_end_rests_in_redis(local_state: LocalState, clock: Clock) -> None:
    lease, late = wired(local_state, clock, 1.0), wired(local_state, clock, 1.0)
    lease.report(ok=True, settle_s=0.02)
    late.report(ok=True, settle_s=0.02)
    local_state.end(lease, failed=False)
    clock.move(0.0075)
    local_state.settle_all()
    assert local_state.outbox.releases == [[lease.id, 13, 1, -1, 0]]
    local_state.closed = "the admission is closed"
    local_state.end(late, failed=False)
    assert local_state.outbox.releases[1] == [late.id, 11, 1, -1, 0]
    clock.move(1.0)
    assert len(local_state.outbox.releases) == 2


def test_a_lease_lost_while_it_settles_is_told_once(local_state: LocalState, clock: Clock) -> None:
    lease = wired(local_state, clock, 1.0)
    lease.report(ok=True, settle_s=0.02)
    local_state.end(lease, failed=False)
    local_state.lost(lease.id)
    assert not local_state.held
    assert not local_state.ending
    clock.move(0.1)
    assert local_state.outbox.releases == [[lease.id, 0, 1, -1, 0]]


def test_a_lease_that_redis_says_is_lost_is_over_at_once(local_state: LocalState, clock: Clock) -> None:
    """The turn that tells of it has just put its end off, with all that it renewed."""
    lost, kept = wired(local_state, clock, 1.0), wired(local_state, clock, 1.0)
    local_state.to_renew(clock.now + 60)
    local_state.renewed(clock.now)
    local_state.lost(lost.id)
    assert lost.deadline <= clock.now < kept.deadline
    assert local_state._first_end() <= clock.now
    local_state.end(lost, failed=True)
    assert local_state._first_end() == kept.deadline


def test_how_long_a_process_may_stand_still(local_state: LocalState, clock: Clock) -> None:
    whole = 8 - 1.25 - 8 / 3
    assert local_state.patience() == pytest.approx(whole)
    wired(local_state, clock, 1.0)
    assert local_state.patience() == pytest.approx(whole), "renewals are due in time"
    clock.now += 4.0
    assert local_state.patience() == pytest.approx(1.75), "they did not come: Redis is away"
    clock.now += 4.0
    assert local_state.patience() == pytest.approx(whole), "the watchdog has ended it"
