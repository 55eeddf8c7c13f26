"""Drives a run: units in, requests through Celery's queues to the workers, outcomes back, each delivered once.

Its parts share one bookkeeping (what is outstanding, the planner, the status) on one loop. The *intake* reads units
into the planner, as many as it can choose among, and plans requests; the *sender* takes them to ledger and queue; the
*inbox* reads outcomes from the run's stream, and every one that comes makes room for further requests; the
*caretaker* looks after shards that are found nowhere; the *ending* tells when it is over, or stops it before. What is
enqueued is bounded: what fills the slots, and what keeps them filled for a moment
(:mod:`brimful.packing.slot_model`), so a
million lines take no more memory than a thousand.

An outcome leaves Redis only after its consumer has come back for the next batch, that is: when it is on disk. A fault
in any of them ends the deliveries, and is raised there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

from celery import Celery

from brimful.celery import app_for
from brimful.dispatch.enqueue import Publisher
from brimful.dispatch.inflight import Outstanding
from brimful.dispatch.intake import Intake
from brimful.dispatch.ledger import RunLedger
from brimful.dispatch.outcomes import Outcomes
from brimful.dispatch.reconcile import Caretaker
from brimful.dispatch.results import Inbox
from brimful.dispatch.resume import collect
from brimful.dispatch.sender import Sender
from brimful.dispatch.stop import Ending
from brimful.dispatch.sweep import Sweep
from brimful.names import Workload
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import Delivered, DriveStatus, Failed, PackOption, Recovered, Unit
from brimful.profile import Profile
from brimful.runtime.aio import cancel_and_wait
from brimful.state.redis_retry import REDIS_ERRORS, reraise_cancellation
from brimful.state.redis_url import close_redis_client, redis_client
from brimful.state.status import live_limits

_LIMITS_S = 5.0


class Driver:
    """One submitter of one run. ``recover`` (for a run tried before), then ``deliveries``; ``stop`` any time."""

    def __init__(
        self,
        redis_url: str,
        run: str,
        profile: Profile,
        *,
        pack: PackOption = "auto",
        workload: Workload | str | None = None,
        timeout_s: float = 120.0,
        app: Celery | None = None,
        sweep_s: float = 15.0,
        keep: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``timeout_s``: of one request, a bound to how large packs grow. ``workload`` None: each request's own.

        ``keep``: what is queued when the driver is closed stays queued, for another submitter of the run; else it is
        withdrawn.
        """
        self._profile = profile
        self._keep = keep
        self._client = redis_client(redis_url)
        self._ledger = RunLedger(self._client, run)
        self._publisher = Publisher(app or app_for(redis_url))
        limits = Limits(profile.slots, profile.starts, profile.window_s)
        auto = pack == "auto" and profile.max_prompts != 1
        self._tuner = tuner = PackSizer(limits, timeout_s)
        self._pace = SlotModel(limits, adapting=auto)
        self._planner = planner = Batcher(profile, pack, tuner, self._pace)
        self._status = status = DriveStatus()
        outcomes = Outcomes(planner, tuner, status)
        self._out = out = Outstanding(self._pace, tuner, Workload(workload) if workload is not None else None, clock)
        sweep = Sweep(self._client, self._ledger, out, patience_s=sweep_s, clock=clock)
        self._sender = sender = Sender(run, self._ledger, self._publisher, out, clock)
        self._intake = intake = Intake(planner, tuner, self._pace, out, sender, status, auto=auto, clock=clock)
        self._ending = ending = Ending(self._ledger, out, intake, status)
        self._inbox = inbox = Inbox(
            self._ledger, outcomes, planner, out, intake, ending, status, on_stop=self._stop_by_itself
        )
        self._caretaker = Caretaker(
            self._ledger, out, sweep, tuner, planner, intake, sender, inbox, ending, status,
            auto=auto, sweep_s=sweep_s, clock=clock,
        )  # fmt: skip
        self._tasks: list[asyncio.Task[None]] = []
        self._fault: BaseException | None = None
        self._closed = False

    # -- for its caller ----------------------------------------------------------------------------------------------

    async def recover(self) -> Recovered:
        """What an earlier submitter of this run left: outcomes nobody collected, and requests still under way.

        The caller writes down ``delivered`` before it asks for :meth:`deliveries`; it drops what it has already, since
        the earlier one may have died between writing and acknowledging. Failures left behind count as not done.
        """
        left = await collect(self._client, self._ledger, self._profile)
        self._inbox.begin_after(left.last)
        for shard, requests in left.shards.items():
            self._out.adopt(shard, requests)
        return left.recovered

    async def deliveries(
        self, units: AsyncIterator[Unit] | Iterator[Unit], *, total: int | None = None
    ) -> AsyncIterator[list[Delivered | Failed]]:
        """What becomes of ``units`` (and of what :meth:`recover` found under way), in batches, as it comes.

        ``total``: how many units there will be, where that is known; packing uses it. Asking for the next batch
        acknowledges the one before: write it down first. After :meth:`stop`, or once the key or its budget is refused,
        what was not sent comes back as nothing at all.
        """
        await self._inbox.acknowledge()
        self._intake.begin(total)
        parts = (
            self._feed(units),
            self._sender.run(),
            self._inbox.collect(),
            self._caretaker.look_after(),
            self._follow_limits(),
        )
        self._tasks += [asyncio.create_task(self._guarded(part)) for part in parts]
        try:
            while (told := await self._inbox.next()) is not None:
                batch, entry = told
                if batch:
                    yield batch
                await self._inbox.written(entry)
            if self._fault is not None:
                raise self._fault
        finally:
            await self.aclose()

    async def stop(self, *, drain: bool) -> None:
        """``drain``: nothing new is sent, what is on the wire is awaited and delivered. Else: withdrawn at once.

        :meth:`deliveries` ends by itself then. May be called again, to stop at once while draining.
        """
        if not self._closed:
            await self._ending.stop(drain=drain)

    def snapshot(self) -> DriveStatus:
        status = self._status
        return replace(
            status,
            queued=len(self._out),
            planned=self._planner.held,
            pack=max(1, self._planner.pack),
            retries=dict(status.retries),
        )

    async def aclose(self) -> None:
        """Ends everything here. :meth:`deliveries` does it when it ends."""
        if self._closed:
            return
        self._closed = True
        self._publisher.close()
        await cancel_and_wait(self._tasks)
        await self._publisher.aclose()
        with contextlib.suppress(*REDIS_ERRORS, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._inbox.acknowledge()
                if not len(self._out) or not self._keep:
                    await self._ledger.clear()
        await close_redis_client(self._client)

    # -- around it all -----------------------------------------------------------------------------------------------

    async def _feed(self, units: AsyncIterator[Unit] | Iterator[Unit]) -> None:
        await self._intake.feed(units, self._inbox.refuse)
        self._ending.end_if_done()

    def _stop_by_itself(self, cause: str) -> None:
        """The key or its budget was refused."""
        self._ending.begin_stop(cause)
        self._tasks.append(asyncio.create_task(self._guarded(self._ending.withdraw_unbegun())))

    async def _follow_limits(self) -> None:
        """The limits in force, which an operator may change while it runs."""
        while True:
            with contextlib.suppress(*REDIS_ERRORS):
                if (limits := await reraise_cancellation(lambda: live_limits(self._client))) is not None:
                    self._pace.limits = self._tuner.limits = limits
            await asyncio.sleep(_LIMITS_S)

    async def _guarded(self, work: Awaitable[None]) -> None:
        """A fault in any part ends the deliveries and is raised there."""
        try:
            await work
        except Exception as error:
            self._fault = self._fault or error
            self._ending.over.set()
