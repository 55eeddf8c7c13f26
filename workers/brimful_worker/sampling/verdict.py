"""From what an attempt meant to what follows from it. Pure."""

from __future__ import annotations

from brimful.outcome import Cause, Failure
from brimful_worker.provider.answers.answer import Classification, Kind

LEASE_LOST = Classification(
    Kind.TRANSIENT, cause=Cause.LEASE_LOST, message="the slot's lease was lost, and the request ended with it"
)
BUDGET_END = Classification(Kind.BUDGET, cause=Cause.BUDGET, message="the key's budget is at its end")


def health(told: Classification) -> bool | None:
    """What an attempt says of the provider's health to the fleet's breaker; None: nothing.

    Throttling, budgets and refusals are the provider at work; a stale connection and a lost lease are not its doing.
    """
    if told.kind in (Kind.SUCCESS, Kind.SHORT, Kind.FILTERED):
        return True
    if told.kind is Kind.TRANSIENT and not told.stale and told.cause is not Cause.LEASE_LOST:
        return False
    return None


def failure(told: Classification, after: int = 0) -> Failure:
    """The failure a request ends with; ``after`` so many failed attempts of that sort."""
    permanent = told.kind in (Kind.PERMANENT, Kind.FILTERED, Kind.KEY_REFUSED)
    message = f"gave up after {after} failed attempts; the last: {told.message}" if after > 1 else told.message
    return Failure(told.cause or Cause.BAD_ANSWER, message, status=told.status, permanent=permanent)


def late(last: Classification | None, deadline_s: float) -> Failure:
    """The request's deadline passed; ``last`` is its last failed attempt."""
    message = f"no completion within BRIMFUL_DEADLINE_S = {deadline_s:g} s of its first grant"
    if last is None:
        return Failure(Cause.TIMEOUT, message)
    return Failure(last.cause or Cause.TIMEOUT, f"{message}; the last failure: {last.message}", status=last.status)
