"""Throttling, budgets, refused keys and junk answers from the mock gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from brimful.outcome import Cause
from brimful_worker.gateway import Gateway, GatewayOptions
from brimful_worker.provider import Provider
from support.fake_admission import FakeAdmission
from support.sampling import KEY, bench
from support.waiting import wait_until_async


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with Gateway(GatewayOptions(latency_s=0.0, per_token_s=0.0)) as running:
        yield running


# -- throttling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["seconds", "fraction", "ms", "date"])
async def test_a_retry_after_pauses_the_fleet_while_the_slot_is_still_held(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    gateway.set(faults="429=1:x1", retry_after=form)
    held: list[int] = []

    class Watching(FakeAdmission):
        async def pause(self, seconds: float, reason: str, *, until_accepted: bool = False) -> None:
            held.append(self.active)
            await super().pause(0.0, reason, until_accepted=until_accepted)
            self.pauses[-1] = (seconds, reason)

    async with bench(monkeypatch, gateway.url, Watching()) as it:
        outcome = await it.sample()
    assert outcome.ok
    assert (outcome.attempts, outcome.retries, outcome.rate_limited) == (2, {"rate_limited": 1}, 1)
    (seconds, reason) = it.admission.pauses[0]
    assert 0 < seconds <= 2
    assert "Retry-After" in reason
    assert (held, it.admission.until_accepted) == ([1], [False])
    assert [lease.reports[0]["ok"] for lease in it.admission.grants] == [None, True]


async def test_a_429_without_retry_after_does_not_pause_the_fleet(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(faults="429bare:x1")
    async with bench(monkeypatch, gateway.url) as it:
        outcomes = await asyncio.gather(*(it.sample(f"prompt {number}") for number in range(5)))
    assert all(outcome.ok for outcome in outcomes)
    assert it.admission.pauses == []


async def test_no_request_starts_during_a_pause(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.set(faults="429=0.5:x1", retry_after="fraction")
    async with bench(monkeypatch, gateway.url, FakeAdmission(1, obey_pauses=True)) as it:
        await asyncio.gather(*(it.sample(f"prompt {number}") for number in range(5)))
    first, second = sorted(arrival.at for arrival in gateway.request_log.arrivals)[:2]
    assert second - first >= 0.5


async def test_a_refusal_by_the_slots_pauses_the_fleet_until_another_request_is_accepted(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refused one waits for its Retry-After."""
    gateway.set(slots=1, waiters=0, latency_s=0.1)
    async with bench(monkeypatch, gateway.url, throttle_attempts=1000, retry_after_cap_s=0.3) as it:
        outcomes = await asyncio.gather(it.sample("one"), it.sample("two"))
    assert all(outcome.ok for outcome in outcomes)
    assert it.admission.pauses[0] == (0.3, "queue_full: the provider said Retry-After 0.3 s")
    assert set(it.admission.until_accepted) == {True}
    arrivals = sorted(gateway.request_log.arrivals, key=lambda arrival: arrival.at)
    refused = next(arrival for arrival in arrivals if arrival.status == 429)
    assert arrivals[-1].at - refused.at >= 0.3


async def test_429s_are_counted_apart_from_other_failures(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.set(faults="429bare:x10")
    async with bench(monkeypatch, gateway.url, attempts=2, throttle_attempts=20) as it:
        assert (await it.sample()).attempts == 11
        gateway.set(faults="429bare")
        outcome = await it.sample("another")
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.attempts, outcome.failure.status) == (Cause.RATE_LIMITED, 20, 429)
    assert "gave up after 20" in outcome.failure.message


async def test_a_long_retry_after_is_capped(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.set(faults="429=1000000:x1")
    async with bench(monkeypatch, gateway.url, retry_after_cap_s=7.0, backoff_base_s=0.01) as it:
        assert (await it.sample()).ok
    assert [seconds for seconds, _ in it.admission.pauses] == [7.0]


async def test_the_deadline_ends_a_request_with_attempts_left(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(faults="429bare")
    async with bench(monkeypatch, gateway.url, deadline_s=0.3, throttle_attempts=10_000) as it:
        outcome = await it.sample()
    assert outcome.failure is not None
    assert outcome.failure.cause is Cause.RATE_LIMITED
    assert "BRIMFUL_DEADLINE_S" in outcome.failure.message


# -- the key, the filter, the request -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "cause", "permanent"),
    [
        ("400", Cause.BAD_REQUEST, True),
        ("404", Cause.BAD_REQUEST, True),
        ("400completion", Cause.BAD_REQUEST, True),
        ("redirect", Cause.BAD_REQUEST, True),
        ("filter", Cause.CONTENT_FILTER, True),
        ("401", Cause.KEY_REFUSED, True),
        ("403", Cause.KEY_REFUSED, True),
    ],
)
async def test_permanent_failures_take_one_attempt(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, fault: str, cause: Cause, permanent: bool
) -> None:
    gateway.set(faults=fault)
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await it.sample("a prompt that nobody may quote")
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.failure.permanent, outcome.attempts) == (cause, permanent, 1)
    assert outcome.retries == {cause.value: 1}
    assert KEY not in str(outcome)
    assert "nobody may quote" not in str(outcome)
    assert not isinstance(outcome.failure.error(), AssertionError)


# -- junk ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("500", "server_error"),
        ("500num", "server_error"),
        ("502html", "server_error"),
        ("503", "server_error"),
        ("504", "timeout"),
        ("error200", "server_error"),
        ("html200", "bad_answer"),
        ("empty", "bad_answer"),
        ("array", "bad_answer"),
        ("nullchoices", "bad_answer"),
        ("long", "bad_answer"),
        ("badutf8", "bad_answer"),
        ("cutjson", "bad_answer"),
        ("trunc", "connection"),
        ("chunkcut", "connection"),
        ("resetmid", "connection"),
        ("reset", "connection"),
        ("close", "connection"),
    ],
)
async def test_junk_answers_fail_with_their_cause(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, fault: str, cause: str
) -> None:
    gateway.set(faults=f"{fault}:x2")
    async with bench(monkeypatch, gateway.url, max_answer_mb=1.0) as it:
        outcome = await it.sample(n=2)
    assert outcome.failure is None
    assert outcome.completion is not None
    assert len(outcome.completion["choices"]) == 2
    assert (outcome.attempts, outcome.retries) == (3, {cause: 2})


async def test_an_answer_that_is_too_large_is_asked_for_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.set(faults="huge=3000000:x1")
    async with bench(monkeypatch, gateway.url, max_answer_mb=1.0) as it:
        outcome = await it.sample(n=2)
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.failure.permanent, outcome.attempts) == (Cause.BAD_ANSWER, True, 1)
    assert "BRIMFUL_MAX_ANSWER_MB" in outcome.failure.message


@pytest.mark.parametrize("fault", ["gzip", "spaced", "drip=0.05", "slow=0.02", "nousage"])
async def test_unusual_but_valid_answers_take_one_attempt(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    gateway.set(faults=fault)
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await it.sample(n=2)
    assert (outcome.ok, outcome.attempts) == (True, 1)


@pytest.mark.parametrize("fault", ["short=3", "nulltext"])
async def test_a_short_answer_is_topped_up(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    gateway.set(faults=f"{fault}:x1")
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await it.sample(["a", "b"], n=4)
    assert outcome.completion is not None
    assert [choice["index"] for choice in outcome.completion["choices"]] == list(range(8))
    assert outcome.retries == {"bad_answer": 1}
    arrivals = list(gateway.request_log.arrivals)
    assert (arrivals[0].prompts, arrivals[0].n) == (2, 4)
    assert sum(arrival.prompts * arrival.n for arrival in arrivals[1:]) == (3 if fault == "short=3" else 1)


async def test_an_answer_that_is_always_too_long_fails_with_its_cause(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(faults="long")
    async with bench(monkeypatch, gateway.url, attempts=3) as it:
        outcome = await it.sample()
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.attempts) == (Cause.BAD_ANSWER, 3)
    assert "2 choices returned, 1 requested" in outcome.failure.message


async def test_reused_connections_that_the_server_closed_are_retried_at_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(faults="stale:x3")
    async with bench(monkeypatch, gateway.url) as it:
        for number in range(6):
            assert (await it.sample(f"prompt {number}")).ok
            await wait_until_async(
                lambda number=number: gateway.request_log.connections_open == (0 if number < 3 else 1),
                "the server to close",
            )
    assert gateway.request_log.connections == 4


async def test_a_provider_that_refuses_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, "http://127.0.0.1:9", attempts=3) as it:
        outcome = await it.sample()
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.attempts) == (Cause.CONNECTION, 0)
    assert "no connection to 127.0.0.1:9" in outcome.failure.message
    assert it.admission.sent == 0
    assert [lease.reports[0]["ok"] for lease in it.admission.grants] == [False] * 3


# -- budget -------------------------------------------------------------------------------------------------------


async def test_a_request_whose_hold_does_not_fit_waits_for_others_to_end(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(budget=3000, latency_s=0.05)  # three holds of some 800 fit at once; all 30 use far less
    async with bench(monkeypatch, gateway.url) as it:
        outcomes = await asyncio.gather(*(it.sample(f"prompt {number}", max_tokens=800, n=1) for number in range(6)))
    seen = gateway.snapshot()
    if seen["budget"]["used"] < 2000:
        assert all(outcome.ok for outcome in outcomes)
    assert seen["budget"]["refused"] > 0
    assert all(outcome.ok or outcome.failure.cause is Cause.BUDGET for outcome in outcomes)


@pytest.mark.parametrize("status", [402, 429])
async def test_the_end_of_the_budget_is_found_soon_and_fails_all_waiters(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    gateway.set(budget=10, budget_status=status, latency_s=0.05)
    async with bench(monkeypatch, gateway.url) as it:
        outcomes = await asyncio.gather(*(it.sample(f"prompt {number}", max_tokens=50) for number in range(200)))
    assert {outcome.failure.cause for outcome in outcomes if outcome.failure} == {Cause.BUDGET}
    assert sum(not outcome.ok for outcome in outcomes) == 200
    assert gateway.snapshot()["budget"]["refused"] <= 60, "the end was not asked for by each of them"


async def test_a_refusal_while_the_fleet_holds_tokens_is_not_the_end(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(budget=10)
    async with bench(monkeypatch, gateway.url, FakeAdmission(elsewhere=1)) as it:
        task = asyncio.create_task(it.sample(max_tokens=50))
        await wait_until_async(lambda: gateway.budget.refused >= 1, "a refusal")
        assert not task.done()
        gateway.set(budget=1000)
        assert (await task).ok


# -- the surroundings ---------------------------------------------------------------------------------------------


async def test_an_internal_fault_fails_one_request(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise KeyError("secret prompt")

    monkeypatch.setattr(Provider, "body", broken)
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await it.sample()
    assert outcome.failure is not None
    assert outcome.failure.cause is Cause.INTERNAL
    assert "secret" not in outcome.failure.message
