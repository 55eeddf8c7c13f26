"""Callers that all want everything get shares by their weights, over one front door or several."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from brimful.state.callers.tokens import add_caller
from brimful.state.keys import caller_shares_key, callers_clock_key
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.serve.callers.clock import timed_script
from support.doors import Door, door
from support.gateways import running_gateway
from support.measuring import one_of_three_async
from support.waiting import wait_until_async

WEIGHTS = {"a": 3.0, "b": 1.0, "c": 1.0}
SLOW: Any = {"starts": 100_000, "lease_s": 60, "guard_s": 10}
"""Callers, front doors and the gateway share one process, which a busy machine may stop for seconds."""
FIRST = 80
"""Not counted: while the callers begin."""
COUNTED = 1000
WHERE: dict[str, list[Mapping[str, int]]] = {
    "one": [{"a": 48, "b": 48, "c": 48}],
    "apart": [{"a": 48}, {"b": 48, "c": 48}],
    "mixed": [{"a": 40, "b": 40}, {"a": 8, "c": 48}, {"b": 8}],
}
"""At each front door: how many requests of each caller wait or run."""


@pytest.mark.parametrize("where", ["one", pytest.param("apart", marks=pytest.mark.compat), "mixed"])
async def test_shares_follow_the_weights(monkeypatch: pytest.MonkeyPatch, valkey: Valkey, where: str) -> None:
    with sync_redis_client(valkey.url) as client:
        tokens = {name: add_caller(client, "", name, weight=weight) for name, weight in WEIGHTS.items()}
    done: Counter[str] = Counter()
    total = 0

    async def keep_asking(here: Door, name: str) -> None:
        nonlocal total
        while total < FIRST + COUNTED:
            body = {"model": "llama-8b", "prompt": "a", "max_tokens": 1}
            status, _, _ = await here.post("completions", body, Authorization=f"Bearer {tokens[name]}")
            assert status == 200
            total += 1
            if FIRST < total <= FIRST + COUNTED:
                done[name] += 1

    async def measured(opened: list[Door]) -> dict[str, float]:
        nonlocal total
        total = 0
        done.clear()
        asking = [
            keep_asking(here, name)
            for here, wanted in zip(opened, WHERE[where], strict=True)
            for name, number in wanted.items()
            for _ in range(number)
        ]
        await asyncio.gather(*asking)
        return {name: done[name] / COUNTED for name in WEIGHTS}

    def as_wanted(shares: dict[str, float]) -> bool:
        return all(abs(shares[name] - wanted) <= 0.03 for name, wanted in (("a", 0.6), ("b", 0.2), ("c", 0.2)))

    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(latency_s=0.05, starts=100_000))
        opened = [
            await stack.enter_async_context(door(monkeypatch, valkey.url, gateway.url, clean=not index, **SLOW))
            for index in range(len(WHERE[where]))
        ]
        for here in opened:
            await wait_until_async(lambda here=here: here.front.callers.named("a"), "the callers to be known")
        await one_of_three_async(lambda: measured(opened), as_wanted)  # the doors tell each other after some time
        assert gateway.slots.peak_active <= 16


async def test_one_that_comes_late_gets_its_share_at_once(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    with sync_redis_client(valkey.url) as client:
        tokens = {name: add_caller(client, "", name) for name in ("early", "late")}
    order: list[str] = []

    async def ask(here: Door, name: str) -> None:
        body = {"model": "llama-8b", "prompt": "a", "max_tokens": 1}
        status, _, _ = await here.post("completions", body, Authorization=f"Bearer {tokens[name]}")
        assert status == 200
        order.append(name)

    async with (
        running_gateway(latency_s=0.1, starts=100_000) as gateway,
        door(monkeypatch, valkey.url, gateway.url, starts=100_000) as one,
        door(monkeypatch, valkey.url, gateway.url, clean=False, starts=100_000) as two,
    ):
        for here in (one, two):
            await wait_until_async(lambda here=here: here.front.callers.named("late"), "the callers to be known")
        early = [asyncio.create_task(ask(one, "early")) for _ in range(400)]
        await wait_until_async(lambda: len(order) >= 100, "the first answers")
        before = len(order)
        await asyncio.gather(*(ask(two, "late") for _ in range(60)))
        meanwhile = order[before:].count("early")
        assert gateway.slots.peak_active <= 16
        await asyncio.gather(*early)
    assert 30 <= meanwhile <= 110, "as many for each, but for what was on its way; first come, first served gives 240"


async def test_a_report_that_fails_is_logged_once_and_made_again(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    key = caller_shares_key("", "interactive")
    with sync_redis_client(valkey.url) as client:
        token = add_caller(client, "", "ann")
        async with (
            running_gateway(per_token_s=30.0, starts=100_000) as gateway,
            door(monkeypatch, valkey.url, gateway.url, slots=1) as here,
        ):
            await wait_until_async(lambda: here.front.callers.named("ann"), "the caller to be known")
            body = {"model": "llama-8b", "prompt": "a", "max_tokens": 1}
            asking = [
                asyncio.create_task(here.post("completions", body, Authorization=f"Bearer {token}")) for _ in range(3)
            ]
            await wait_until_async(lambda: client.exists(key), "the first report")
            client.hset(key, "process later", json.dumps({"at": 2**50, "waiting": {"bob": {"weight": 1}}}))
            await wait_until_async(lambda: "report to Redis fails" in caplog.text, "the failure", 60)
            client.delete(key)
            await wait_until_async(lambda: client.exists(key), "the next report", 60)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    assert caplog.text.count("report to Redis fails") == 1
    assert "bob" not in caplog.text


async def test_a_front_door_that_dies_leaves_its_share_to_the_others(valkey: Valkey) -> None:
    script = timed_script("shares.lua").text
    with sync_redis_client(valkey.url) as client:

        def report(door: str, waiting: dict[str, Any], granted: dict[str, Any] | None = None) -> Any:
            told = json.dumps({"granted": granted or {}, "waiting": waiting})
            keys = caller_shares_key("", "batch"), callers_clock_key("")
            answer: Any = client.eval(script, len(keys), *keys, door, 300, told, "", 0)
            return json.loads(answer)

        report("one", {"a": [1, 5, 0.0]})
        both = report("two", {"b": [2, 5, 0.0]}, {"a": [8, 1], "b": [2, 2]})
        assert set(both["waiting"]) == {"one", "two"}
        assert both["served"] == {"a": 8, "b": 1}
        assert both["clock"] == 1

        def alone() -> bool:
            return set(report("two", {"b": [2, 5, 0.0]})["waiting"]) == {"two"}

        await wait_until_async(alone, "the other's lease to end")
        assert report("two", {"b": [2, 5, 0.0]}, {"b": [40, 2]})["clock"] == 21
        assert report("two", {"a": [1, 5, 0.0]})["served"]["a"] == 21, "nothing is saved for later"
        report("two", {})
        left: Any = client.hgetall(caller_shares_key("", "batch"))
        assert left.keys() == {"clock"}
