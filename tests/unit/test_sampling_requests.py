"""One request's life with attempts whose answers are given: what is sent, waited for, reported and logged."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from brimful.names import Workload
from brimful.outcome import Cause
from brimful_worker.admission import Refused
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.provider.answers.limits import Limit
from brimful_worker.provider.assembly import Part
from support.fake_admission import FakeAdmission, FakeLease
from support.sampling import Scripted, bench

NOWHERE = "http://127.0.0.1:1"
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def success(**more: Any) -> Classification:
    choices = [{"index": 0, "text": "x", "finish_reason": "stop"}]
    return Classification(Kind.SUCCESS, {"choices": choices, "usage": USAGE}, status=200, **more)


def failing(cause: Cause = Cause.CONNECTION, kind: Kind = Kind.TRANSIENT, **more: Any) -> Classification:
    return Classification(kind, cause=cause, message="no", **more)


@pytest.mark.parametrize(
    ("answer", "unsent", "ok", "tokens"),
    [
        (success(), 0, True, 7),
        (failing(), 0, False, None),
        (failing(), 1, False, 0),
        (failing(Cause.SERVER_ERROR), 0, False, 0),
        (failing(stale=True), 0, None, None),
        (failing(Cause.RATE_LIMITED, Kind.THROTTLED), 0, None, 0),
    ],
)
async def test_each_attempt_is_reported_to_the_fleet(
    monkeypatch: pytest.MonkeyPatch, answer: Classification, unsent: int, ok: bool | None, tokens: int | None
) -> None:
    async with bench(monkeypatch, NOWHERE) as it:
        outcome = await it.sampler.sample(it.request(), exchange=Scripted(answer, success(), unsent=unsent))
    assert outcome.ok
    first = it.admission.grants[0]
    assert first.reports == [{"ok": ok, "tokens_used": tokens}]
    assert outcome.attempts == len(it.admission.grants) - unsent
    held = it.request().hold
    assert outcome.unmetered_tokens == (held if tokens is None else 0)


async def test_what_the_provider_says_of_its_limits_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = failing(Cause.QUEUE_FULL, Kind.THROTTLED, limit=Limit.SLOTS, stated_starts=500)
    async with bench(monkeypatch, NOWHERE) as it:
        assert (await it.sampler.sample(it.request(), exchange=Scripted(throttled, success()))).ok
    first, second = it.admission.grants
    assert (first.refused, first.stated_starts) == (Refused.SLOTS, 500)
    assert (second.refused, second.stated_starts) == (None, 0)


@pytest.mark.parametrize(
    ("answer", "attempts_before", "waits"),
    [
        (failing(), 0, True),
        (failing(retry_after_s=5.0), 0, False),  # the fleet's pause is longer
        (failing(retry_after_s=0.1), 0, False),
        (failing(retry_after_s=0.09), 0, True),
        (failing(stale=True), 0, False),  # the server closed a connection that was kept
        (failing(stale=True), 1, True),
        (failing(Cause.RATE_LIMITED, Kind.THROTTLED), 0, True),
    ],
)
async def test_when_an_attempt_waits_for_its_successor(
    monkeypatch: pytest.MonkeyPatch, answer: Classification, attempts_before: int, waits: bool
) -> None:
    async with bench(monkeypatch, NOWHERE, backoff_base_s=0.1) as it:
        drawn: list[None] = []

        def uniform() -> float:
            drawn.append(None)
            return 1e-4

        it.sampler.uniform = uniform
        before = [failing(stale=True, retry_after_s=9.0)] * attempts_before
        outcome = await it.sampler.sample(it.request(), exchange=Scripted(*before, answer, success()))
    assert outcome.ok
    assert len(drawn) == int(waits)
    assert (outcome.retrying_s > 0) is waits
    paused = [each.retry_after_s for each in (*before, answer) if each.retry_after_s]
    assert [seconds for seconds, _ in it.admission.pauses] == paused


async def test_waits_double_and_throttles_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, NOWHERE, backoff_base_s=1e-4, backoff_cap_s=3e-4) as it:
        it.sampler.uniform = lambda: 1.0
        throttled = failing(Cause.RATE_LIMITED, Kind.THROTTLED)
        answers = [failing(), failing(), throttled, failing(), success()]
        outcome = await it.sampler.sample(it.request(), exchange=Scripted(*answers))
    assert outcome.retrying_s == pytest.approx(1e-4 + 2e-4 + 1e-4 + 3e-4)
    assert outcome.retries == {"connection": 3, "rate_limited": 1}


@pytest.mark.parametrize(
    ("kind", "cause", "count"),
    [(Kind.TRANSIENT, Cause.CONNECTION, 3), (Kind.THROTTLED, Cause.RATE_LIMITED, 5), (Kind.SHORT, Cause.BAD_ANSWER, 3)],
)
async def test_attempts_of_one_sort_are_bounded(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, cause: Cause, count: int
) -> None:
    async with bench(monkeypatch, NOWHERE, attempts=3, throttle_attempts=5) as it:
        outcome = await it.sampler.sample(it.request(), exchange=Scripted(*[failing(cause, kind)] * 9))
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.attempts) == (cause, count)
    assert f"gave up after {count} failed attempts" in outcome.failure.message


async def test_a_caller_that_has_a_part_of_the_answer_gets_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Scripted(failing(), success())
    exchange.begun = True
    async with bench(monkeypatch, NOWHERE) as it:
        outcome = await it.sampler.sample(it.request(), exchange=exchange)
    assert outcome.failure is not None
    assert (outcome.attempts, outcome.failure.message) == (1, "no")


async def test_a_caller_knows_what_is_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    async with bench(monkeypatch, NOWHERE) as it:
        it.sampler.uniform = lambda: 1e-6
        await it.sampler.sample(it.request(), exchange=Scripted(failing(), success()), on_wire=seen.append)
    assert seen == [False, True, False, False, True], "it is on the wire neither while it backs off nor while it waits"


async def test_a_failed_attempt_is_logged_under_the_request_s_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(monkeypatch, NOWHERE) as it:
        with caplog.at_level(logging.DEBUG, "brimful_worker.sampling.sampler"):
            for id, scope in (("q", "s"), ("", "s")):
                request = it.request(**({"id": id} if id else {}))
                await it.sampler.sample(request, scope=scope, exchange=Scripted(failing(), success()))
    assert [message for message in caplog.messages if "attempt" in message] == [
        "request q, attempt 1: connection: no",
        "request s, attempt 1: connection: no",
    ]


@pytest.mark.parametrize(("abandoned", "rest_s"), [(True, 2.5), (False, 0.005)])
async def test_a_slot_rests_after_an_answer(monkeypatch: pytest.MonkeyPatch, abandoned: bool, rest_s: float) -> None:
    """The provider may count the request a moment longer, and one that was given up until it ends there."""
    async with bench(monkeypatch, NOWHERE, cooldown_s=2.5, release_delay_s=0.005) as it:
        exchange = Scripted(failing(Cause.TIMEOUT, abandoned=abandoned), failing(), success(), unsent=0)
        assert (await it.sampler.sample(it.request(), exchange=exchange)).ok
    assert it.admission.grants[0].cooldown_s == rest_s


async def test_an_attempt_that_was_not_sent_leaves_its_slot_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, NOWHERE) as it:
        outcome = await it.sampler.sample(it.request(), exchange=Scripted(failing(), success(), unsent=1))
    assert it.admission.grants[0].cooldown_s == 0.0
    assert (outcome.attempts, outcome.unmetered_tokens) == (1, 0)


async def test_missing_choices_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(*indexes: int) -> Classification:
        choices = [{"index": index, "text": "x", "finish_reason": "stop"} for index in indexes]
        return Classification(
            Kind.SHORT, {"choices": choices, "usage": USAGE}, cause=Cause.BAD_ANSWER, message="short", status=200
        )

    async with bench(monkeypatch, NOWHERE) as it:
        exchange = Scripted(some(0, 2), some(), some(0))
        outcome = await it.sampler.sample(it.request(n=3), exchange=exchange)
    assert outcome.completion is not None
    assert [choice["index"] for choice in outcome.completion["choices"]] == [0, 1, 2]
    assert [part.request.n for part in exchange.parts] == [3, 1, 1]
    assert outcome.retries == {"bad_answer": 2}
    assert outcome.retrying_s > 0, "an answer without any new choice is a failed attempt"


async def test_a_lost_lease_ends_the_attempt_but_not_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Losing(FakeAdmission):
        def made(self, lease: FakeLease) -> None:
            lease.lost = True

    async with bench(monkeypatch, NOWHERE, Losing(), attempts=2) as it:
        failed = await it.sampler.sample(it.request(), exchange=Scripted(failing(), failing()))
        served = await it.sampler.sample(it.request(), exchange=Scripted(success()))
    assert failed.failure is not None
    assert failed.failure.cause is Cause.LEASE_LOST
    assert [lease.reports[0]["ok"] for lease in it.admission.grants] == [None, None, True]
    assert served.ok


@pytest.mark.parametrize("mode", ["completion", "job"])
async def test_a_request_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    class Hanging(Scripted):
        async def send(self, *args: Any) -> Classification:
            await asyncio.Event().wait()
            raise AssertionError

    async with bench(monkeypatch, NOWHERE, deadline_s=0.05) as it:
        request = it.request(mode=mode)
        outcome = await asyncio.wait_for(it.sampler.sample(request, exchange=Hanging()), 30)
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.failure.permanent) == (Cause.TIMEOUT, False)
    assert "BRIMFUL_DEADLINE_S = 0.05 s" in outcome.failure.message


async def test_a_fault_of_the_sampler_is_the_request_s_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(Scripted):
        async def send(self, provider: Any, part: Part, *rest: Any) -> Classification:
            raise KeyError(part.request.prompts[0])

    async with bench(monkeypatch, NOWHERE) as it:
        outcome = await it.sampler.sample(it.request("nobody may quote this"), exchange=Faulty())
    assert outcome.failure is not None
    assert outcome.failure.cause is Cause.INTERNAL
    assert "KeyError" in outcome.failure.message
    assert "the sampler failed: KeyError" in caplog.text
    assert "nobody may quote" not in caplog.text + outcome.failure.message


async def test_a_budget_at_its_end_is_met_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, NOWHERE) as it:
        refused = failing(Cause.BUDGET, Kind.BUDGET)
        first = await it.sampler.sample(it.request(), exchange=Scripted(refused))
        second = await it.sampler.sample(it.request(), exchange=Scripted())
    for outcome in (first, second):
        assert outcome.failure is not None
        assert outcome.failure.cause is Cause.BUDGET
    assert (first.attempts, second.attempts) == (1, 0)
    assert second.failure is not None
    assert second.failure.message == "the key's budget is at its end"


@pytest.mark.parametrize(("slots", "shared"), [(5001, True), (5000, False)])
async def test_batch_requests_wait_for_each_other_where_the_key_allows_more_than_a_process(
    monkeypatch: pytest.MonkeyPatch, slots: int, shared: bool
) -> None:
    async with bench(monkeypatch, NOWHERE, provider="kios", slots=slots) as it:
        batch = it.sampler.share(Workload.BATCH)
        assert (batch is it.sampler.share(Workload.BATCH)) is shared
        assert it.sampler.share(Workload.INTERACTIVE) is not batch
