"""What attempts cost that end without the provider's usage: all that they asked for, where it may have generated."""

from __future__ import annotations

import asyncio

import pytest

from brimful.outcome import Cause
from support.fake_admission import FakeAdmission
from support.gateways import running_gateway
from support.sampling import bench
from support.waiting import wait_until_async

COSTS = ["trunc", "reset", "close", "resetmid", "chunkcut", "cutjson", "badutf8", "hang"]
FREE = ["429bare", "429quota", "500", "503", "502html", "400", "404", "401", "402", "filter", "redirect"]


@pytest.mark.parametrize("fault", COSTS)
async def test_an_attempt_without_usage_costs_its_reservation(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    async with running_gateway() as gateway, bench(monkeypatch, gateway.url, timeout_s=0.3, attempts=3) as it:
        assert (await it.sample("on a reused connection")).ok
        before = gateway.budget.used
        gateway.set(faults=f"{fault}:x1")
        outcome = await it.sample([1, 2, 3], max_tokens=6)
    hold = 3 + 6
    assert outcome.unmetered_tokens == hold
    assert outcome.completion is not None
    told = (outcome.completion.get("usage") or {}).get("total_tokens", 0)
    assert gateway.budget.used - before <= told + outcome.unmetered_tokens
    costs = [lease.reports[0]["tokens_used"] for lease in it.admission.grants[1:]]
    assert costs[0] is None, "admission then counts the reservation"
    assert outcome.from_message(outcome.as_message()).unmetered_tokens == hold


@pytest.mark.parametrize("usage", ["missing", "zero", "one_choice"])
async def test_usage_that_is_missing_or_wrong_is_estimated(monkeypatch: pytest.MonkeyPatch, usage: str) -> None:
    """And what the estimate may lack up to the reservation is charged too."""
    async with running_gateway(usage=usage) as gateway, bench(monkeypatch, gateway.url) as it:
        outcome = await it.sample([[1, 2, 3], [4, 5]], max_tokens=6)
        assert outcome.completion is not None
        told = outcome.completion["usage"]
        assert told == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17, "estimated": True}
        assert (gateway.budget.used, outcome.unmetered_tokens) == (17, 0)
        before = gateway.budget.used
        prompts = [f"a longer prompt, number {number}" for number in range(4)]
        request = it.request(prompts, max_tokens=500)
        outcome = await it.sample(prompts, max_tokens=500)
        assert outcome.completion is not None
        told = outcome.completion["usage"]
        assert told["total_tokens"] + outcome.unmetered_tokens >= request.hold >= gateway.budget.used - before
        assert it.admission.grants[1].reports[0]["tokens_used"] == request.hold


@pytest.mark.parametrize("fault", FREE)
async def test_a_refused_attempt_costs_nothing(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    async with running_gateway() as gateway, bench(monkeypatch, gateway.url, attempts=3) as it:
        gateway.set(faults=f"{fault}:x1")
        outcome = await it.sample()
        used = (outcome.completion or {}).get("usage", {}).get("total_tokens", 0)
    assert gateway.budget.used == used
    assert outcome.unmetered_tokens == 0
    assert it.admission.grants[0].reports[0]["tokens_used"] == 0


async def test_a_connection_that_is_refused_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, "http://127.0.0.1:1/v1", attempts=2) as it:
        outcome = await it.sample()
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.unmetered_tokens) == (Cause.CONNECTION, 0)
    assert {lease.reports[0]["tokens_used"] for lease in it.admission.grants} == {0}


async def test_a_request_whose_lease_is_lost_costs_its_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway() as gateway, bench(monkeypatch, gateway.url) as it:
        gateway.set(faults="hang:x1")
        sampling = asyncio.create_task(it.sample())
        await wait_until_async(lambda: it.admission.sent == 1, "the request to be sent")
        it.admission.lose(sampling)
        outcome = await sampling
    assert outcome.ok
    assert outcome.unmetered_tokens == it.request().hold


async def test_a_job_is_found_again_and_costs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway() as gateway, bench(monkeypatch, gateway.url, FakeAdmission()) as it:
        gateway.set(faults="reset:x1")
        outcome = await it.sample("hi", mode="job", id="job")
        assert outcome.completion is not None
        assert gateway.budget.used == outcome.completion["usage"]["total_tokens"]
        assert outcome.unmetered_tokens == 0
        gateway.set(faults="jobfail")
        outcome = await it.sample("ho", mode="job", id="other")
    assert not outcome.ok
    assert outcome.unmetered_tokens >= it.request("ho").hold
