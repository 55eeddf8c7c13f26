"""Callers that all want everything get shares by their weights, at one front door and at two."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from brimful.state.callers.tokens import add_caller
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey
from support.doors import Door, door
from support.gateways import running_gateway
from support.waiting import wait_until_async

WEIGHTS = {"a": 3.0, "b": 1.0, "c": 1.0}
COUNTED = 800
WAITING = 48
"""Requests of each caller that wait or run, at all front doors."""


@pytest.mark.parametrize("doors", [1, 2])
async def test_shares_follow_the_weights(monkeypatch: pytest.MonkeyPatch, valkey: Valkey, doors: int) -> None:
    with sync_redis_client(valkey.url) as client:
        tokens = {name: add_caller(client, "", name, weight=weight) for name, weight in WEIGHTS.items()}
    done: Counter[str] = Counter()

    async def keep_asking(here: Door, name: str) -> None:
        while done.total() < COUNTED:
            body = {"model": "llama-8b", "prompt": "a", "max_tokens": 1}
            status, _, _ = await here.post("completions", body, Authorization=f"Bearer {tokens[name]}")
            assert status == 200
            if done.total() < COUNTED:
                done[name] += 1

    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(latency_s=0.05, starts=100_000))
        opened = [
            await stack.enter_async_context(door(monkeypatch, valkey.url, gateway.url, clean=not index, starts=100_000))
            for index in range(doors)
        ]
        for here in opened:
            await wait_until_async(lambda here=here: len(here.front.callers._callers) == 3, "the callers to be known")
        asking = [keep_asking(here, name) for here in opened for name in WEIGHTS for _ in range(WAITING // doors)]
        await asyncio.gather(*asking)
        assert gateway.slots.peak_active <= 16
    shares = {name: done[name] / done.total() for name in WEIGHTS}
    for name, wanted in (("a", 0.6), ("b", 0.2), ("c", 0.2)):
        assert abs(shares[name] - wanted) <= 0.03, shares
