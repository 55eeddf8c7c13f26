"""Admit → send → outcome. Nothing else knows all three, and attempts are counted nowhere else."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from brimful.config import Settings
from brimful.errors import BudgetExhausted
from brimful.names import Mode, Workload
from brimful.outcome import Cause, Failure, Outcome
from brimful.request import Request
from brimful_worker import retry
from brimful_worker.admission import LeaseLost, StaleGrant
from brimful_worker.budget import BudgetGate
from brimful_worker.provider.answer import Kind, Meaning
from brimful_worker.provider.assembly import Assembly, Part
from brimful_worker.provider.jobs import Hooks, Ticket
from brimful_worker.provider.session import Provider
from brimful_worker.provider.wire import Grant, Wire
from brimful_worker.tally import Tally

log = logging.getLogger(__name__)

_STALE_GRANTS_TOLD = 5
_BUDGET_BASE_S = 0.5
_BUDGET_CAP_S = 10.0


class Lease(Grant, Protocol):
    """A slot and a start; see ``brimful_worker.admission.Lease``."""

    @property
    def waited_s(self) -> float: ...
    def give_back(self) -> None: ...
    def report(self, *, ok: bool | None, tokens_used: int | None = None, cooloff_s: float | None = None) -> None: ...


class Admission(Protocol):
    """What the sampler needs of ``brimful_worker.admission.Admission``."""

    def slot(self, workload: Workload, *, tokens: int = 0) -> AbstractAsyncContextManager[Lease]: ...
    async def pause(self, seconds: float, reason: str) -> None: ...
    async def status(self) -> FleetStatus: ...


class FleetStatus(Protocol):
    """The part of ``brimful.status.Status`` that matters here."""

    @property
    def slots_used(self) -> int: ...


class Sampler:
    """One process's. It holds no request of its own beyond the calls of :meth:`sample` that are running."""

    def __init__(
        self,
        settings: Settings,
        admission: Admission,
        provider: Provider,
        *,
        uniform: Callable[[], float] = random.random,
        observe: Callable[[Part, Meaning, float], None] | None = None,
    ) -> None:
        """``uniform`` draws from [0, 1). ``observe`` is told each attempt: what was asked, what came, seconds on the
        wire."""
        self.settings = settings
        self.admission = admission
        self.provider = provider
        self.uniform = uniform
        self.observe = observe
        self.budget = BudgetGate()
        self.worker = f"{socket.gethostname()}:{os.getpid()}"

    async def sample(
        self, request: Request, *, scope: str = "", on_wire: Callable[[bool], None] | None = None
    ) -> Outcome:
        """What became of a request; raises only CancelledError.

        ``scope`` (a run's or a Celery task's id) and ``request.id`` name the request to the provider's Jobs: the same
        names and fields find the same Job again. With neither, each call is a Job of its own.
        ``on_wire`` is told True when an attempt's bytes are sent, False when that attempt failed and another is to
        follow: whoever stops calmly lets the first end and cancels the second.
        """
        sampling = _Sampling(self, request, scope, on_wire)
        try:
            async with sampling.clock:
                return await sampling.run()
        except TimeoutError:
            if not sampling.clock.expired():
                raise
            return sampling.late()
        except Exception as error:
            # A fault of our own must not take a shard's other requests with it. Its text may hold anything: not told.
            log.exception("the sampler failed")
            return sampling.failed(
                Failure(Cause.INTERNAL, f"brimful's own fault ({type(error).__name__}): see its log")
            )

    async def in_flight_elsewhere(self) -> int:
        """Requests of this key that hold tokens now, without the caller's own; the fleet's where Redis can tell."""
        local = self.budget.holding - 1
        try:
            return max(local, (await self.admission.status()).slots_used - 1)
        except Exception as error:
            log.debug("no status of the fleet: %s", type(error).__name__)
            return local


class _Sampling:
    """One request on its way to an outcome."""

    __slots__ = (
        "assembly",
        "budget_refusals",
        "clock",
        "failures",
        "fleet",
        "last",
        "request",
        "stale_grants",
        "tally",
        "tell_wire",
        "throttles",
        "ticket",
        "ticket_name",
    )

    def __init__(
        self, fleet: Sampler, request: Request, scope: str, tell_wire: Callable[[bool], None] | None = None
    ) -> None:
        self.fleet = fleet
        self.request = request
        self.assembly = Assembly(request)
        self.tally = Tally()
        self.tell_wire = tell_wire
        self.clock = asyncio.timeout(None)
        self.failures = self.throttles = self.budget_refusals = self.stale_grants = 0
        self.last: Meaning | None = None
        self.ticket: Ticket | None = None
        self.ticket_name = f"{scope}\0{request.id}" if scope or request.id else uuid.uuid4().hex

    # -- the loop -----------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        while True:
            part = self.assembly.next_part()
            told = await self._attempt(part)
            if told is None:
                continue
            if told.completion is not None and self.assembly.take(part, told.completion):
                if self.assembly.complete:
                    return self.tally.outcome(
                        self.request.id, worker=self.fleet.worker, completion=self.assembly.completion()
                    )
                self._note(told)
                continue  # what came is kept, and the rest is asked for at once
            failure = await self._weigh(part, told)
            if failure is not None:
                return self.failed(failure)

    async def _attempt(self, part: Part) -> Meaning | None:
        """Ask once. None: nothing was sent, and it costs nothing to ask again."""
        self._off_wire()
        fleet, request = self.fleet, part.request
        hold = request.hold
        if fleet.budget.at_end(hold):
            return Meaning(Kind.BUDGET, cause=Cause.BUDGET, message="the key's budget is at its end")
        await fleet.budget.turn()
        try:
            async with fleet.admission.slot(request.workload, tokens=hold) as lease:
                self.tally.waited_s += lease.waited_s
                if self.clock.when() is None:
                    self.clock.reschedule(asyncio.get_running_loop().time() + fleet.settings.deadline_s)
                if not fleet.budget.enter():
                    lease.give_back()
                    return None
                try:
                    return await self._send(part, lease, hold)
                finally:
                    fleet.budget.leave()
        except StaleGrant:
            self.stale_grants += 1
            if self.stale_grants == _STALE_GRANTS_TOLD:
                log.warning(
                    "grants grow stale before their connection is there: %s is slow to connect to, or this process is "
                    "overloaded; a larger BRIMFUL_GUARD_S or fewer requests per process helps",
                    fleet.provider.host,
                )
            return None
        except LeaseLost:
            return _lease_lost()
        except BudgetExhausted as error:  # the fleet's own budget, kept by admission
            fleet.budget.end(hold)
            return Meaning(Kind.BUDGET, cause=Cause.BUDGET, message=error.message or "the budget is at its end")

    async def _send(self, part: Part, lease: Lease, hold: int) -> Meaning:
        """On the wire and back, and what the fleet must know of it while the slot is still held."""
        fleet, provider = self.fleet, self.fleet.provider
        body = provider.body(part)
        sent_at = 0.0

        def on_wire(wire: Wire) -> None:
            nonlocal sent_at
            sent_at = wire.sent_at or 0.0
            self.tally.on_wire()
            if self.tell_wire is not None:
                self.tell_wire(True)

        try:
            if part.request.mode is Mode.JOB:
                told = await provider.job(part, body, lease, on_wire, self._job_ticket(body), self._job_hooks(part))
            else:
                told = await provider.complete(part, body, lease, on_wire)
        finally:
            spent = time.monotonic() - sent_at if sent_at else 0.0
            self.tally.provider_s += spent
        if lease.lost and told.completion is None:
            told = _lease_lost()
        lease.report(ok=_health(told), tokens_used=told.tokens_used)
        if fleet.observe is not None:
            fleet.observe(part, told, spent)
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

    async def _weigh(self, part: Part, told: Meaning) -> Failure | None:
        """The failure it ends with; None, after a wait, where it is worth asking again."""
        settings = self.fleet.settings
        self._note(told)
        if told.kind in (Kind.PERMANENT, Kind.FILTERED, Kind.KEY_REFUSED):
            return _failure(told, permanent=True)
        if told.kind is Kind.BUDGET:
            if self.fleet.budget.at_end(part.request.hold):
                return _failure(told, permanent=False)
            self.budget_refusals += 1
            await self._back_off(self.budget_refusals, base_s=_BUDGET_BASE_S, cap_s=_BUDGET_CAP_S)
            return None
        if told.kind is Kind.THROTTLED:
            self.throttles += 1
            if self.throttles >= settings.throttle_attempts:
                return _failure(told, permanent=False, after=self.throttles)
            await self._back_off_after(told, self.throttles)
            return None
        self.failures += 1
        if self.failures >= settings.attempts:
            return _failure(told, permanent=False, after=self.failures)
        if not (told.stale and self.failures == 1):
            await self._back_off_after(told, self.failures)
        return None

    async def _back_off_after(self, told: Meaning, failures: int) -> None:
        """Only where the fleet's pause is not already the longer wait."""
        if (told.retry_after_s or 0.0) < self.fleet.settings.backoff_base_s:
            await self._back_off(failures)

    def _note(self, told: Meaning) -> None:
        self.last = told
        if told.cause is not None:
            self.tally.retries[told.cause] += 1

    async def _back_off(self, failures: int, *, base_s: float | None = None, cap_s: float | None = None) -> None:
        self._off_wire()
        settings = self.fleet.settings
        seconds = retry.full_jitter(
            failures,
            base_s=base_s or settings.backoff_base_s,
            cap_s=cap_s or settings.backoff_cap_s,
            uniform=self.fleet.uniform,
        )
        self.tally.retrying_s += seconds
        await asyncio.sleep(seconds)

    def _off_wire(self) -> None:
        if self.tell_wire is not None:
            self.tell_wire(False)

    async def _pause_fleet(self, told: Meaning) -> None:
        """The provider named a time: nobody of the fleet starts until then."""
        assert told.retry_after_s is not None
        seconds = min(told.retry_after_s, self.fleet.settings.retry_after_cap_s)
        await self.fleet.admission.pause(seconds, f"{told.cause}: the provider said Retry-After {seconds:g} s")

    # -- Jobs ---------------------------------------------------------------------------------------------------

    def _job_ticket(self, body: bytes) -> Ticket:
        """One ticket as long as the same is asked; what is missing of a short answer is another Job."""
        if self.ticket is None or self.ticket.body != body:
            self.ticket = Ticket(self.ticket_name, body)
        return self.ticket

    def _job_hooks(self, part: Part) -> Hooks:
        fleet = self.fleet
        begin: Any = getattr(fleet.admission, "start_only", None) if fleet.settings.profile.job_polls_count else None

        async def pause(polls: int) -> None:
            await asyncio.sleep(retry.poll_pause(polls, first_s=fleet.settings.job_poll_s, uniform=fleet.uniform))

        async def throttled(told: Meaning) -> None:
            self._note(told)
            if told.retry_after_s:
                await self._pause_fleet(told)
                await asyncio.sleep(min(told.retry_after_s, fleet.settings.retry_after_cap_s))
            else:
                await self._back_off(3)

        return Hooks(
            pause=pause,
            start=None if begin is None else lambda: begin(part.request.workload),
            throttled=throttled,
        )

    # -- the end ------------------------------------------------------------------------------------------------

    def failed(self, failure: Failure) -> Outcome:
        return self.tally.outcome(self.request.id, worker=self.fleet.worker, failure=failure)

    def late(self) -> Outcome:
        """The deadline passed."""
        told = self.last
        message = f"no completion within BRIMFUL_DEADLINE_S = {self.fleet.settings.deadline_s:g} s of its first grant"
        if told is not None:
            message += f"; the last failure: {told.message}"
        cause = told.cause if told is not None and told.cause is not None else Cause.TIMEOUT
        return self.failed(Failure(cause, message, status=told.status if told else None))


def _lease_lost() -> Meaning:
    return Meaning(
        Kind.TRANSIENT, cause=Cause.LEASE_LOST, message="the slot's lease was lost, and the request ended with it"
    )


def _health(told: Meaning) -> bool | None:
    """What an attempt says of the provider's health to the breaker; None: nothing."""
    if told.kind in (Kind.SUCCESS, Kind.SHORT, Kind.FILTERED):
        return True
    if told.kind is Kind.TRANSIENT and not told.stale and told.cause is not Cause.LEASE_LOST:
        return False
    return None


def _failure(told: Meaning, *, permanent: bool, after: int = 0) -> Failure:
    message = f"gave up after {after} failed attempts; the last: {told.message}" if after > 1 else told.message
    return Failure(told.cause or Cause.BAD_ANSWER, message, status=told.status, permanent=permanent)
