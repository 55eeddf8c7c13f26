"""The gate that keeps requests under the end of the budget."""

from __future__ import annotations

import asyncio

import pytest

from brimful_worker.sampling.budget import BudgetGate


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
