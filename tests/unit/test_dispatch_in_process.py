"""A driver whose requests a test answers, on the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from brimful.dispatch.in_process import InProcessDriver
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.units import Delivered, DriveStatus, Failed, Unit
from brimful.request import Request
from brimful.runtime.port import InProcess
from support.packed import ACS, unit
from support.stub_fleet import completion
from support.waiting import wait_until_async


class Backend:
    """Answers what ``answer`` lets through; ``asked`` are all prompts so far."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Failure | None = None
        self.error: Exception | None = None

    def start(self, asked: Coroutine[Any, Any, Outcome]) -> Future[Outcome]:
        return asyncio.run_coroutine_threadsafe(asked, asyncio.get_running_loop())

    async def sample(self, fields: dict[str, Any], headers: dict[str, Any]) -> Outcome:
        request = Request.parse(fields, ACS)
        self.asked += request.prompts
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.failure is not None:
            return Outcome(request.id, failure=self.failure)
        return Outcome(request.id, completion(request), attempts=1)


async def stream(units: Iterable[Unit | Failed]) -> AsyncIterator[Unit | Failed]:
    for each in units:
        yield each


def driver_of(backend: Backend) -> InProcessDriver:
    return InProcessDriver(cast(InProcess, backend), ACS)


async def drive(backend: Backend, units: Any) -> list[Delivered | Failed]:
    driver = driver_of(backend)
    assert driver.snapshot() == DriveStatus()
    return [item async for batch in driver.deliveries(units) for item in batch]


@pytest.mark.parametrize("kind", [iter, stream])
async def test_each_prompt_is_asked_and_delivered(kind: Any) -> None:
    backend = Backend()
    items = await drive(backend, kind([unit(1, prompt=["a", "b"], n=2), unit(2)]))
    assert sorted(backend.asked) == ["a", "b", "p2"]
    texts = {
        (item.line, rollout.prompt_index, rollout.choice_index): rollout.text
        for item in items
        if isinstance(item, Delivered)
        for rollout in item.rollouts
    }
    asked = {(1, 0): "a", (1, 1): "b", (2, 0): "p2"}
    assert texts == {
        (line, prompt, choice): f"{text}#{choice}"
        for (line, prompt), text in asked.items()
        for choice in range(2 if line == 1 else 1)
    }


async def test_failures_are_delivered_by_line() -> None:
    backend = Backend()
    backend.failure = Failure(Cause.BAD_REQUEST, "no", permanent=True)
    large = unit(2, prompt=["a", "b"], n=2, max_tokens=40_000)
    given = Failed(3, "3", None, ((0, 0),), backend.failure, Outcome("3", failure=backend.failure))
    items = await drive(backend, stream([unit(1), large, given]))
    first, second, third = sorted(items, key=lambda item: item.line)
    assert isinstance(first, Failed)
    assert isinstance(second, Failed)
    assert (first.failure, first.wanted) == (backend.failure, ((0, 0),))
    assert (second.failure.cause, second.failure.permanent) == (Cause.BAD_REQUEST, True)
    assert second.wanted == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert third is given
    assert backend.asked == ["p1"]


async def test_64_requests_are_under_way_at_once() -> None:
    backend = Backend()
    backend.gate.clear()
    driving = asyncio.create_task(drive(backend, stream([unit(line) for line in range(100)])))
    await wait_until_async(lambda: len(backend.asked) >= 64, "as many as there is room for", 60)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(backend.asked) == 64
    backend.gate.set()
    assert len(await driving) == 100


async def test_lines_that_are_cancelled_are_neither_asked_nor_delivered() -> None:
    backend = Backend()
    backend.gate.clear()
    driver = driver_of(backend)
    items: list[Delivered | Failed] = []

    async def collect() -> None:
        async for batch in driver.deliveries(stream([unit(line) for line in range(70)])):
            items.extend(batch)

    collecting = asyncio.create_task(collect())
    await wait_until_async(lambda: len(backend.asked) == 64, "as many as there is room for", 60)
    await driver.cancel({3, 69})
    backend.gate.set()
    await asyncio.wait_for(collecting, 60)
    assert sorted(item.line for item in items) == [line for line in range(70) if line not in (3, 69)]
    assert "p69" not in backend.asked


@pytest.mark.parametrize("where", ["the answer", "the units"])
async def test_an_error_of_the_test_is_raised(where: str) -> None:
    backend = Backend()

    async def broken() -> AsyncIterator[Unit]:
        yield unit(1)
        if where == "the units":
            raise RuntimeError("mine")

    if where == "the answer":
        backend.error = RuntimeError("mine")
    with pytest.raises(RuntimeError, match="mine"):
        await asyncio.wait_for(drive(backend, broken()), 60)


async def test_a_consumer_that_leaves_ends_all(caplog: pytest.LogCaptureFixture) -> None:
    backend = Backend()
    driver = driver_of(backend)
    deliveries = driver.deliveries(stream([unit(line) for line in range(1000)]))
    await anext(deliveries)
    await deliveries.aclose()
    asked = len(backend.asked)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(backend.asked) == asked < 1000
