"""Drives a run: units in, requests through Celery's queues to the workers, outcomes back, each delivered once.

Three tasks share the driver's state on one loop. The *feeder* reads units into the planner, as many as it can choose
among; the *collector* reads outcomes from the run's stream, and every one that comes makes room for further requests;
the *sweeper* looks after shards that are found nowhere. What is enqueued is bounded: what fills the slots, and what
keeps them filled for a moment (:mod:`brimful.run.pace`), so a million lines take no more memory than a thousand.

An outcome leaves Redis only after its consumer has come back for the next batch, that is: when it is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

from celery import Celery

from brimful.aio import end
from brimful.celery import app_for
from brimful.errors import FleetError, RequestTooLarge
from brimful.names import Workload
from brimful.packing import Packed, even_chunks
from brimful.profile import Profile
from brimful.redis_url import redis_client
from brimful.run.insist import AWAY, insist, refused_lately
from brimful.run.ledger import Ledger, Result
from brimful.run.live import live_limits
from brimful.run.outcomes import STOPS, Outcomes
from brimful.run.outstanding import SHARD_BYTES, Outstanding, Shard
from brimful.run.pace import Limits, Pace
from brimful.run.plan import Planner
from brimful.run.publish import Publisher
from brimful.run.recover import collect
from brimful.run.sweep import Sweep
from brimful.run.threaded import threaded
from brimful.run.tune import Tuner
from brimful.run.units import Delivered, DriveStatus, Failed, PackOption, Recovered, Unit

log = logging.getLogger(__name__)

_BLOCK_MS = 1000
_CHOICES_AT_ONCE = 4096
"""About so many rollouts are read from Redis at a time."""
_BYTES_OUTSTANDING = 96 * 1024 * 1024
_STALLED_S = 0.05
"""An input that gives nothing for so long is not waited for: what is there is sent."""
_IDLE_S = 1.0
"""Nor one that trickles while slots are idle."""
_TOUCH_S = 3600.0
_DRAIN_S = 15.0
"""Redis may take so long to hear that the run stops; what is on the wire may then take what it needs."""
_AT_ONCE_S = 1.0
_LIMITS_S = 5.0
_SHARDS_AT_ONCE = 64


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
        self._run = run
        self._profile = profile
        self._sweep_s = sweep_s
        self._keep = keep
        self._clock = clock
        self._client = redis_client(redis_url)
        self._ledger = Ledger(self._client, run)
        self._publisher = Publisher(app or app_for(redis_url))
        limits = Limits(profile.slots, profile.starts, profile.window_s)
        self._auto = pack == "auto" and profile.max_prompts != 1
        self._tuner = Tuner(limits, timeout_s)
        self._pace = Pace(limits, adapting=self._auto)
        self._planner = Planner(profile, pack, self._tuner, self._pace)
        self._status = DriveStatus()
        self._outcomes = Outcomes(self._planner, self._tuner, self._status)
        self._out = Outstanding(self._pace, self._tuner, Workload(workload) if workload is not None else None, clock)
        self._sweep = Sweep(self._client, self._ledger, self._out, patience_s=sweep_s, clock=clock)
        self._send = asyncio.Event()
        self._batches: asyncio.Queue[tuple[list[Delivered | Failed], str]] = asyncio.Queue()
        self._taken = asyncio.Event()
        self._over = asyncio.Event()
        self._fed = False
        self._roomy = asyncio.Event()
        self._reading_since: float | None = None
        self._planned_at = clock()
        self._left: int | None = None
        self._last = "0"
        self._to_forget = "0"
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
        self._last = self._to_forget = left.last
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
        self._left = total
        await self._acknowledge()
        self._planned_at = self._clock()
        parts = (self._feed(units), self._sender(), self._collect(), self._look_after(), self._follow_limits())
        self._tasks += [asyncio.create_task(self._guarded(part)) for part in parts]
        try:
            while (told := await self._next_batch()) is not None:
                batch, entry = told
                if batch:
                    yield batch
                self._to_forget = entry
                self._taken.set()
                await self._acknowledge()
            if self._fault is not None:
                raise self._fault
        finally:
            await self.aclose()

    async def stop(self, *, drain: bool) -> None:
        """``drain``: nothing new is sent, what is on the wire is awaited and delivered. Else: withdrawn at once.

        :meth:`deliveries` ends by itself then. May be called again, to stop at once while draining.
        """
        if self._closed:
            return
        self._begin_stop("drain" if drain else "stop")
        if drain and self._over.is_set():
            return  # nothing is outstanding
        if drain:
            try:
                async with asyncio.timeout(_DRAIN_S):
                    await self._withdraw_unbegun()
            except (TimeoutError, FleetError) as error:
                why = str(refused_lately() or error) or "Redis does not answer"
                log.warning("brimful: stopped without waiting for what is on the wire: %s", why)
                self._over.set()
        else:
            self._over.set()
            with contextlib.suppress(*AWAY, TimeoutError):
                async with asyncio.timeout(_AT_ONCE_S):
                    await self._ledger.withdraw(list(self._out.shards))

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
        await end(self._tasks)
        await self._publisher.aclose()
        with contextlib.suppress(*AWAY, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._acknowledge()
                if not len(self._out) or not self._keep:
                    await self._ledger.clear()
        await self._client.aclose()

    # -- units in ----------------------------------------------------------------------------------------------------

    async def _feed(self, units: AsyncIterator[Unit] | Iterator[Unit]) -> None:
        source = units if isinstance(units, AsyncIterator) else threaded(units)
        while self._status.stopping is None:
            self._reading_since = self._clock()
            unit = await anext(source, None)
            self._reading_since = None
            if unit is None or self._status.stopping is not None:
                break
            self._status.lines_taken += 1
            if self._left is not None:
                self._left = max(0, self._left - 1)
            try:
                self._planner.add(unit)
            except RequestTooLarge as error:
                self._batches.put_nowait(([self._outcomes.refused(unit, str(error))], self._to_forget))
            while self._planner.full and self._status.stopping is None:
                self._plan()
                if self._planner.full:
                    self._roomy.clear()
                    await self._roomy.wait()
            if self._status.lines_taken % 64 == 0:
                await asyncio.sleep(0)  # a file is always ready: let outcomes in between
        self._fed = True
        self._left = 0
        self._plan()
        self._end_if_done()

    def _plan(self) -> None:
        """As many requests as there is room for."""
        if self._status.stopping is not None:
            return
        now = self._clock()
        stalled = self._reading_since is not None and now - self._reading_since > _STALLED_S
        if len(self._pace) < self._pace.limits.slots and now - self._planned_at > _IDLE_S:
            stalled = True
        made: list[Packed] = []
        room, size = self._room(), self._out.bytes
        while len(made) < room and size < _BYTES_OUTSTANDING:
            chosen = self._planner.next(now, self._left, self._fed or stalled)
            if chosen is None:
                break
            packed = Packed(uuid.uuid4().hex[:16], *chosen)
            made.append(packed)
            size += packed.size
            # At once, since the end of a run is planned by what is under way.
            self._out.announce(packed)
        if made:
            self._planned_at = now
            self._out.add(made)
            self._send.set()
        if not self._planner.full:
            self._roomy.set()

    def _room(self) -> int:
        last = self._out.last
        seconds = None
        if last is not None and not (self._auto and not self._tuner.known(last.shape)):
            seconds = self._tuner.seconds(last.shape, len(last.parts))
        return self._pace.room(seconds, self._clock())

    async def _sender(self) -> None:
        """First the ledger, then the queue: what is in a queue is always known to the ledger."""
        unsent = self._out.unsent
        while True:
            await self._send.wait()
            self._send.clear()
            while unsent:
                shards: list[Shard] = []
                size = 0
                while unsent and len(shards) < _SHARDS_AT_ONCE and size < 4 * SHARD_BYTES:
                    shards.append(unsent.popleft())
                    size += shards[-1].size
                await self._enqueue(shards)

    async def _enqueue(self, shards: list[Shard]) -> None:
        rows = {
            shard.id: {id: packed.manifest for id, packed in shard.requests.items()}
            for shard in shards
            if shard.requests
        }
        if rows:
            await insist(lambda: self._ledger.record(rows))
        if dropped := [id for id in rows if id not in self._out.shards]:  # a stop came between
            await insist(lambda: self._ledger.withdraw(dropped))
        await self._publisher.send([self._out.message(self._run, shard) for shard in shards if shard.requests])
        for shard in shards:
            shard.enqueued_at = self._clock()

    # -- outcomes back -----------------------------------------------------------------------------------------------

    async def _collect(self) -> None:
        while True:
            while self._batches.qsize() >= 2:  # its consumer is slow: what is not read stays in Redis
                self._taken.clear()
                await self._taken.wait()
            self._plan()
            self._end_if_done()
            count = max(8, min(256, _CHOICES_AT_ONCE // max(1, self._planner.pack)))
            # A stalled input is to be noticed soon, though no outcome comes.
            block_ms = 100 if not self._fed and self._room() else _BLOCK_MS
            results = await insist(lambda: self._ledger.results(self._last, count, block_ms))  # noqa: B023
            if results:
                self._last = results[-1].entry
                self._take(results)

    def _take(self, results: list[Result]) -> None:
        batch: list[Delivered | Failed] = []
        for result in results:
            packed = self._out.end(result.id)
            if packed is None:
                continue  # it came before, or it was withdrawn and is asked anew
            known = result.id not in self._out.foreign
            records = self._outcomes.records(packed, result.outcome, known_lines=known)
            batch += records
            failure = result.outcome.failure
            if records and failure is not None and failure.cause in STOPS and self._status.stopping is None:
                self._begin_stop(failure.cause.value)
                self._tasks.append(asyncio.create_task(self._guarded(self._withdraw_unbegun())))
        self._plan()
        self._batches.put_nowait((batch, results[-1].entry))

    async def _next_batch(self) -> tuple[list[Delivered | Failed], str] | None:
        """None: it is over, and all is delivered."""
        if self._batches.empty():
            getting, over = asyncio.create_task(self._batches.get()), asyncio.create_task(self._over.wait())
            try:
                await asyncio.wait((getting, over), return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    return getting.result()
            finally:
                getting.cancel()
                over.cancel()
        return None if self._batches.empty() else self._batches.get_nowait()

    async def _acknowledge(self) -> None:
        """What was taken is written down. Should Redis be away, the next one does it."""
        if self._to_forget != "0":
            with contextlib.suppress(*AWAY):
                await self._ledger.forget(self._to_forget)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _end_if_done(self) -> None:
        stopping = self._status.stopping is not None
        if not len(self._out) and (stopping or (self._fed and not self._planner.held)):
            self._over.set()

    def _begin_stop(self, why: str) -> None:
        if self._status.stopping in (None, "drain"):
            self._status.stopping = why
        self._roomy.set()
        self._out.drop_unsent()
        self._end_if_done()

    async def _withdraw_unbegun(self) -> None:
        """Shards that no worker has begun; workers hold back what of theirs is not on the wire."""
        await insist(lambda: self._ledger.drain(True))
        seen = await insist(lambda: self._ledger.look(list(self._out.shards)))
        await self._withdraw([id for id, (_, claimed, _) in seen.items() if not claimed])

    async def _withdraw(self, shards: list[str]) -> None:
        if shards:
            await insist(lambda: self._ledger.withdraw(shards))
            for id in shards:
                if (shard := self._out.shards.get(id)) is not None:
                    self._out.drop(shard)
        self._end_if_done()

    # -- around it all -----------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        touched = self._clock()
        while True:
            await asyncio.sleep(self._sweep_s / 5)
            if lost := await self._sweep.lost():
                await self._find_or_enqueue(lost)
            if self._auto and self._status.stopping is None:
                await self._withdraw_doomed()
            if self._clock() - touched > _TOUCH_S:
                touched = self._clock()
                await insist(lambda: self._ledger.touch(list(self._out.shards)))

    async def _find_or_enqueue(self, lost: list[Shard]) -> None:
        """Their outcomes may be in the stream though, if Redis went back in time; if not, they are asked again."""
        entry = "0"
        while results := await insist(lambda: self._ledger.results(entry, 64, None)):  # noqa: B023
            entry = results[-1].entry
            if missed := [result for result in results if result.id in self._out]:
                self._take(missed)
        again = [shard for shard in lost if shard.requests and shard.id in self._out.shards]
        if self._status.stopping is not None:
            await self._withdraw([shard.id for shard in again])
        elif again:
            log.info("%d shards were found nowhere; enqueued again", len(again))
            self._status.redelivered += len(again)
            await self._enqueue(again)

    async def _withdraw_doomed(self) -> None:
        """Packs sent before anything was known, and now known to run into their timeout: asked anew, smaller."""
        doomed = [
            shard
            for shard in self._out.shards.values()
            if any(self._tuner.hopeless(packed.shape, len(packed.parts)) for packed in shard.requests.values())
        ]
        if not doomed:
            return
        log.info("%d shards would run into their timeout; asked anew in smaller requests", len(doomed))
        await insist(lambda: self._ledger.withdraw([shard.id for shard in doomed]))
        for shard in doomed:
            for packed in list(shard.requests.values()):
                if self._out.end(packed.id) is not None:
                    most = self._tuner.most_prompts(packed.shape)
                    self._planner.put_back(packed.shape, even_chunks(packed.parts, most))
        self._plan()

    async def _follow_limits(self) -> None:
        """The limits in force, which an operator may change while it runs."""
        while True:
            with contextlib.suppress(*AWAY):
                if (limits := await live_limits(self._client)) is not None:
                    self._pace.limits = self._tuner.limits = limits
            await asyncio.sleep(_LIMITS_S)

    async def _guarded(self, work: Awaitable[None]) -> None:
        """A fault in any part ends the deliveries and is raised there."""
        try:
            await work
        except Exception as error:
            self._fault = self._fault or error
            self._over.set()
