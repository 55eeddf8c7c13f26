"""Maps without a fleet: how far an ordered one reads ahead, and what the calls of a split request add up to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from brimful import Fleet
from brimful.client import mapping
from brimful.client.mapping import MapRun
from brimful.config import Settings
from brimful.outcome import Cause, Outcome, Rollout
from brimful.packing.units import Delivered, DriveStatus, Unit
from brimful.request import Request
from brimful.testing import Backend

AHEAD = 20_000
COUNT = AHEAD + 3000


class LateDriver:
    """It delivers nothing until the map reads no further, and then all. It asks for units all the time."""

    async def deliveries(self, units: AsyncIterator[Unit], *, total: int | None) -> AsyncIterator[list[Delivered]]:
        held = [_delivered(await anext(units)) for _ in range(AHEAD + 1)]
        following = asyncio.ensure_future(anext(units))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not following.done(), "it reads no further ahead than that"
        yield held
        yield [_delivered(await following)]
        yield [_delivered(unit) async for unit in units]

    def snapshot(self) -> DriveStatus:
        return DriveStatus()

    async def aclose(self) -> None: ...


def _delivered(unit: Unit) -> Delivered:
    return Delivered(unit.line, unit.id, [Rollout(0, 0, unit.id, "stop")], "m", None, Outcome(unit.id), 1)


async def test_more_requests_than_it_reads_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.load()

    async def open_driver(*_: Any) -> tuple[Any, Settings]:
        return LateDriver(), settings

    async def prompts() -> AsyncIterator[str]:
        for _ in range(COUNT):
            yield "a"

    monkeypatch.setattr(mapping, "open_driver", open_driver)
    run = MapRun(prompts(), settings, "off", "batch", None, {"max_tokens": 8}, ordered=True)
    seen: list[int] = []
    async with asyncio.timeout(120):
        async for batch in run.batches():
            seen += [one.index for one in batch]
    assert seen == list(range(COUNT))


class StoppedDriver(LateDriver):
    """The budget ends after the second request was sampled, and before the first and the third were sent."""

    async def deliveries(self, units: AsyncIterator[Unit], *, total: int | None) -> AsyncIterator[list[Delivered]]:
        sent = [unit async for unit in units]
        yield [_delivered(sent[1])]

    def snapshot(self) -> DriveStatus:
        return DriveStatus(stopping="budget")


@pytest.mark.parametrize("ordered", [True, False])
async def test_what_was_sampled_before_the_budget_ended(monkeypatch: pytest.MonkeyPatch, ordered: bool) -> None:
    settings = Settings.load()

    async def open_driver(*_: Any) -> tuple[Any, Settings]:
        return StoppedDriver(), settings

    monkeypatch.setattr(mapping, "open_driver", open_driver)
    run = MapRun(["a", "b", "c"], settings, "off", "batch", None, {"max_tokens": 8}, ordered=ordered)
    found = sorted([one async for batch in run.batches() for one in batch], key=lambda one: one.index)
    assert [one.ok for one in found] == [False, True, False]
    assert found[1].text == "1"
    for one in (found[0], found[2]):
        assert one.failure is not None
        assert one.failure.cause is Cause.CANCELLED
        assert "the map stopped (budget)" in one.failure.message


def test_a_request_in_several_calls_has_the_usage_of_all_of_them() -> None:
    """Eight choices of 8,000 tokens are two calls of four."""

    def answer(request: Request) -> dict[str, Any]:
        choices = [{"index": place, "text": "a", "finish_reason": "stop"} for place in range(request.n)]
        usage = {"prompt_tokens": 3, "completion_tokens": request.n, "total_tokens": 3 + request.n}
        return {"id": "c", "model": "m", "choices": choices, "usage": usage}

    with Backend(answer) as backend, Fleet() as fleet:
        (one,) = fleet.map([{"prompt": "a", "n": 8, "max_tokens": 8000}])
    assert [request.n for request in backend.requests] == [4, 4]
    assert one.usage == {"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14}
    assert (one.attempts, len(one.rollouts)) == (2, 8)
    assert [rollout.choice_index for rollout in one.rollouts] == list(range(8))
