"""What a request has taken so far: counts and times, until they become its outcome, and the metrics of them."""

from __future__ import annotations

import time
from typing import Any

from brimful.names import Mode
from brimful.outcome import Cause, Failure, Outcome
from brimful.request import Request
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.provider.answers.answer import Classification


class Tally:
    """One request's. All times are seconds."""

    __slots__ = ("attempts", "provider_s", "request", "retries", "retrying_s", "started_at", "waited_s")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.attempts = 0
        self.retries: dict[str, int] = {}
        self.waited_s = 0.0
        self.provider_s = 0.0
        self.retrying_s = 0.0
        self.started_at: float | None = None

    def granted(self, waited_s: float) -> None:
        self.waited_s += waited_s
        metrics.WAIT_SECONDS.observe(waited_s, self.request.workload.value)

    def on_wire(self) -> None:
        """A request is being written."""
        self.attempts += 1
        if self.started_at is None:
            self.started_at = time.time()
        metrics.STARTS.inc(self.request.workload.value)

    def attempted(self, told: Classification, seconds: float) -> None:
        """An attempt ended, ``seconds`` after it reached the wire; 0: it never did."""
        self.provider_s += seconds
        if seconds and metrics.serving():
            mode = self.request.mode.value
            metrics.ATTEMPTS.inc(mode, told.cause.value if told.cause is not None else "ok")
            metrics.ATTEMPT_SECONDS.observe(seconds, mode)

    def failed(self, cause: Cause) -> None:
        self.retries[cause.value] = self.retries.get(cause.value, 0) + 1

    def backing_off(self, seconds: float) -> None:
        self.retrying_s += seconds
        metrics.BACKOFF_SECONDS.inc(by=seconds)

    def outcome(
        self, worker: str, *, completion: dict[str, Any] | None = None, failure: Failure | None = None
    ) -> Outcome:
        """Exactly one of ``completion`` and ``failure`` is given."""
        if metrics.serving():
            _count(self.request.mode, completion, failure)
        return Outcome(
            id=self.request.id,
            completion=completion,
            failure=failure,
            attempts=self.attempts,
            retries=self.retries,
            waited_s=round(self.waited_s, 6),
            provider_s=round(self.provider_s, 6),
            retrying_s=round(self.retrying_s, 6),
            started_at=self.started_at,
            ended_at=time.time(),
            worker=worker,
        )


def _count(mode: Mode, completion: dict[str, Any] | None, failure: Failure | None) -> None:
    metrics.REQUESTS.inc(mode.value, failure.cause.value if failure is not None else "ok")
    if completion is None:
        return
    metrics.ROLLOUTS.inc(by=len(completion["choices"]))
    usage = completion.get("usage")
    for kind in ("prompt", "completion"):
        tokens = usage.get(f"{kind}_tokens") if isinstance(usage, dict) else None
        if isinstance(tokens, int) and tokens > 0:
            metrics.TOKENS.inc(kind, by=tokens)
