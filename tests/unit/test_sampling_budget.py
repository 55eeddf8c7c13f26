"""The gate that keeps requests under the end of the budget."""

from __future__ import annotations

import asyncio

import pytest

from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.sampling.budget import BudgetGate, in_flight_elsewhere
from support.fake_admission import FakeAdmission, FakeStatus


async def test_an_open_gate_lets_every_request_pass() -> None:
    gate = BudgetGate()
    for _ in range(1000):
        await gate.wait()
        assert gate.enter()
    assert (gate.holding, gate.limit) == (1000, None)


async def test_a_refusal_sets_how_many_fit_and_the_next_enters_when_one_ends() -> None:
    gate = BudgetGate()
    for _ in range(5):
        assert gate.enter()
    gate.refused()
    gate.leave()  # the refused one
    assert (gate.limit, gate.holding) == (4, 4)
    assert not gate.enter()
    turn = asyncio.ensure_future(gate.wait())
    await asyncio.sleep(0)
    assert not turn.done()
    gate.fitted()
    gate.leave()
    await turn
    assert gate.enter()


async def test_while_no_hold_ends_only_probes_are_sent() -> None:
    now = 100.0
    gate = BudgetGate(lambda: now, lambda: 0.0)
    assert gate.enter()
    gate.refused()
    gate.leave()
    assert not gate.enter()
    now += 0.26
    assert gate.enter()
    assert not gate.enter(), "one probe at a time"
    gate.refused()
    gate.leave()
    now += 0.26
    assert not gate.enter(), "the next one later"
    now += 0.26
    await gate.wait()
    assert gate.enter()


async def test_a_waiter_is_woken_when_the_next_probe_is_due() -> None:
    gate = BudgetGate(uniform=lambda: -1.0)  # no pause at all
    assert gate.enter()
    gate.refused()
    gate.leave()
    await asyncio.wait_for(gate.wait(), 60)


async def test_the_limit_grows_by_one_a_round_until_the_gate_opens() -> None:
    gate = BudgetGate()
    for _ in range(4):
        assert gate.enter()
    gate.refused()
    gate.leave()
    for _ in range(3):
        gate.fitted()
        gate.leave()
    assert int(gate.limit or 0) == 3, "3 + 1/3 + … is not yet 4"
    for _ in range(100):
        gate.fitted()
    assert gate.limit is None


async def test_the_end_wakes_all_waiters_and_is_forgotten_in_time() -> None:
    now = 100.0
    gate = BudgetGate(lambda: now)
    assert gate.enter()
    gate.refused()
    turn = asyncio.ensure_future(gate.wait())
    await asyncio.sleep(0)
    gate.end(500)
    gate.leave()
    await turn
    assert gate.at_end(500)
    assert gate.at_end(900)
    assert not gate.at_end(499)
    gate.end(700)
    assert gate.at_end(500)
    now += 11
    assert not gate.at_end(500)
    gate.end(700)
    gate.fitted()
    assert not gate.at_end(700)


async def test_a_cancelled_waiter_passes_its_turn_on() -> None:
    gate = BudgetGate(uniform=lambda: -1.0)
    assert gate.enter()
    gate.refused()
    first, second = asyncio.ensure_future(gate.wait()), asyncio.ensure_future(gate.wait())
    await asyncio.sleep(0)
    gate.leave()  # the first is woken …
    first.cancel()  # … and cancelled before it runs
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, 60)


async def test_the_first_refusal_counts_whatever_the_clock_says() -> None:
    now = 0.0
    gate = BudgetGate(lambda: now, lambda: 0.0)
    assert gate.enter()
    gate.refused()
    gate.leave()
    assert not gate.enter()
    now = 0.25
    assert gate.enter()


async def test_probes_follow_each_other_less_and_less_often() -> None:
    now = 100.0
    gate = BudgetGate(lambda: now, lambda: 0.999999)
    pauses = []
    for _ in range(7):
        assert gate.enter()
        gate.refused()
        gate.refused()  # another one that was refused together with it
        gate.leave()
        began = now
        while not gate.enter():
            now += 0.25
        gate.leave()
        pauses.append(now - began)
    assert pauses == [0.5, 1, 2, 4, 8, 10, 10]


async def test_a_waiter_s_timer_rings_when_the_probe_is_due() -> None:
    now = 1e6
    gate = BudgetGate(lambda: now, lambda: 0.0)
    assert gate.enter()
    gate.refused()
    gate.leave()
    now += 0.249
    turn = asyncio.ensure_future(gate.wait())
    await asyncio.sleep(0)
    assert not turn.done()
    now += 1
    await asyncio.wait_for(turn, 20)


async def test_a_completion_wakes_a_waiter_at_once() -> None:
    gate = BudgetGate(lambda: 100.0, lambda: 0.0)
    assert gate.enter()
    gate.refused()
    gate.leave()
    turn = asyncio.ensure_future(gate.wait())
    await asyncio.sleep(0)
    assert not turn.done()
    gate.fitted()
    for _ in range(3):
        await asyncio.sleep(0)
    assert turn.done()


async def test_each_completion_adds_one_a_round_until_four_rounds_would_fit() -> None:
    gate = BudgetGate(lambda: 100.0)
    for _ in range(4):
        assert gate.enter()
    gate.refused()
    for _ in range(4):
        gate.leave()
    limits = []
    while gate.limit is not None:
        gate.fitted()
        limits.append(gate.limit and round(gate.limit, 3))
    assert limits == [3.333, 3.633, 3.909, None], "nothing is in flight, and 4.16 > 4"


async def test_further_refusals_lower_the_limit_and_never_raise_it() -> None:
    now = 100.0
    gate = BudgetGate(lambda: now, lambda: 0.0)
    for _ in range(9):
        assert gate.enter()
    gate.refused()
    assert gate.limit == 8
    for _ in range(5):
        gate.leave()
    gate.refused()
    assert gate.limit == 3
    now += 10
    while gate.holding > 2:
        gate.leave()
    assert gate.enter()
    gate.refused()
    assert gate.limit == 2
    while gate.holding:
        gate.leave()
    gate.refused()
    assert gate.limit == 1, "one probe at least"


async def test_the_smallest_hold_that_met_the_end_is_remembered_for_ten_seconds() -> None:
    now = 100.0
    gate = BudgetGate(lambda: now)
    assert not gate.at_end(10**9)
    gate.end(700)
    gate.end(500)
    gate.end(600)
    assert [gate.at_end(hold) for hold in (499, 500)] == [False, True]
    now += 9.9
    assert gate.at_end(500)
    now += 0.1
    assert not gate.at_end(500)
    gate.end(900)
    assert [gate.at_end(hold) for hold in (500, 900)] == [False, True]


class _Unreachable(FakeAdmission):
    async def status(self) -> FakeStatus:
        raise ConnectionError


async def test_what_an_answer_says_of_the_budget() -> None:
    refused = Classification(Kind.BUDGET)
    gate, admission = BudgetGate(lambda: 100.0), FakeAdmission(elsewhere=2)  # with the one that was refused
    assert gate.enter()
    assert not await gate.observe(refused, 500, admission)
    assert (gate.limit, gate.at_end(500)) == (1, False)
    admission.elsewhere = 1
    assert await gate.observe(refused, 500, admission)
    assert gate.at_end(500)
    assert await gate.observe(Classification(Kind.TRANSIENT), 500, admission)
    assert gate.at_end(500), "it says nothing of the budget"
    assert await gate.observe(Classification(Kind.SUCCESS, {"choices": []}), 500, admission)
    assert not gate.at_end(500)


@pytest.mark.parametrize(
    ("slots_used", "cooling", "holding", "elsewhere"), [(5, 1, 1, 3), (1, 0, 1, 0), (2, 0, 4, 3), (9, 4, 2, 4)]
)
async def test_requests_in_flight_elsewhere(slots_used: int, cooling: int, holding: int, elsewhere: int) -> None:
    class Fleet(FakeAdmission):
        async def status(self) -> FakeStatus:
            return FakeStatus(slots_used, cooling)

    gate = BudgetGate()
    for _ in range(holding):
        assert gate.enter()
    assert await in_flight_elsewhere(Fleet(), gate) == elsewhere  # type: ignore[arg-type]
    assert await in_flight_elsewhere(_Unreachable(), gate) == holding - 1  # type: ignore[arg-type]
