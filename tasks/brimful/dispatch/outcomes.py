"""What an outcome means for the lines that its request stood for, and for the requests to come. Pure."""

from __future__ import annotations

import time
from dataclasses import replace

from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest, failed_lines, split_failed, unpack
from brimful.packing.units import Delivered, DriveStatus, Failed, Unit

STOPS = (Cause.KEY_REFUSED, Cause.BUDGET)
"""Failures after which nothing more is worth asking."""


def attempts_since(outcome: Outcome, began: float) -> int:
    """Its attempts that began after that Unix time, as far as an outcome tells: it knows when its first one began.

    A request taken over from an earlier try had its first attempt, or all of them, in that try.
    """
    if outcome.started_at is None or outcome.started_at >= began:
        return outcome.attempts
    if outcome.ended_at is not None and outcome.ended_at < began:
        return 0
    return max(0, outcome.attempts - 1)


class Outcomes:
    """Keeps the status, teaches the tuner, and gives parts of failed packs back to the planner."""

    def __init__(self, planner: Batcher, tuner: PackSizer, status: DriveStatus) -> None:
        self._planner = planner
        self._tuner = tuner
        self._status = status
        self._began = time.time()

    def records(self, packed: PackedRequest, outcome: Outcome, *, known_lines: bool) -> list[Delivered | Failed]:
        """Empty where it is asked anew, or was only stopped. ``known_lines``: the parts hold their lines' own
        requests."""
        self._count(packed, outcome)
        failure = outcome.failure
        if failure is None:
            try:
                delivered = unpack(packed.manifest, outcome)
            except (ValueError, KeyError, TypeError) as error:
                failure = Failure(Cause.BAD_ANSWER, f"the outcome does not fit its request: {error}")
                outcome = replace(outcome, completion=None, failure=failure)
            else:
                self._learn(packed, outcome)
                self._status.rollouts += sum(len(item.rollouts) for item in delivered)
                return list(delivered)
        if self._asked_anew(packed, failure):
            return []
        records = failed_lines(packed, outcome)
        if not known_lines:
            records = [replace(record, request=None) for record in records]
        self._status.failures += len(records)
        return list(records)

    def refused(self, unit: Unit, message: str) -> Failed:
        """A line of which no request can be made."""
        wanted = unit.wanted or tuple(
            (prompt, choice) for prompt in range(unit.request.prompt_count) for choice in range(unit.request.n)
        )
        failure = Failure(Cause.BAD_REQUEST, message, permanent=True)
        self._status.failures += 1
        return Failed(unit.line, unit.id, unit.request, wanted, failure, Outcome(unit.id, failure=failure))

    def _asked_anew(self, packed: PackedRequest, failure: Failure) -> bool:
        """Whether the failure is nobody's: withdrawn, or of a pack of which nobody knows who is to blame."""
        stopping = self._status.stopping is not None
        if failure.cause is Cause.CANCELLED:
            if not stopping:
                self._planner.put_back(packed.pack_key, [packed.slices])
            return True
        if failure.cause is Cause.TIMEOUT and len(packed.slices) > 1:
            self._tuner.latency(packed.pack_key.model).timed_out(packed.pack_key.max_tokens, packed.choices)
        smaller = split_failed(packed, failure)
        if not smaller:
            return False
        self._status.split += 1
        if failure.cause is Cause.BUDGET:
            self._tuner.max_prompts = max(1, len(packed.slices) // 2)
        if not stopping:
            self._planner.put_back(packed.pack_key, smaller)
        return True

    def _count(self, packed: PackedRequest, outcome: Outcome) -> None:
        status = self._status
        status.requests += 1
        status.packed += packed.lines > 1
        status.attempts += attempts_since(outcome, self._began)
        status.rate_limited += outcome.rate_limited
        for cause, count in outcome.retries.items():
            status.retries[cause] = status.retries.get(cause, 0) + count
        usage = (outcome.completion or {}).get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("total_tokens"), int):
            status.tokens += usage["total_tokens"]

    def _learn(self, packed: PackedRequest, outcome: Outcome) -> None:
        latency = self._tuner.latency(packed.pack_key.model)
        if outcome.attempts == 1 and outcome.provider_s > 0:
            latency.add(packed.pack_key.max_tokens, packed.choices, outcome.provider_s)
        if outcome.retries.get(Cause.TIMEOUT) and len(packed.slices) > 1:
            latency.timed_out(packed.pack_key.max_tokens, packed.choices)
