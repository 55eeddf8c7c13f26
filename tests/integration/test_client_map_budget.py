"""What a map yields when the key's budget ends: all that was sampled, and a failure for the rest."""

from __future__ import annotations

import asyncio

from brimful import AsyncFleet
from brimful.outcome import Cause, Failure
from brimful.request import Request
from brimful_worker.local.server.valkey import Valkey
from support.stub_fleet import StubSampler, stub_fleet


async def test_what_was_sampled_before_the_budget_ended_comes_out(valkey: Valkey) -> None:
    """In an ordered map the second result waits for the first, which is never sampled."""
    sampled = asyncio.Event()

    async def answer(request: Request) -> Failure | None:
        if request.prompts == ["first"]:
            await sampled.wait()
            return Failure(Cause.BUDGET, "the budget is used up", 402, permanent=True)
        sampled.set()
        return None

    async with stub_fleet(valkey.url, StubSampler(answer)), AsyncFleet(valkey.url) as fleet, asyncio.timeout(120):
        found = [one async for one in fleet.map(["first", "second"], max_tokens=8, pack="off")]
    assert [(one.index, one.ok) for one in found] == [(0, False), (1, True)]
    assert found[1].text == "second#0"
