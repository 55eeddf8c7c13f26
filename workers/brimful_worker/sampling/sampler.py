"""Admit → send → outcome. Nothing else knows all three, and attempts are counted nowhere else."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
import traceback
from collections.abc import Callable

from brimful.config import Settings
from brimful.errors import BudgetExhausted
from brimful.names import Mode
from brimful.outcome import Cause, Failure, Outcome
from brimful.request import Request
from brimful_worker.admission import Admission, Lease, LeaseLost, StaleGrant
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.provider.assembly import Assembly, Part
from brimful_worker.provider.session import Provider
from brimful_worker.sampling import retry, verdict
from brimful_worker.sampling.budget import BudgetGate
from brimful_worker.sampling.job_hooks import Tickets, hooks
from brimful_worker.sampling.process_share import Share
from brimful_worker.sampling.tally import Tally

log = logging.getLogger(__name__)

_STALE_GRANTS_TOLD = 5


class Sampler:
    """One process's. It holds no request of its own beyond the calls of :meth:`sample` that are running."""

    def __init__(
        self,
        settings: Settings,
        admission: Admission,
        provider: Provider,
        *,
        uniform: Callable[[], float] = random.random,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """``uniform`` draws from [0, 1). ``stopping``: a cancellation now means that the worker stops and gives its
        work back, so that Jobs are left for the next worker to find."""
        self.settings = settings
        self.admission = admission
        self.provider = provider
        self.uniform = uniform
        self.stopping = stopping
        self.budget = BudgetGate(uniform=uniform)
        self.share = Share(settings.profile.slots, settings.profile.per_process)
        longest_s = settings.timeout_s + settings.connect_timeout_s + settings.backoff_cap_s
        self._short_deadline = settings.deadline_s < 2 * longest_s
        self.worker = f"{socket.gethostname()}:{os.getpid()}"

    async def sample(
        self, request: Request, *, scope: str = "", on_wire: Callable[[bool], None] | None = None
    ) -> Outcome:
        """What became of a request; raises only CancelledError.

        ``scope`` (a run's or a Celery task's id) and ``request.id`` name the request to the provider's Jobs: the same
        names and fields find the same Job again. With neither, each call is a Job of its own. Cancelled, the Job is
        cancelled at the provider too, unless the worker stops or the cancellation's message is
        :data:`brimful_worker.provider.GIVE_BACK`.
        ``on_wire`` is told True when an attempt's bytes are sent, False when that attempt failed and another is to
        follow: whoever stops calmly lets the first end and cancels the second.
        """
        sampling = _Sampling(self, request, scope, on_wire)
        try:
            # The first attempt, but a Job's, ends long before the deadline: most requests need no timer for it.
            timed = self._short_deadline or request.mode is Mode.JOB
            outcome = None if timed else await sampling.step()
            return outcome or await sampling.run()
        except Exception as error:
            if sampling.clock is not None and sampling.clock.expired():
                return sampling.failed(verdict.late(sampling.last, self.settings.deadline_s))
            # A fault of our own must not take a shard's other requests with it. Its text may hold anything, a prompt
            # too, so only its type and place are told.
            name = type(error).__name__
            log.error("the sampler failed: %s\n%s", name, "".join(traceback.format_tb(error.__traceback__)))
            return sampling.failed(Failure(Cause.INTERNAL, f"brimful's own fault ({name}): see the worker's log"))

    async def in_flight_elsewhere(self) -> int:
        """Requests of this key that hold tokens now, without the caller's own; the fleet's where Redis can tell."""
        local = self.budget.holding - 1
        try:
            status = await self.admission.status()
        except Exception as error:
            log.debug("no status of the fleet: %s", type(error).__name__)
            return local
        return max(local, status.slots_used - status.cooling - 1)


class _Sampling:
    """One request on its way to an outcome."""

    __slots__ = (
        "assembly",
        "clock",
        "deadline",
        "failures",
        "fleet",
        "last",
        "request",
        "scope",
        "stale_grants",
        "tally",
        "tell_wire",
        "throttles",
        "tickets",
    )

    def __init__(
        self, fleet: Sampler, request: Request, scope: str, tell_wire: Callable[[bool], None] | None = None
    ) -> None:
        self.fleet = fleet
        self.request = request
        self.scope = scope
        self.assembly = Assembly(request)
        self.tally = Tally(request)
        self.tell_wire = tell_wire
        self.deadline: float | None = None
        """On the loop's clock; known from the first grant on."""
        self.clock: asyncio.Timeout | None = None
        self.failures = self.throttles = self.stale_grants = 0
        self.last: Classification | None = None
        self.tickets: Tickets | None = None
        """From a Job's first attempt on."""

    # -- the loop -----------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Steps until there is an outcome; raises TimeoutError, with the clock expired, at the deadline."""
        async with asyncio.timeout_at(self.deadline) as self.clock:
            while (outcome := await self.step()) is None:
                pass
            return outcome

    async def step(self) -> Outcome | None:
        """One attempt and what follows from it; None: it is worth another."""
        part = self.assembly.next_part()
        self._wire(False)
        told = await self._attempt(part)
        if told is None:
            return None
        if told.completion is not None and self.assembly.take(part, told.completion):
            if self.assembly.complete:
                return self.tally.outcome(self.fleet.worker, completion=self.assembly.completion())
            self._note(told)
            return None  # what came is kept, and the rest is asked for at once
        failure = await self._weigh(part, told)
        return None if failure is None else self.failed(failure)

    async def _attempt(self, part: Part) -> Classification | None:
        """Ask once. None: nothing was sent, and it costs nothing to ask again."""
        fleet, budget = self.fleet, self.fleet.budget
        hold, workload = part.request.hold, part.request.workload
        await budget.turn()
        if budget.at_end(hold):
            return verdict.BUDGET_END
        try:
            async with fleet.share(workload), fleet.admission.slot(workload, tokens=hold) as lease:
                self.tally.granted(lease.waited_s)
                if self.deadline is None:
                    self.deadline = asyncio.get_running_loop().time() + fleet.settings.deadline_s
                    if self.clock is not None:
                        self.clock.reschedule(self.deadline)
                if not budget.enter():
                    lease.give_back()
                    return None
                try:
                    return await self._send(part, lease, hold)
                finally:
                    budget.leave()
        except StaleGrant:
            self._stale()
            return None
        except LeaseLost:
            metrics.LEASES_LOST.inc()
            return verdict.LEASE_LOST
        except BudgetExhausted:  # the fleet's own budget, kept by admission
            budget.end(hold)
            return verdict.BUDGET_END

    async def _send(self, part: Part, lease: Lease, hold: int) -> Classification:
        """On the wire and back, and what the fleet must know of it while the slot is still held."""
        fleet, provider = self.fleet, self.fleet.provider
        body = provider.body(part)
        sent_at: float | None = None

        def on_wire() -> None:
            nonlocal sent_at
            sent_at = time.monotonic()
            self.tally.on_wire()
            self._wire(True)

        if part.request.mode is Mode.JOB:
            if self.tickets is None:
                self.tickets = Tickets(self.scope, self.request.id)
            around = hooks(fleet, self._note, self._pause_fleet)
            told = await provider.job(part, body, lease, on_wire, self.tickets.of(body), around)
        else:
            told = await provider.complete(part, body, lease, on_wire)
        if lease.lost and told.completion is None:
            told = verdict.LEASE_LOST
        self.tally.attempted(told, 0.0 if sent_at is None else time.monotonic() - sent_at)
        rest = fleet.settings.cooldown_s if told.abandoned else None
        lease.report(
            ok=verdict.health(told),
            tokens_used=told.tokens_used,
            cooloff_s=rest,
            settle_s=fleet.settings.release_delay_s,
        )
        if told.kind is Kind.BUDGET:
            if await fleet.in_flight_elsewhere() <= 0:
                fleet.budget.end(hold)
            else:
                fleet.budget.refused()
        elif told.completion is not None:
            fleet.budget.fitted()
        if told.retry_after_s:
            await self._pause_fleet(told)
        return told

    # -- what a failed attempt leads to -------------------------------------------------------------------------

    async def _weigh(self, part: Part, told: Classification) -> Failure | None:
        """The failure it ends with; None, after a wait, where it is worth asking again."""
        settings = self.fleet.settings
        self._note(told)
        if told.kind in (Kind.PERMANENT, Kind.FILTERED, Kind.KEY_REFUSED):
            return verdict.failure(told)
        if told.kind is Kind.BUDGET:
            # else the gate tells when to try again
            return verdict.failure(told) if self.fleet.budget.at_end(part.request.hold) else None
        if told.kind is Kind.THROTTLED:
            self.throttles += 1
            if self.throttles >= settings.throttle_attempts:
                return verdict.failure(told, self.throttles)
            await self._back_off_after(told, self.throttles)
            return None
        self.failures += 1
        if self.failures >= settings.attempts:
            return verdict.failure(told, self.failures)
        if not (told.stale and self.failures == 1):
            await self._back_off_after(told, self.failures)
        return None

    async def _back_off_after(self, told: Classification, failures: int) -> None:
        """Only where the fleet's pause is not already the longer wait."""
        if (told.retry_after_s or 0.0) < self.fleet.settings.backoff_base_s:
            await self._back_off(failures)

    async def _back_off(self, failures: int) -> None:
        self._wire(False)
        settings = self.fleet.settings
        seconds = retry.full_jitter(
            failures, base_s=settings.backoff_base_s, cap_s=settings.backoff_cap_s, uniform=self.fleet.uniform
        )
        self.tally.backing_off(seconds)
        await asyncio.sleep(seconds)

    async def _pause_fleet(self, told: Classification) -> None:
        """The provider named a time: nobody of the fleet starts until then."""
        assert told.retry_after_s is not None
        seconds = min(told.retry_after_s, self.fleet.settings.retry_after_cap_s)
        await self.fleet.admission.pause(seconds, f"{told.cause}: the provider said Retry-After {seconds:g} s")

    def _note(self, told: Classification) -> None:
        self.last = told
        if told.cause is not None:
            self.tally.failed(told.cause)
            log.debug("request %s, attempt %d: %s: %s", self.request.id, self.tally.attempts, told.cause, told.message)

    def _stale(self) -> None:
        metrics.STALE_GRANTS.inc()
        self.stale_grants += 1
        if self.stale_grants == _STALE_GRANTS_TOLD:
            log.warning(
                "grants grow stale before their connection is there: %s is slow to connect to, or this process is "
                "overloaded; a larger BRIMFUL_GUARD_S or fewer requests per process helps",
                self.fleet.provider.host,
            )

    def _wire(self, on: bool) -> None:
        if self.tell_wire is not None:
            self.tell_wire(on)

    def failed(self, failure: Failure) -> Outcome:
        return self.tally.outcome(self.fleet.worker, failure=failure)
