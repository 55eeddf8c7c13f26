"""Drives a run: units in, requests through Celery's queues to the workers, outcomes back, each delivered once.

The parts run as tasks on one loop and share the requests in flight. The *intake* reads units and plans requests; the
*enqueuer* sends them to ledger and queue; the *results reader* collects outcomes, each of which makes room for further
requests; the *reconciler* finds lost shards; the *stop* ends it all. What is enqueued is bounded by what fills the
slots and keeps them filled (:mod:`brimful.packing.slot_model`), so a million lines take no more memory than a thousand.

An outcome leaves Redis only when the consumer has come back for the next batch, which says that it is written down, and
when it is durable (:mod:`brimful.dispatch.acknowledge`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine, Set
from dataclasses import replace
from typing import Any

from brimful.addresses import FleetAddress
from brimful.dispatch.acknowledge import Acknowledger, Sync
from brimful.dispatch.deliveries import Deliveries
from brimful.dispatch.enqueue import Enqueuer
from brimful.dispatch.inflight import InFlight
from brimful.dispatch.intake import Intake, Units
from brimful.dispatch.ledger import RunLedger
from brimful.dispatch.outcomes import Outcomes
from brimful.dispatch.reconcile import Reconciler
from brimful.dispatch.results import ResultsReader
from brimful.dispatch.resume import collect
from brimful.dispatch.stops.hold import Hold
from brimful.dispatch.stops.stop import Stop
from brimful.names import Workload, of_fleet
from brimful.outcome import Failure
from brimful.packing.batcher import Batcher
from brimful.packing.pack_size import PackSizer
from brimful.packing.slot_model import Limits, SlotModel
from brimful.packing.units import Delivered, DriveStatus, Failed, PackOption, Recovered
from brimful.profile import Profile
from brimful.runtime.aio import cancel_and_wait, until_tick
from brimful.runtime.hiredis_packing import packed
from brimful.state.fleets import fleet_places
from brimful.state.redis_retry import REDIS_ERRORS, reraise_cancellation, retry_until_available
from brimful.state.redis_url import close_redis_client, redis_client
from brimful.state.runs.heartbeat import Heartbeat
from brimful.state.status import live_limits

_LIMITS_S = 5.0
_JOINING_S = 0.5
"""How often the workers' places are read until they are known."""
CLOSE_S = 2.0
"""How long Redis may take to record that the driver closes."""


class Driver:
    """One submitter of one run. ``recover`` (for a run tried before), then ``deliveries``; ``stop`` any time."""

    weigh_s = 2.0
    """Seconds from one reading of the other runs' weights, and of what operators ask, to the next."""

    def __init__(
        self,
        address: FleetAddress,
        run: str,
        profile: Profile,
        *,
        pack: PackOption = "auto",
        workload: Workload | str | None = None,
        timeout_s: float = 120.0,
        keep: bool = True,
        weight: float = 1.0,
        sync: Sync | None = None,
        stop_if_refused: bool = False,
        starting_places: int | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """``address``: of the fleet that samples it. ``timeout_s``: of one request, which bounds how large packs grow.
        ``workload`` None: each request's own.

        ``keep``: what is queued when the driver is closed stays queued for the run's next submitter; else it is
        withdrawn.

        ``weight``: its share beside other runs of the fleet, relative to theirs. Workers grant slots by it, and what
        each run keeps enqueued is in proportion to it.

        ``sync``: makes durable what the consumer has written; called before its outcomes leave Redis, and once a second
        at most, but for a last time at the end. It raises FleetError, which ends the deliveries.

        ``stop_if_refused``: send nothing more once the provider has refused all requests in the same words.

        ``starting_places``: tasks that the workers will run at once which are starting now, until they say so.

        ``heartbeat``: writes the run's entry, and reads what operators ask of it. None: the run has no entry.
        """
        run = of_fleet(address.fleet, run)
        limits = Limits(profile.slots, profile.starts, profile.window_s)
        auto = pack == "auto" and profile.max_prompts != 1
        self._profile = profile
        self._keep = keep
        self._client = packed(redis_client(address.redis_url))
        self._ledger = RunLedger(self._client, run, address.fleet)
        self._sizer = PackSizer(limits, timeout_s)
        slot_model = SlotModel(limits, adapting=auto)
        self._batcher = Batcher(profile, pack, self._sizer, slot_model)
        workload = Workload(workload) if workload is not None else None
        self._in_flight = in_flight = InFlight(self._sizer, slot_model, workload)
        self._deliveries = Deliveries()
        self._acknowledger = Acknowledger(self._ledger, self._deliveries, sync)
        self._enqueuer = Enqueuer(address, run, self._ledger, in_flight, weight)
        self._intake = intake = Intake(self._batcher, self._sizer, in_flight, self._deliveries, auto=auto)
        self._stop = Stop(self._ledger, in_flight, intake, self._deliveries)
        self._hold = Hold(self._ledger, in_flight, intake)
        self._outcomes = Outcomes(self._batcher, self._sizer, in_flight.status)
        self._results = ResultsReader(
            self._ledger, self._outcomes, in_flight, intake, self._deliveries, self._stop, stop_if_refused
        )
        self._reconciler = Reconciler(
            address, self._ledger, in_flight, intake, self._enqueuer, self._results, self._stop
        )
        self._weight = weight
        self._heartbeat = heartbeat
        self._starting_places = starting_places
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None
        self._closed = False

    async def recover(self) -> Recovered:
        """Take over what an earlier submitter of this run left: uncollected outcomes, and requests still in flight.

        The caller writes down ``delivered`` before it asks for :meth:`deliveries`. It drops what it has already: the
        earlier submitter may have died between writing and acknowledging. Failures left behind count as not done.
        Raises FleetError when Redis refuses.
        """
        left = await collect(self._ledger, self._profile)
        self._deliveries.begin_after(left.last)
        for shard, requests in left.shards.items():
            self._in_flight.adopt(shard, requests)
        return left.recovered

    async def deliveries(self, units: Units, *, total: int | None = None) -> AsyncIterator[list[Delivered | Failed]]:
        """What became of ``units``, and of what :meth:`recover` found in flight, in batches, as it comes.

        A Failed among the units is delivered as it is. ``total``: how many units there will be, if known; packing uses
        it. Asking for the next batch acknowledges the one before: write it down first. After :meth:`stop`, or once the
        key or its budget is refused, nothing is delivered for requests that were not sent. Raises FleetError, and what
        ``units`` raises.
        """
        await self._acknowledger.now()
        await self._read_limits()  # the first shards are divided by them
        if self._heartbeat is not None:
            await self._weigh()  # a run that is held already sends nothing
        parts = (
            self._feed(units, total),
            self._enqueuer.run(),
            self._results.run(),
            self._reconciler.run(),
            self._stop.run(),
            self._hold.run(),
            self._acknowledger.run(),
            self._follow_limits(),
            self._follow_weights(),
        )
        self._tasks |= {asyncio.create_task(self._guarded(part)) for part in parts}
        try:
            while (batch := await self._deliveries.next()) is not None:
                if batch.records:
                    yield batch.records
                await self._acknowledger.written(batch.entry)
            if self._fault is not None:
                raise self._fault
            await self._acknowledger.now()
        finally:
            await self.aclose()

    async def stop(self, *, drain: bool) -> None:
        """End :meth:`deliveries`. ``drain``: when the requests on the wire have ended; else at once, withdrawing them.

        May be called again, to end at once while draining.
        """
        await self._unless_closed(self._stop.drain() if drain else self._stop.now())

    def hold(self, held: bool) -> None:
        """Send nothing new, or go on. What is on the wire ends and is delivered; what waits is taken back from the
        queues and the workers within about a second."""
        self._hold.set(held)

    @property
    def refused(self) -> Failure | None:
        """The provider's refusal, if it has refused all requests so far in the same words; else None."""
        return self._outcomes.refused

    async def cancel(self, lines: Set[int]) -> None:
        """Ask no more for these lines: what waits is never sent, what is on the wire ends within about a second, and
        nothing more is delivered for them. A request that carries other lines too goes on. Raises FleetError."""
        await self._unless_closed(self._cancel(lines))

    async def _cancel(self, lines: Set[int]) -> None:
        self._batcher.drop(lines)
        if requests := self._in_flight.cancel(lines):
            await retry_until_available(lambda: self._ledger.cancel(requests))
        self._intake.plan()
        self._stop.end_if_done()

    def snapshot(self) -> DriveStatus:
        status = self._in_flight.status
        return replace(
            status,
            queued=len(self._in_flight),
            pack=max(1, self._batcher.pack),
            retries=dict(status.retries),
            limits=self._in_flight.slot_model.limits,
        )

    async def aclose(self) -> None:
        """End everything here; idempotent. :meth:`deliveries` does it when it ends."""
        if self._closed:
            return
        self._closed = True
        self._enqueuer.close()
        try:
            await cancel_and_wait(self._tasks)
            await self._enqueuer.aclose()
            with contextlib.suppress(*REDIS_ERRORS, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._ledger.end()
                    await self._acknowledger.trim()
                    if not len(self._in_flight) or not self._keep:
                        await self._ledger.clear(keep=self._keep)
                    elif self._stop.at_once:
                        await self._ledger.withdraw_all()  # also what the enqueuer was recording as the stop withdrew
        finally:
            await close_redis_client(self._client)

    async def _feed(self, units: Units, total: int | None) -> None:
        await self._intake.feed(units, total)
        self._stop.end_if_done()

    async def _follow_limits(self) -> None:
        """Use the limits in force, which an operator may change during the run, and the workers' places."""
        while True:
            await asyncio.sleep(until_tick(_JOINING_S if self._in_flight.slot_model.places is None else _LIMITS_S))
            await self._read_limits()
            self._intake.plan()

    async def _read_limits(self) -> None:
        with contextlib.suppress(*REDIS_ERRORS):
            if (
                limits := await reraise_cancellation(lambda: live_limits(self._client, self._ledger.fleet))
            ) is not None:
                self._in_flight.slot_model.limits = self._sizer.limits = limits
            places = await reraise_cancellation(lambda: fleet_places(self._client, self._ledger.fleet))
            self._in_flight.slot_model.places = places or self._starting_places

    async def _follow_weights(self) -> None:
        """Keep enough enqueued for this run's share beside the others that are under way, and write its entry."""
        while True:
            changed = await self._weigh()
            self._intake.plan()
            if not changed:  # else the entry says so at once
                await asyncio.sleep(until_tick(self.weigh_s))

    async def _weigh(self) -> bool:
        """Returns whether something else is asked of the run than before."""
        changed, status = False, self._in_flight.status
        with contextlib.suppress(*REDIS_ERRORS):
            weights, changed = await reraise_cancellation(
                lambda: self._ledger.weigh(self._weight, self._heartbeat, held=status.held)
            )
            self._in_flight.slot_model.weights = weights
        return changed

    async def _unless_closed(self, call: Coroutine[Any, Any, None]) -> None:
        """Await what another task asks of the driver. :meth:`aclose` ends it: a client that is used after it was closed
        opens a connection that nobody closes."""
        if self._closed:
            call.close()
            return
        calling = asyncio.create_task(call)
        self._tasks.add(calling)
        try:
            await asyncio.wait([calling])
        finally:
            await cancel_and_wait([calling])
            self._tasks.discard(calling)
        if not calling.cancelled():
            calling.result()

    async def _guarded(self, part: Awaitable[None]) -> None:
        """A fault in any part ends the deliveries and is raised there."""
        try:
            await part
        except Exception as error:
            self._fault = self._fault or error
            self._deliveries.end()
