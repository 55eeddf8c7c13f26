"""The sampler against the mock gateway: outcomes agree with its request log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from brimful.outcome import Cause, rollouts
from brimful_worker.gateway import Gateway, GatewayOptions
from support.fake_admission import FakeAdmission
from support.gateways import running_gateway
from support.sampling import bench
from support.waiting import wait_until_async


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with Gateway(GatewayOptions(latency_s=0.0, per_token_s=0.0)) as running:
        yield running


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("The sky is", 1), (["a", "b", "c"], 3), ([5, 6, 7], 1), ([[5, 6], [7]], 2)],
    ids=["string", "strings", "tokens", "lists of tokens"],
)
async def test_every_form_of_prompt_comes_back_by_prompt_and_choice(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, prompt: object, prompts: int
) -> None:
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await it.sample(prompt, n=2, id="x", workload="interactive")
    assert outcome.failure is None
    assert outcome.completion is not None
    places = [(rollout.prompt_index, rollout.choice_index) for rollout in rollouts(outcome.completion, 2)]
    assert places == [(p, c) for p in range(prompts) for c in range(2)]
    assert (outcome.id, outcome.attempts, outcome.retries) == ("x", 1, {})
    assert outcome.started_at is not None
    assert outcome.ended_at is not None
    assert outcome.ended_at >= outcome.started_at
    assert outcome.provider_s > 0
    seen = gateway.snapshot()
    assert seen["workloads"] == {"interactive": 1}
    assert it.admission.grants[0].reports == [{"ok": True, "tokens_used": outcome.completion["usage"]["total_tokens"]}]


async def test_connections_are_reused(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, gateway.url, FakeAdmission(8)) as it:
        outcomes = await asyncio.gather(*(it.sample(f"prompt {number}") for number in range(200)))
    assert all(outcome.ok for outcome in outcomes)
    assert gateway.request_log.connections <= 8


async def test_2000_of_2000_requests_succeed_through_mixed_faults(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(faults="500:0.04,502html:0.04,503:0.04,reset:0.03,trunc:0.03,hang:0.02", slots=64, starts=None)
    async with bench(monkeypatch, gateway.url, FakeAdmission(64), timeout_s=0.5, attempts=12) as it:
        outcomes = await asyncio.gather(*(it.sample(f"prompt {number}", id=str(number)) for number in range(2000)))
    assert [outcome.id for outcome in outcomes if not outcome.ok] == []
    assert sum(outcome.attempts for outcome in outcomes) == sum(gateway.request_log.kinds.values()) == it.admission.sent
    assert gateway.request_log.attempts_max <= 12


async def test_attempts_at_the_gateway_stay_within_the_setting(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(faults="reset:0.5,500")
    async with bench(monkeypatch, gateway.url, attempts=5) as it:
        outcomes = await asyncio.gather(*(it.sample(f"prompt {number}") for number in range(20)))
    assert {outcome.attempts for outcome in outcomes} == {5}
    assert gateway.request_log.attempts_max == 5
    assert all(
        outcome.failure and outcome.failure.cause in (Cause.SERVER_ERROR, Cause.CONNECTION) for outcome in outcomes
    )


async def test_the_timeout_counts_from_sending_not_from_queueing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(latency_s=0.12)
    async with bench(monkeypatch, gateway.url, FakeAdmission(1), timeout_s=2.0) as it:
        outcomes = await asyncio.gather(*(it.sample(f"prompt {number}") for number in range(20)))
    assert [outcome.retries for outcome in outcomes] == [{}] * 20
    assert max(outcome.waited_s for outcome in outcomes) > 2.0


async def test_a_hanging_request_times_out_and_is_retried(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.set(faults="hang:x1")
    async with bench(monkeypatch, gateway.url, timeout_s=0.2) as it:
        outcome = await it.sample()
    assert outcome.ok
    assert outcome.retries == {"timeout": 1}
    assert [lease.reports[0]["ok"] for lease in it.admission.grants] == [False, True]
    first, second = (lease.cooldown_s for lease in it.admission.grants)
    assert first == 1.0, "the provider may go on with it"
    assert 0.005 <= second <= 0.02, "the release delay of a finished request"


async def test_a_stale_grant_costs_nothing_and_its_connection_is_kept(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(monkeypatch, gateway.url, FakeAdmission(4, stale=3)) as it:
        outcome = await it.sample()
        assert outcome.ok
        assert outcome.attempts == 1
        assert (len(it.admission.grants), it.admission.sent) == (4, 1)
    assert sum(gateway.request_log.kinds.values()) == 1


async def test_cancelling_drops_the_connection_at_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.set(faults="hang")
    async with bench(monkeypatch, gateway.url) as it:
        task = asyncio.create_task(it.sample())
        await wait_until_async(lambda: it.admission.sent == 1, "the request to be on the wire")
        await wait_until_async(lambda: gateway.request_log.kinds["completions"] == 1, "the gateway to see it")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until_async(lambda: gateway.request_log.connections_open == 0, "the connection to be gone")
        assert it.admission.active == 0


@pytest.mark.parametrize("seed", [None, 5])
async def test_a_server_that_ignores_n_gives_the_choices_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    async with running_gateway(ignore_n=True) as gateway, bench(monkeypatch, gateway.url) as it:
        outcome = await it.sample("a", n=4, seed=seed, max_tokens=30)
        assert outcome.completion is not None
        texts = [choice["text"] for choice in outcome.completion["choices"]]
        assert [choice["index"] for choice in outcome.completion["choices"]] == [0, 1, 2, 3]
        assert seed is None or len(set(texts)) == 4
        assert outcome.attempts == 4
        # Whose a list's choices are is not certain: the request fails, and a run divides it into single prompts.
        outcome = await it.sample(["a", "b"], n=2, max_tokens=30)
        assert outcome.failure is not None
        assert outcome.failure.permanent
        assert "ignores n" in outcome.failure.message
        assert outcome.attempts == 1
