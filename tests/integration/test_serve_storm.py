"""Faults of the provider and callers that go away, mixed: what looks whole is whole, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from brimful_worker.local.server.valkey import Valkey
from support.doors import Door, door
from support.gateways import running_gateway
from support.waiting import wait_until_async

FAULTS = (
    "429=0.05:0.04,500:0.04,503:0.03,reset:0.03,trunc:0.03,cutjson:0.03,chunkcut:0.03,errorevent:0.05,short:0.03,"
    "nullchoices:0.02,502html:0.02,400:0.02,gzip:0.03,stale:0.03,drip=0.1:0.03,badutf8:0.02"
)
REQUESTS = 160


async def _one(here: Door, number: int, random: random.Random) -> str:
    """``whole``, ``error`` or ``gone``. Fails if an answer is neither whole nor an error."""
    stream, n = number % 2 == 1, random.choice([1, 1, 3])
    body = {"model": "llama-8b", "prompt": f"p{number}", "max_tokens": 6, "n": n, "stream": stream}
    patience = random.choice([None, None, None, 0.05, 0.3])
    try:
        async with asyncio.timeout(patience), here.http.post(f"{here.url}/completions", json=body) as answer:
            text = (await answer.read()).decode()
            status = answer.status
    except TimeoutError:
        return "gone"
    if status != 200:
        assert json.loads(text)["error"]["message"]
        return "error"
    if not stream:
        choices = json.loads(text)["choices"]
        assert sorted(choice["index"] for choice in choices) == list(range(n))
        assert all(choice["text"] for choice in choices)
        return "whole"
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if data[-1] != "[DONE]":
        assert json.loads(data[-1])["error"]["message"]
        return "error"
    ends = [choice for each in data[:-1] for choice in json.loads(each)["choices"] if choice["finish_reason"]]
    assert sorted(choice["index"] for choice in ends) == list(range(n))
    return "whole"


async def test_whole_or_an_error_and_nothing_left(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    dice = random.Random(7)
    async with (
        running_gateway(latency_s=0.05, per_token_s=0.01, faults=FAULTS, retry_after="ms", seed=7) as gateway,
        door(monkeypatch, valkey.url, gateway.url, attempts=3, circuit_breaker=0) as here,
        door(monkeypatch, valkey.url, gateway.url, attempts=3, circuit_breaker=0, clean=False) as there,
    ):
        doors = (here, there)
        found = await asyncio.gather(*(_one(doors[i % 2], i, random.Random(dice.random())) for i in range(REQUESTS)))
        assert found.count("whole") > REQUESTS / 3, found
        assert found.count("error")
        assert found.count("gone")
        for each in doors:
            await wait_until_async(lambda each=each: not each.front.gate.turns, "no request to be under way")
            await wait_until_async(lambda each=each: each.front.process.key.admission.held == 0, "no slot to be held")
            assert each.front.process.key.admission.waiting == 0
        await wait_until_async(lambda: gateway.slots.active == 0, "the provider to be idle")
        assert gateway.slots.peak_present <= 16, "none waits at the provider either"
