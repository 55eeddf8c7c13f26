"""Counts and times of one request, until they become its outcome, and the metrics of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brimful.names import Mode, Workload
from brimful.outcome import Cause, Failure, Outcome
from brimful.profile import Profile, Tokens
from brimful.request import Request
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.metrics.kinds import BoundedLabel
from brimful_worker.provider.answers.answer import Classification

log = logging.getLogger(__name__)

_MODELS = BoundedLabel(50)
_MANY_STALE_GRANTS = 5
"""Of one request; reported once in the log."""


def log_attempt(log: logging.Logger, request: str, attempt: int, answer: Classification) -> None:
    """Log an attempt that failed, at DEBUG."""
    ids = [answer.request_id] if answer.request_id else []
    extra = {"attempt": attempt, "cause": answer.cause, "status": answer.status, "provider_request_ids": ids}
    log.debug("request %s, attempt %d: %s: %s", request, attempt, answer.cause, answer.message, extra=extra)


@dataclass(slots=True)
class RequestStats:
    """All times are seconds."""

    request: Request
    profile: Profile
    attempts: int = 0
    retries: dict[str, int] = field(default_factory=dict)
    waited_s: float = 0.0
    provider_s: float = 0.0
    retrying_s: float = 0.0
    started_at: float | None = None
    unmetered_tokens: int = 0
    """Of attempts that ended without usage, of those whose workers died, and of the one on the wire."""
    provider_request_ids: list[str] = field(default_factory=list)
    stale_grants: int = 0
    on_wire: bool = False

    def granted(self, waited_s: float) -> None:
        self.waited_s += waited_s
        self.on_wire = False
        metrics.WAIT_SECONDS.observe(waited_s, self.request.workload)

    def stale_grant(self, host: str) -> None:
        """A grant expired before its request was on the wire."""
        metrics.STALE_GRANTS.inc()
        self.stale_grants += 1
        if self.stale_grants == _MANY_STALE_GRANTS:
            log.warning(
                "grants expire before their connection is open: %s is slow to connect to, or this process is "
                "overloaded; raise BRIMFUL_GUARD_S or run fewer requests per process",
                host,
            )

    def died(self, workers: int, hold: int) -> None:
        """So many workers died while they sampled the request; each attempt may have used ``hold`` tokens."""
        if workers:
            log.warning("workers died while they sampled request %s: %d more", self.request.id, workers)
        if self.request.mode is not Mode.JOB:  # a Job is found again, and costs once
            self.unmetered_tokens += workers * hold

    def sent(self, hold: int) -> None:
        """An attempt that may use ``hold`` tokens is being written to the wire."""
        if not self.on_wire:
            self.on_wire, self.unmetered_tokens = True, self.unmetered_tokens + hold
        self.attempts += 1
        if self.started_at is None:
            self.started_at = time.time()
        metrics.STARTS.inc(self.request.workload)

    def attempted(self, answer: Classification, seconds: float) -> None:
        """An attempt ended, ``seconds`` after it was sent."""
        self.provider_s += seconds
        if answer.request_id:
            self.provider_request_ids.append(answer.request_id)
        if metrics.serving():
            mode = self.request.mode.value
            metrics.ATTEMPTS.inc(mode, answer.cause.value if answer.cause is not None else "ok")
            metrics.ATTEMPT_SECONDS.observe(seconds, mode)

    def ended(self, hold: int, *, metered: bool, beyond: int = 0) -> None:
        """The attempt that was on the wire, if one was, has ended. ``metered``: its tokens are known, or estimated and
        perhaps ``beyond`` tokens more."""
        if self.on_wire and metered:
            self.unmetered_tokens += beyond - hold
        self.on_wire = False

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
            metrics.REQUESTS.inc(self.request.mode.value, failure.cause.value if failure is not None else "ok")
            if completion is not None:
                metrics.ROLLOUTS.inc(by=len(completion["choices"]))
                self._count_tokens(completion)
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
            unmetered_tokens=self.unmetered_tokens,
            provider_request_ids=self.provider_request_ids,
        )

    def _count_tokens(self, completion: dict[str, Any]) -> None:
        usage = completion.get("usage")
        if not isinstance(usage, dict):
            return
        label = _MODELS(model_of(self.request, self.profile))
        for kind in ("prompt", "completion"):
            tokens = usage.get(f"{kind}_tokens")
            if isinstance(tokens, int) and tokens > 0:
                metrics.TOKENS.inc(kind, by=tokens)
                metrics.MODEL_TOKENS.inc(label, kind, by=tokens)
        cost = cost_of(self.request, self.profile, completion) or 0.0
        metrics.COST.inc(by=cost)
        metrics.MODEL_COST.inc(label, by=cost)


def model_of(request: Request, profile: Profile) -> str:
    """The model that a request asks for."""
    return str(request.fields.get("model") or profile.model)


def cost_of(request: Request, profile: Profile, completion: Mapping[str, Any]) -> float | None:
    """The completion's cost, in the currency of the profile's prices; None without usage or a price."""
    usage = completion.get("usage")
    price = profile.price(model_of(request, profile), str(completion.get("model")))
    if price is None or not isinstance(usage, dict):
        return None
    counted = Tokens()
    counted.add(usage)
    return price.cost(counted, batch=request.workload is Workload.BATCH)
