"""The mock gateway's limits, latency and options."""

from __future__ import annotations

import asyncio

import pytest

from brimful.errors import SettingError
from brimful_worker.gateway.limits import Budget, Slots, Window
from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.responses import Refusal, retry_headers


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_slots_are_handed_over_in_order() -> None:
    slots = Slots(1, 2, Clock())
    order: list[str] = []

    async def visit(name: str) -> None:
        await slots.take()
        order.append(name)

    await slots.take()
    waiting = [asyncio.create_task(visit(name)) for name in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(Refusal, match="2 requests waiting"):
        await slots.take()
    slots.give()
    await waiting[0]
    assert (order, slots.active, slots.waiting) == (["a"], 1, 1)
    slots.give()
    await waiting[1]
    slots.give()
    assert (order, slots.active, slots.waiting) == (["a", "b"], 0, 0)
    assert (slots.peak_active, slots.peak_waiting, slots.peak_present) == (1, 2, 3)


async def test_a_cancelled_waiter_is_skipped() -> None:
    slots = Slots(1, 8, Clock())
    await slots.take()
    first, second = (asyncio.create_task(slots.take()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    assert slots.waiting == 1
    slots.give()
    await second
    assert (slots.active, slots.waiting) == (1, 0)


async def test_a_waiter_cancelled_when_it_gets_its_slot_gives_it_back() -> None:
    slots = Slots(1, 8, Clock())
    await slots.take()
    waiter = asyncio.create_task(slots.take())
    await asyncio.sleep(0)
    slots.give()
    waiter.cancel()
    await asyncio.wait([waiter])
    assert slots.active == 0
    await slots.take()


async def test_jobs_wait_without_counting_among_the_waiters() -> None:
    slots = Slots(1, 0, Clock())
    await slots.take()
    job = asyncio.create_task(slots.take(background=True))
    await asyncio.sleep(0)
    assert slots.waiting == 0
    slots.give()
    await job
    assert slots.active == 1


async def test_raising_the_limit_wakes_the_waiters() -> None:
    slots = Slots(1, 8, Clock())
    await slots.take()
    waiters = [asyncio.create_task(slots.take()) for _ in range(3)]
    await asyncio.sleep(0)
    slots.resize(None)
    await asyncio.gather(*waiters)
    assert slots.active == 4


async def test_slot_seconds_are_the_integral_of_active() -> None:
    clock = Clock()
    slots = Slots(None, 0, clock)
    await slots.take()
    clock.now += 2
    await slots.take()
    clock.now += 3
    slots.give()
    assert slots.slot_seconds == 8
    clock.now += 1
    assert slots.slot_seconds == 9


def test_the_window_is_exact() -> None:
    window = Window(60)
    assert [window.admit(t, 2) for t in (0, 10)] == [None, None]
    assert window.admit(59.5, 2) == 0.5
    assert window.admit(60, 2) is None, "of two events exactly a window apart the first has left it"
    assert window.admit(60, 2) == 10
    assert window.peak == 2


def test_budget_holds_and_settles() -> None:
    budget = Budget(100)
    assert budget.hold(60)
    assert not budget.hold(41)
    budget.settle(60, 10)
    assert (budget.left, budget.used, budget.refused) == (90, 10, 1)
    assert budget.hold(90)
    assert not Budget(0).hold(1)
    assert Budget(None).hold(10**9)


def test_latency() -> None:
    options = GatewayOptions(latency_s=0.2, per_token_s=0.01, batch_factor=0.02)
    assert options.seconds(max_tokens=32, choices=1) == pytest.approx(0.52)
    assert options.seconds(max_tokens=32, choices=51) == pytest.approx(0.2 + 0.32 * 2)
    options.proportional = True
    assert options.seconds(max_tokens=32, choices=10) == pytest.approx(5.2)
    options.jitter = 0.5
    assert options.seconds(max_tokens=32, choices=1, random=0.0) == pytest.approx(0.26)


def test_a_heavy_tail() -> None:
    options = GatewayOptions(latency_s=1.0, per_token_s=0.0, tail=0.5)
    assert options.seconds(max_tokens=8, choices=1, tail=0.0) == pytest.approx(1.0)
    assert options.seconds(max_tokens=8, choices=1, tail=0.99) == pytest.approx(10.0)
    assert options.seconds(max_tokens=8, choices=1, tail=1 - 1e-12) == 100.0
    # As slow as the slowest of eight: all of them are below the 99th percentile with a chance of 0.99^8.
    assert options.seconds(max_tokens=8, choices=8, tail=0.99**8) == pytest.approx(10.0)


def test_options_change_all_or_nothing() -> None:
    options = GatewayOptions()
    with pytest.raises(SettingError, match="waiters"):
        options.change({"slots": 3, "waiters": -1})
    assert options.slots == 16
    with pytest.raises(SettingError, match="retry_after"):
        options.change({"retry_after": "soon"})
    with pytest.raises(SettingError, match="no such option"):
        options.change({"slot": 3})
    options.change({"slots": None, "models": ["m"]})
    assert (options.slots, options.models) == (None, ("m",))


@pytest.mark.parametrize(
    ("form", "headers"),
    [
        ("seconds", {"Retry-After": "2"}),
        ("fraction", {"Retry-After": "1.200"}),
        ("ms", {"retry-after-ms": "1200"}),
        ("none", {}),
    ],
)
def test_retry_after_forms(form: str, headers: dict[str, str]) -> None:
    assert retry_headers(form, 1.2) == headers


def test_retry_after_as_a_date() -> None:
    assert retry_headers("date", 1.2)["Retry-After"].endswith(" GMT")
