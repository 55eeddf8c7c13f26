"""What a failed attempt leads to: a wait, or the request's failure. Pure functions; randomness is passed in.

Full jitter (a uniform draw from zero to the exponential bound) spreads requests that failed together over the whole
bound, so that they do not come back together.
"""

from __future__ import annotations

from collections.abc import Callable

from brimful.outcome import Cause, Failure
from brimful_worker.admission import Refused
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.provider.answers.limits import Limit

LEASE_LOST = Classification(
    Kind.TRANSIENT, cause=Cause.LEASE_LOST, message="the slot's lease was lost, and the request ended with it"
)
BUDGET_END = Classification(Kind.BUDGET, cause=Cause.BUDGET, message="the key's budget is at its end")
_UNBILLED = frozenset(
    {
        Cause.BAD_REQUEST,
        Cause.CONTENT_FILTER,
        Cause.KEY_REFUSED,
        Cause.BUDGET,
        Cause.RATE_LIMITED,
        Cause.QUEUE_FULL,
        Cause.SERVER_ERROR,
    }
)
"""The provider answered that it does not generate anything."""
_JOB_ENDS = frozenset({Cause.JOB_FAILED, Cause.JOB_CANCELLED, Cause.JOB_EXPIRED, Cause.BAD_ANSWER})
PERMANENT = (Kind.PERMANENT, Kind.FILTERED, Kind.KEY_REFUSED)
"""Asking again would bring the same answer."""

_REFUSED = {Limit.SLOTS: Refused.SLOTS, Limit.STARTS: Refused.STARTS, Limit.UNKNOWN: Refused.EITHER}

_LAST_DOUBLING = 60  # 2.0 ** 60 s is past any cap; a float exponent without end would overflow


def bound(failures: int, *, base_s: float, cap_s: float) -> float:
    """The longest wait in seconds after ``failures`` failed attempts (1 or more): base, 2 base, 4 base … cap."""
    return min(cap_s, base_s * 2.0 ** min(max(failures, 1) - 1, _LAST_DOUBLING))


def full_jitter(failures: int, *, base_s: float, cap_s: float, uniform: Callable[[], float]) -> float:
    """A wait in seconds in [0, bound); ``uniform`` draws from [0, 1)."""
    return uniform() * bound(failures, base_s=base_s, cap_s=cap_s)


def next_attempt_s(
    answer: Classification,
    failures: int,
    *,
    base_s: float,
    cap_s: float,
    retry_after_cap_s: float,
    uniform: Callable[[], float],
) -> float:
    """Seconds to the next attempt after ``failures`` failed ones of one sort, beside a pause of the fleet."""
    named_s = answer.retry_after_s or 0.0
    # Of a refusal by the slots the fleet's pause may end earlier.
    least_s = min(named_s, retry_after_cap_s) if refused_by(answer) is Refused.SLOTS else 0.0
    if named_s >= base_s or (answer.stale and failures == 1):
        return least_s  # as soon as the pause has ended, or at once
    return max(least_s, full_jitter(failures, base_s=base_s, cap_s=cap_s, uniform=uniform))


def poll_pause(polls: int, *, first_s: float, uniform: Callable[[], float]) -> float:
    """Seconds before the next poll of a Job after ``polls`` polls: from ``first_s`` up to ten times that, ±20 %."""
    return bound(polls + 1, base_s=first_s, cap_s=10 * first_s) * (0.8 + 0.4 * uniform())


def provider_health(answer: Classification) -> bool | None:
    """What an attempt reports to the fleet's circuit breaker; None: nothing.

    Throttling, budgets and refusals show a provider that works. A stale connection and a lost lease are not its doing.
    """
    if answer.kind in (Kind.SUCCESS, Kind.SHORT, Kind.FILTERED):
        return True
    if answer.kind is Kind.TRANSIENT and not answer.stale and answer.cause is not Cause.LEASE_LOST:
        return False
    return None


def refused_by(answer: Classification) -> Refused | None:
    """The limit that the fleet learns from this attempt; None if it was not refused by slots or starts."""
    return _REFUSED.get(answer.limit) if answer.limit is not None else None


def tokens_cost(answer: Classification, *, sent: bool, job: bool) -> int | None:
    """Tokens that an attempt cost. None: not known, so it costs all that it asked for.

    ``job``: the next attempt finds the same Job again, unless the Job itself has ended.
    """
    if (used := answer.tokens_used) is not None:
        return used
    if not sent or answer.cause in _UNBILLED:
        return 0
    return 0 if job and answer.cause is not None and answer.cause not in _JOB_ENDS else None


def failure(answer: Classification, attempts: int = 0) -> Failure:
    """The failure that a request ends with after ``attempts`` failed attempts of the same sort."""
    after = f"gave up after {attempts} failed attempts; the last: " if attempts > 1 else ""
    cause, permanent = answer.cause or Cause.BAD_ANSWER, answer.kind in PERMANENT
    return _failure(answer, cause, f"{after}{answer.message}", permanent=permanent)


def deadline_failure(last: Classification | None, deadline_s: float) -> Failure:
    """The request's deadline passed; ``last`` is its last failed attempt."""
    message = f"no completion within BRIMFUL_DEADLINE_S = {deadline_s:g} s of its first grant"
    if last is None:
        return Failure(Cause.TIMEOUT, message)
    return _failure(last, last.cause or Cause.TIMEOUT, f"{message}; the last failure: {last.message}")


def _failure(answer: Classification, cause: Cause, message: str, *, permanent: bool = False) -> Failure:
    return Failure(cause, message, answer.status, permanent, answer.code, answer.retry_after_s)
