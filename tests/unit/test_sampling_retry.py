"""What follows from a failed attempt: waits, failures, and the reports to the circuit breaker."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from brimful.outcome import Cause
from brimful_worker.admission import Refused
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.provider.answers.limits import Limit
from brimful_worker.sampling import retry


@pytest.mark.parametrize(
    ("failures", "longest"), [(0, 0.5), (1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (8, 30.0), (10_000, 30.0)]
)
def test_the_bound_doubles_up_to_the_cap(failures: int, longest: float) -> None:
    assert retry.bound(failures, base_s=0.5, cap_s=30.0) == longest


def test_full_jitter_spreads_waits_over_the_whole_bound() -> None:
    draw = random.Random(7).random
    waits = sorted(retry.full_jitter(4, base_s=0.5, cap_s=30.0, uniform=draw) for _ in range(2000))
    assert 0 <= waits[0] < 0.05
    assert 3.95 < waits[-1] < 4.0
    assert fmean(waits) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(
    ("answer", "failures", "seconds"),
    [
        (Classification(Kind.TRANSIENT), 1, 0.25),
        (Classification(Kind.TRANSIENT), 3, 1.0),
        (Classification(Kind.TRANSIENT, stale=True), 1, 0.0),
        (Classification(Kind.TRANSIENT, stale=True), 2, 0.5),
        (Classification(Kind.THROTTLED, limit=Limit.STARTS, retry_after_s=0.4), 1, 0.25),
        (Classification(Kind.THROTTLED, limit=Limit.STARTS, retry_after_s=40.0), 1, 0.0),
        (Classification(Kind.THROTTLED, limit=Limit.UNKNOWN, retry_after_s=0.5), 1, 0.0),
        (Classification(Kind.THROTTLED, limit=Limit.SLOTS), 2, 0.5),
        (Classification(Kind.THROTTLED, limit=Limit.SLOTS, retry_after_s=1.0), 5, 1.0),
        (Classification(Kind.THROTTLED, limit=Limit.SLOTS, retry_after_s=40.0), 5, 20.0),
        (Classification(Kind.THROTTLED, limit=Limit.SLOTS, retry_after_s=0.02), 4, 2.0),
        (Classification(Kind.THROTTLED, limit=Limit.SLOTS, retry_after_s=0.4), 1, 0.4),
    ],
)
def test_the_next_attempt_waits_where_the_fleet_does_not(answer: Classification, failures: int, seconds: float) -> None:
    waits = retry.next_attempt_s(answer, failures, base_s=0.5, cap_s=30.0, retry_after_cap_s=20.0, uniform=lambda: 0.5)
    assert waits == seconds


def test_polls_grow_rarer_up_to_ten_times_the_first_pause() -> None:
    pauses = [retry.poll_pause(polls, first_s=1.0, uniform=lambda: 0.5) for polls in range(8)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]
    assert retry.poll_pause(0, first_s=1.0, uniform=lambda: 0.0) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("answer", "health"),
    [
        (Classification(Kind.SUCCESS), True),
        (Classification(Kind.SHORT), True),
        (Classification(Kind.FILTERED), True),
        (Classification(Kind.TRANSIENT, cause=Cause.TIMEOUT), False),
        (Classification(Kind.TRANSIENT, cause=Cause.CONNECTION, stale=True), None),
        (retry.LEASE_LOST, None),
        (retry.BUDGET_END, None),
        (Classification(Kind.THROTTLED), None),
        (Classification(Kind.PERMANENT), None),
    ],
)
def test_only_the_providers_own_doing_counts_for_the_circuit_breaker(
    answer: Classification, health: bool | None
) -> None:
    assert retry.provider_health(answer) is health


def test_a_failure_says_after_how_many_attempts() -> None:
    answer = Classification(Kind.TRANSIENT, cause=Cause.TIMEOUT, message="too late", status=504)
    assert retry.failure(answer).message == "too late"
    failure = retry.failure(answer, 3)
    assert failure.message == "gave up after 3 failed attempts; the last: too late"
    assert (failure.cause, failure.status, failure.permanent) == (Cause.TIMEOUT, 504, False)
    assert retry.failure(Classification(Kind.PERMANENT, cause=Cause.BAD_REQUEST)).permanent


def test_the_first_failure_needs_no_count() -> None:
    answer = Classification(Kind.TRANSIENT, cause=Cause.TIMEOUT, message="too late", code="slow", retry_after_s=3.0)
    assert retry.failure(answer, 1).message == "too late"
    failure = retry.failure(answer, 2)
    assert failure.message == "gave up after 2 failed attempts; the last: too late"
    assert (failure.code, failure.retry_after_s) == ("slow", 3.0)
    assert retry.failure(Classification(Kind.TRANSIENT)).cause is Cause.BAD_ANSWER
    for kind in Kind:
        lasting = kind in (Kind.PERMANENT, Kind.FILTERED, Kind.KEY_REFUSED)
        assert retry.failure(Classification(kind)).permanent is lasting


def test_a_failure_at_the_deadline_names_the_setting_and_the_last_attempt() -> None:
    failure = retry.deadline_failure(None, 90.0)
    assert (failure.cause, failure.permanent) == (Cause.TIMEOUT, False)
    assert "BRIMFUL_DEADLINE_S = 90 s" in failure.message
    last = Classification(Kind.THROTTLED, cause=Cause.RATE_LIMITED, message="HTTP 429", status=429)
    failure = retry.deadline_failure(last, 90.0)
    assert (failure.cause, failure.status, failure.permanent) == (Cause.RATE_LIMITED, 429, False)
    assert failure.message.endswith("; the last failure: HTTP 429")
    assert retry.deadline_failure(Classification(Kind.TRANSIENT), 90.0).cause is Cause.TIMEOUT


@pytest.mark.parametrize(
    ("limit", "learnt"),
    [
        (None, None),
        (Limit.SLOTS, Refused.SLOTS),
        (Limit.STARTS, Refused.STARTS),
        (Limit.UNKNOWN, Refused.EITHER),
        (Limit.TOKENS, None),
    ],
)
def test_which_limit_a_refusal_teaches(limit: Limit | None, learnt: Refused | None) -> None:
    assert retry.refused_by(Classification(Kind.THROTTLED, limit=limit)) is learnt


_JOB_OVER = (Cause.JOB_FAILED, Cause.JOB_CANCELLED, Cause.JOB_EXPIRED, Cause.BAD_ANSWER)


@pytest.mark.parametrize(
    ("cause", "request_cost", "job_cost"),
    [
        (None, None, None),
        (Cause.TIMEOUT, None, 0),
        (Cause.CONNECTION, None, 0),
        (Cause.LEASE_LOST, None, 0),
        *((cause, None, None) for cause in _JOB_OVER),
        *((cause, 0, 0) for cause in (Cause.SERVER_ERROR, Cause.RATE_LIMITED, Cause.QUEUE_FULL, Cause.BAD_REQUEST)),
        *((cause, 0, 0) for cause in (Cause.BUDGET, Cause.KEY_REFUSED, Cause.CONTENT_FILTER)),
    ],
)
def test_the_tokens_that_a_failed_attempt_costs(
    cause: Cause | None, request_cost: int | None, job_cost: int | None
) -> None:
    answer = Classification(Kind.TRANSIENT, cause=cause)
    assert retry.tokens_cost(answer, sent=True, job=False) == request_cost
    assert retry.tokens_cost(answer, sent=True, job=True) == job_cost
    assert retry.tokens_cost(answer, sent=False, job=False) == 0
    counted = Classification(Kind.SHORT, {"usage": {"total_tokens": 7}}, cause=cause)
    assert retry.tokens_cost(counted, sent=True, job=False) == 7


def test_a_wait_begins_at_zero_and_polls_vary_by_a_fifth() -> None:
    assert retry.full_jitter(3, base_s=0.5, cap_s=30.0, uniform=lambda: 0.0) == 0
    assert retry.full_jitter(3, base_s=0.5, cap_s=30.0, uniform=lambda: 0.5) == 1.0
    assert retry.poll_pause(0, first_s=1.0, uniform=lambda: 1.0) == pytest.approx(1.2)
