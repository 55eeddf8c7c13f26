"""Admission, attempts at the provider, outcome: the one module that knows all three. Attempts are counted only here."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from brimful.errors import BudgetExhausted
from brimful.names import Mode
from brimful.outcome import Cause, Failure, Outcome
from brimful.request import Request
from brimful_worker.admission import NO_FLOW, Flow, Lease, LeaseLost, Refused, Retired, StaleGrant
from brimful_worker.admission.policy import release_delay
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.provider.assembly import Assembly, Part
from brimful_worker.provider.jobs import JobKey
from brimful_worker.provider.session import OnSent, Provider
from brimful_worker.sampling import retry
from brimful_worker.sampling.exchange import Exchange
from brimful_worker.sampling.job_hooks import job_hooks
from brimful_worker.sampling.shared import Shared
from brimful_worker.sampling.spans import traced_attempt, traced_request
from brimful_worker.sampling.stats import RequestStats, log_attempt
from brimful_worker.sampling.suspects import Suspicion

log = logging.getLogger(__name__)

OnWire = Callable[[bool], None]


class Sampler(Shared):
    """The sampler of one process. It holds no request beyond the calls of :meth:`sample` that are running."""

    @traced_request
    async def sample(
        self,
        request: Request,
        *,
        scope: str = "",
        on_wire: OnWire | None = None,
        flow: Flow = NO_FLOW,
        divided: bool = False,
        divisible: bool = False,
        exchange: Exchange | None = None,
    ) -> Outcome:
        """Sample one request. Raises only CancelledError; whatever else happens is the outcome's failure.

        ``scope`` (a run's or a Celery task's id) and ``request.id`` name the request to the provider's Jobs and to the
        admission: the same names and fields find the same Job again, and the deaths of workers that had it on the wire.
        Without both, each call is a Job of its own. ``divided`` and ``divisible`` as in :class:`Suspicion`. A
        cancellation also cancels the Job at the provider, unless the worker stops or its message is
        :data:`brimful_worker.provider.GIVE_BACK`.
        ``on_wire(True)`` is called when an attempt's bytes are sent, ``on_wire(False)`` when it failed and another is
        to follow: a caller that stops gracefully lets the first end and cancels the second.
        ``flow``: the run it belongs to, which shares this worker's grants with others; all single requests are one.
        ``exchange``: how it is sent, if not as one JSON body whose answer is another.
        """
        sampling = _Sampling(self, request, scope, on_wire, flow, Suspicion(divided, divisible), exchange)
        try:
            # The first attempt, but a Job's, ends long before the deadline: most requests need no timer for it.
            timed = self._short_deadline or request.mode is Mode.JOB
            outcome = None if timed else await sampling.step()
            return outcome or await sampling.run()
        except Exception as error:
            if sampling.clock is not None and sampling.clock.expired():
                return sampling.failed(retry.deadline_failure(sampling.last, self.settings.deadline_s))
            # A fault of brimful's must not fail a shard's other requests. Its text may contain a prompt, so only its
            # type and place are logged.
            name = type(error).__name__
            log.error("the sampler failed: %s\n%s", name, "".join(traceback.format_tb(error.__traceback__)))
            return sampling.failed(Failure(Cause.INTERNAL, f"brimful's own fault ({name}): see the worker's log"))


@dataclass(slots=True, eq=False)
class _Sampling:
    """One request on its way to an outcome."""

    sampler: Sampler
    request: Request
    scope: str
    on_wire: OnWire | None
    flow: Flow
    suspicion: Suspicion
    exchange: Exchange | None = None
    alone: bool = False
    """It is sampled alone from now on."""
    since: float | None = None
    """On ``boot_time()``: since when it has waited, if its last grant came before it could be sampled (alone)."""
    deadline: float | None = None
    """On the loop's clock; known from the first grant on."""
    clock: asyncio.Timeout | None = None
    failures: int = 0
    throttles: int = 0
    last: Classification | None = None
    """The last failed attempt."""
    job_key: JobKey | None = None
    """The same as long as the same body is sent; the missing choices of a short answer are another Job."""
    assembly: Assembly = field(init=False)
    stats: RequestStats = field(init=False)

    def __post_init__(self) -> None:
        self.assembly = Assembly(self.request)
        self.stats = RequestStats(self.request, self.sampler.settings.profile)

    async def run(self) -> Outcome:
        """Steps until there is an outcome; raises TimeoutError, with the clock expired, at the deadline."""
        async with asyncio.timeout_at(self.deadline) as self.clock:
            while (outcome := await self.step()) is None:
                pass
            return outcome

    async def step(self) -> Outcome | None:
        """One attempt and what follows from it; None if another one follows."""
        part = self.assembly.next_part()
        self._on_wire(False)
        hold, budget, isolation = part.request.hold, self.sampler.budget, self.sampler.isolation
        if budget.limit is not None:
            await budget.wait()
        if budget.at_end(hold):
            answer: Classification | None = retry.BUDGET_END
        elif self.alone:
            async with isolation.alone():
                answer = await self._ask(part, hold)
        else:
            await isolation.wait()
            answer = await self._ask(part, hold)
        if answer is None:
            return None
        if answer.completion is not None and self.assembly.take(part, answer.completion):
            if self.assembly.complete:
                return self.stats.outcome(self.sampler.worker, completion=self.assembly.completion())
            self._note(answer)
            return None  # the missing choices are asked for at once
        failure = await self._follow_up(part, answer)
        return None if failure is None else self.failed(failure)

    def failed(self, failure: Failure) -> Outcome:
        return self.stats.outcome(self.sampler.worker, failure=failure)

    async def _ask(self, part: Part, hold: int) -> Classification | None:
        """Ask once. None if nothing was sent; the next attempt then costs nothing."""
        sampler, budget, isolation = self.sampler, self.sampler.budget, self.sampler.isolation
        workload = part.request.workload
        name = f"{self.scope}\0{self.request.id}" if self.scope else ""
        try:
            async with sampler.share(workload):
                provider = sampler.provider  # of the same key as the admission
                slot = sampler.admission.slot(workload, tokens=hold, flow=self.flow, name=name, since=self.since)
                async with slot as lease:
                    if lease.deaths:
                        self.stats.died(self.suspicion.learn(lease.deaths), hold)
                    verdict, before, self.alone = self.suspicion.verdict(), self.alone, self.suspicion.alone
                    if verdict is not None or before != self.alone or not isolation.enter(alone=self.alone):
                        self.since = boot_time() - lease.waited_s
                        if verdict is not None:
                            lease.forget_deaths()
                        lease.give_back()
                        return verdict
                    try:
                        self.since = None
                        self._granted(lease)
                        if budget.enter():
                            try:
                                return await self._send(part, lease, hold, provider)
                            finally:
                                budget.leave()
                        lease.give_back()
                        return None
                    finally:
                        isolation.leave()
        except Retired:
            return None
        except StaleGrant:
            self.stats.stale_grant(sampler.provider.host)
            return None
        except LeaseLost:
            metrics.LEASES_LOST.inc()
            return retry.LEASE_LOST
        except BudgetExhausted:  # the fleet's own budget, kept by admission
            budget.end(hold)
            return retry.BUDGET_END

    def _granted(self, lease: Lease) -> None:
        self.stats.granted(lease.waited_s)
        if self.deadline is None:
            self.deadline = asyncio.get_running_loop().time() + self.sampler.settings.deadline_s
            if self.clock is not None:
                self.clock.reschedule(self.deadline)

    async def _send(self, part: Part, lease: Lease, hold: int, provider: Provider) -> Classification:
        """Send the request and report its answer to the fleet while the slot is still held."""
        sampler = self.sampler
        body = provider.body(part)
        sent_at: float | None = None

        def on_sent() -> None:
            nonlocal sent_at
            sent_at = time.monotonic()
            self.stats.sent(hold)
            self._on_wire(True)

        answer = await self._exchange(part, lease, body, on_sent, provider)
        if lease.lost and answer.completion is None:
            answer = retry.LEASE_LOST
        beyond = sampler.usage.check(answer.completion, part.request) if answer.completion is not None else 0
        rest_s = sampler.settings.cooldown_s if answer.abandoned else 0.0
        if sent_at is not None:
            elapsed_s = time.monotonic() - sent_at
            self.stats.attempted(answer, elapsed_s)
            rest_s = max(rest_s, release_delay(sampler.settings.release_delay_s, elapsed_s))
        tokens = retry.tokens_cost(answer, sent=sent_at is not None, job=part.request.mode is Mode.JOB)
        self.stats.ended(hold, metered=tokens is not None, beyond=beyond)
        charged = None if tokens is None else tokens + beyond
        lease.report(
            ok=retry.provider_health(answer),
            tokens_used=charged,
            cooldown_s=rest_s,
            refused=retry.refused_by(answer),
            stated_starts=answer.stated_starts,
        )
        if await sampler.budget.observe(answer, hold, sampler.admission):
            sampler.health.observe(answer)
        if answer.retry_after_s:
            await self._pause_fleet(answer)
        return answer

    @traced_attempt
    def _exchange(
        self, part: Part, lease: Lease, body: bytes, on_sent: OnSent, provider: Provider
    ) -> Coroutine[Any, Any, Classification]:
        if self.exchange is not None:
            return self.exchange.send(provider, part, body, lease, on_sent)
        if part.request.mode is not Mode.JOB:
            return provider.complete(part, body, lease, on_sent)
        if self.job_key is None or self.job_key.body != body:
            named = self.scope or self.request.id
            self.job_key = JobKey(f"{self.scope}\0{self.request.id}" if named else uuid.uuid4().hex, body)
        hooks = job_hooks(self.sampler, note=self._note, pause_fleet=self._pause_fleet)
        return provider.job(part, body, lease, on_sent, self.job_key, hooks)

    async def _follow_up(self, part: Part, answer: Classification) -> Failure | None:
        """The failure that the request ends with; None, after a wait, if it is worth another attempt."""
        settings = self.sampler.settings
        self._note(answer)
        if answer.kind in retry.PERMANENT or (self.exchange is not None and self.exchange.begun):
            return retry.failure(answer)
        if answer.kind is Kind.BUDGET:  # the gate says when to try again
            return retry.failure(answer) if self.sampler.budget.at_end(part.request.hold) else None
        if answer.kind is Kind.THROTTLED:
            self.throttles += 1
            count, limit = self.throttles, settings.throttle_attempts
        else:
            self.failures += 1
            count, limit = self.failures, settings.attempts
        if count >= limit:
            return retry.failure(answer, count)
        seconds = retry.next_attempt_s(
            answer,
            count,
            base_s=settings.backoff_base_s,
            cap_s=settings.backoff_cap_s,
            retry_after_cap_s=settings.retry_after_cap_s,
            uniform=self.sampler.uniform,
        )
        if seconds:
            self._on_wire(False)
            self.stats.backing_off(seconds)
            await asyncio.sleep(seconds)
        return None

    async def _pause_fleet(self, answer: Classification) -> None:
        """The provider named a time: no worker of the fleet starts anything until then, or, where it refused by the
        slots, until another request has ended."""
        assert answer.retry_after_s is not None
        seconds = min(answer.retry_after_s, self.sampler.settings.retry_after_cap_s)
        reason = f"{answer.cause}: the provider said Retry-After {seconds:g} s"
        until_accepted = retry.refused_by(answer) is Refused.SLOTS
        if not until_accepted:
            self.sampler.health.paused(seconds, reason)
        await self.sampler.admission.pause(seconds, reason, until_accepted=until_accepted)

    def _note(self, answer: Classification) -> None:
        self.last = answer
        if answer.cause is not None:
            self.stats.failed(answer.cause)
            log_attempt(log, self.request.id or self.scope, self.stats.attempts, answer)

    def _on_wire(self, sent: bool) -> None:
        if self.on_wire is not None:
            self.on_wire(sent)
