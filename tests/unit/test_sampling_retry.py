"""What follows from a failed attempt: waits, failures, and the reports to the circuit breaker."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from brimful.outcome import Cause
from brimful_worker.provider.answers.answer import Classification, Kind
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
