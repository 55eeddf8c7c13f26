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
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from celery import Celery
from redis import RedisError

from brimful.aio import end
from brimful.celery import app_for
from brimful.errors import RequestTooLarge
from brimful.names import Workload
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing import Packed, deal, fail, narrow, unpack
from brimful.profile import Profile
from brimful.redis_url import redis_client
from brimful.run import queued
from brimful.run.ledger import Ledger, Result
from brimful.run.live import live_limits
from brimful.run.pace import Limits, Pace
from brimful.run.plan import Planner
from brimful.run.publish import Publisher, ShardMessage
from brimful.run.rebuild import rebuilt
from brimful.run.threaded import threaded
from brimful.run.tune import Tuner
from brimful.run.units import (
    Delivered,
    DriveStatus,
    Failed,
    Manifest,
    PackOption,
    Recovered,
    Unit,
    manifest_message,
)

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_AWAY = (RedisError, OSError)
_PAUSE_S = 0.5
_BLOCK_MS = 1000
_CHOICES_AT_ONCE = 4096
"""About so many rollouts are read from Redis at a time."""
_SHARD_BYTES = 768 * 1024
_SHARDS = 16
"""Into about so many shards what is outstanding is divided, so that every worker gets its share; at least one request
each, _SHARD_MOST at most."""
_SHARD_MOST = 512
_SHARDS_A_SECOND = 40
_BYTES_OUTSTANDING = 96 * 1024 * 1024
_STALLED_S = 0.05
"""An input that gives nothing for so long is not waited for: what is there is sent."""
_IDLE_S = 1.0
"""Nor one that trickles while slots are idle."""
_TOUCH_S = 3600.0


@dataclass(eq=False)
class _Shard:
    id: str
    queue: str
    requests: dict[str, Packed] = field(default_factory=dict)
    enqueued_at: float = 0.0
    missed: int = 0
    """Sweeps in a row in which it was found nowhere."""


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
        withdrawn."""
        self._run = run
        self._profile = profile
        self._workload = Workload(workload) if workload is not None else None
        self._timeout_s = timeout_s
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
        self._shards: dict[str, _Shard] = {}
        self._where: dict[str, _Shard] = {}
        """Request id → its shard, for every request whose outcome has not come."""
        self._foreign: set[str] = set()
        """Requests of an earlier submitter: their lines' own requests are not known here."""
        self._dropped: dict[str, Packed] = {}
        """Requests withdrawn by a stop: an outcome that comes all the same is welcome, but not waited for."""
        self._bytes = 0
        self._unsent: deque[_Shard] = deque()
        self._send = asyncio.Event()
        self._batches: asyncio.Queue[tuple[list[Delivered | Failed], str | None]] = asyncio.Queue()
        self._taken = asyncio.Event()
        self._over = asyncio.Event()
        self._fed = False
        self._wanted = asyncio.Event()
        self._reading_since: float | None = None
        self._planned_at = clock()
        self._left: int | None = None
        self._last = "0"
        self._to_forget: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._fault: BaseException | None = None
        self._closed = False

    # -- for its caller ----------------------------------------------------------------------------------------------

    async def recover(self) -> Recovered:
        """What an earlier submitter of this run left: outcomes nobody collected, and requests still under way.

        The caller writes down ``delivered`` before it asks for :meth:`deliveries`; it drops what it has already, since
        the earlier one may have died between writing and acknowledging. Failures left behind count as not done.
        """
        await self._insist(lambda: self._ledger.drain(False))
        recorded = await self._insist(self._ledger.outstanding)
        open_shards = {shard: rows for shard, rows in recorded.items() if rows}
        messages = await self._insist(lambda: queued.find(self._client, open_shards)) if open_shards else {}
        delivered: list[Delivered] = []
        ended: set[str] = set()
        while results := await self._insist(lambda: self._ledger.results(self._last, 64, None)):
            for result in results:
                self._last = self._to_forget = result.entry
                if result.id in ended:
                    continue
                ended.add(result.id)
                if result.outcome.ok:
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        delivered += deal(result.manifest, result.outcome)
        for shard, rows in open_shards.items():
            self._adopt(shard, {id: rows[id] for id in rows if id not in ended}, messages.get(shard, []))
        if forgotten := [shard for shard in recorded if shard not in self._shards]:
            await self._insist(lambda: self._ledger.withdraw(forgotten))
        outstanding = frozenset(
            (piece.line, piece.prompt_index, choice)
            for shard in self._shards.values()
            for packed in shard.requests.values()
            for piece in packed.manifest
            for choice in piece.choices
        )
        return Recovered(delivered, outstanding)

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
        self._tasks = [
            asyncio.create_task(self._guarded(work))
            for work in (self._feed(units), self._sender(), self._collect(), self._sweep(), self._follow_limits())
        ]
        try:
            while True:
                batch, entry = await self._next_batch()
                if batch:
                    yield batch
                if entry is None:
                    break
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
        if drain:
            await self._withdraw_unbegun()
        else:
            self._over.set()
            with contextlib.suppress(*_AWAY):
                await self._ledger.withdraw(list(self._shards))

    def snapshot(self) -> DriveStatus:
        status = self._status
        return replace(
            status,
            queued=len(self._where),
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
        with contextlib.suppress(*_AWAY, TimeoutError):
            async with asyncio.timeout(2.0):
                if self._to_forget is not None:
                    await self._ledger.forget(self._to_forget)
                if not self._where or not self._keep:
                    await self._ledger.clear()
        await self._client.aclose()

    # -- reading and planning ----------------------------------------------------------------------------------------

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
                self._refuse(unit, str(error))
            while self._planner.full and self._status.stopping is None:
                self._plan()
                if self._planner.full:
                    self._wanted.clear()
                    await self._wanted.wait()
            if self._status.lines_taken % 64 == 0:
                await asyncio.sleep(0)  # a file is always ready: let outcomes in between
        self._fed = True
        self._left = 0
        self._plan()
        self._end_if_done()

    def _plan(self) -> None:
        """Enqueue as many requests as there is room for."""
        if self._status.stopping is not None:
            return
        now = self._clock()
        stalled = self._reading_since is not None and now - self._reading_since > _STALLED_S
        if len(self._pace) < self._pace.limits.slots and now - self._planned_at > _IDLE_S:
            stalled = True
        made: list[Packed] = []
        room = self._pace.room(self._typical_s(), now)
        while room > len(made) and self._bytes < _BYTES_OUTSTANDING:
            chosen = self._planner.next(now, self._left, self._fed or stalled)
            if chosen is None:
                break
            shape, parts = chosen
            packed = Packed(uuid.uuid4().hex[:16], shape, parts)
            made.append(packed)
            self._bytes += packed.size
            self._pace.enqueued(packed.id, partial(self._seconds, packed), now)
        if made:
            self._planned_at = now
            self._shard(made)
        if not self._planner.full:
            self._wanted.set()

    def _seconds(self, packed: Packed) -> float:
        return self._tuner.seconds(packed.shape, len(packed.parts)) or 0.0

    def _typical_s(self) -> float | None:
        """Predicted on the wire for what is enqueued at present."""
        last = next(reversed(self._where.values()), None)
        if last is None or not last.requests:
            return None
        packed = next(iter(last.requests.values()))
        if self._auto and not self._tuner.known(packed.shape):
            return None
        return self._tuner.seconds(packed.shape, len(packed.parts))

    def _shard(self, made: list[Packed]) -> None:
        limit = max(self._pace.limits.slots // _SHARDS, int(self._pace.rate(self._clock()) / _SHARDS_A_SECOND), 1)
        limit = min(limit, _SHARD_MOST)
        current: dict[str, tuple[_Shard, int]] = {}
        for packed in made:
            queue = (self._workload or packed.shape.workload).value
            shard, size = current.get(queue, (None, 0))
            if shard is None or len(shard.requests) >= limit or size + packed.size > _SHARD_BYTES:
                shard, size = _Shard(uuid.uuid4().hex, queue), 0
                self._shards[shard.id] = shard
                self._unsent.append(shard)
            shard.requests[packed.id] = packed
            self._where[packed.id] = shard
            current[queue] = (shard, size + packed.size)
        self._send.set()

    async def _sender(self) -> None:
        """First the ledger, then the queue: what is in a queue is always known to the ledger."""
        while True:
            await self._send.wait()
            self._send.clear()
            while self._unsent:
                shards: list[_Shard] = []
                size = 0
                while self._unsent and len(shards) < 64 and size < 4 * _SHARD_BYTES:
                    shard = self._unsent.popleft()
                    if shard.id in self._shards:
                        shards.append(shard)
                        size += sum(packed.size for packed in shard.requests.values())
                if shards:
                    await self._enqueue(shards)

    async def _enqueue(self, shards: list[_Shard]) -> None:
        rows = {
            shard.id: {id: packed.manifest for id, packed in shard.requests.items()}
            for shard in shards
            if shard.requests
        }
        await self._insist(lambda: self._ledger.record(rows))
        if self._status.stopping is not None and (dropped := [id for id in rows if id not in self._shards]):
            await self._insist(lambda: self._ledger.withdraw(dropped))
            shards = [shard for shard in shards if shard.id in self._shards]
        await self._publisher.send([self._message(shard) for shard in shards if shard.requests])
        for shard in shards:
            shard.enqueued_at = self._clock()

    def _message(self, shard: _Shard) -> ShardMessage:
        return ShardMessage(
            self._run,
            shard.id,
            shard.queue,
            [
                {"id": id, "units": manifest_message(packed.manifest), "request": self._fields(packed)}
                for id, packed in shard.requests.items()
            ],
        )

    def _fields(self, packed: Packed) -> dict[str, Any]:
        fields = packed.request.as_message()
        if self._workload is not None:
            fields["workload"] = self._workload.value
        return fields

    # -- outcomes ----------------------------------------------------------------------------------------------------

    async def _collect(self) -> None:
        while True:
            while self._batches.qsize() >= 2:  # its consumer is slow: what is not read stays in Redis
                self._taken.clear()
                await self._taken.wait()
            self._plan()
            self._end_if_done()
            count = max(8, min(256, _CHOICES_AT_ONCE // max(1, self._planner.pack)))
            results = await self._insist(lambda: self._ledger.results(self._last, count, self._patience_ms()))  # noqa: B023
            if results:
                self._take(results)

    def _patience_ms(self) -> int:
        """A stalled input is noticed soon, though no outcome comes."""
        return 100 if not self._fed and self._pace.room(self._typical_s(), self._clock()) else _BLOCK_MS

    def _take(self, results: list[Result]) -> None:
        batch: list[Delivered | Failed] = []
        for result in results:
            self._last = result.entry
            batch += self._outcome(result.id, result.outcome)
        self._plan()
        self._batches.put_nowait((batch, self._last))

    def _outcome(self, id: str, outcome: Outcome) -> list[Delivered | Failed]:
        packed = self._forget(id) or self._dropped.pop(id, None)
        if packed is None:
            return []  # it came before, or it was withdrawn and is asked anew
        self._count(packed, outcome)
        if outcome.failure is None:
            try:
                delivered = unpack(packed, outcome)
            except (ValueError, KeyError, TypeError) as error:
                failure = Failure(Cause.BAD_ANSWER, f"the outcome does not fit its request: {error}")
                outcome = replace(outcome, completion=None, failure=failure)
            else:
                self._learn(packed, outcome)
                self._status.rollouts += sum(len(item.rollouts) for item in delivered)
                return list(delivered)
        return self._failed(packed, outcome, outcome.failure or Failure(Cause.BAD_ANSWER, ""))

    def _failed(self, packed: Packed, outcome: Outcome, failure: Failure) -> list[Delivered | Failed]:
        stopping = self._status.stopping
        if failure.cause is Cause.CANCELLED:
            if stopping is None:
                self._planner.put_back(packed.shape, [packed.parts])
            return []
        if failure.cause is Cause.TIMEOUT and len(packed.parts) > 1:
            self._tuner.latency(packed.shape.model).timed_out(packed.shape.max_tokens, packed.choices)
        smaller = narrow(packed, failure)
        if smaller:
            if failure.cause is Cause.BUDGET:
                self._tuner.most = max(1, len(packed.parts) // 2)
            if stopping is None:
                self._planner.put_back(packed.shape, smaller)
            return []  # nobody knows which of them is to blame, so none of them has failed
        if failure.cause in (Cause.KEY_REFUSED, Cause.BUDGET) and stopping is None:
            self._begin_stop(failure.cause.value)
            self._tasks.append(asyncio.create_task(self._guarded(self._withdraw_unbegun())))
        records = fail(packed, outcome)
        if outcome.id in self._foreign:
            records = [replace(record, request=None) for record in records]
        self._status.failures += len(records)
        return list(records)

    def _forget(self, id: str) -> Packed | None:
        shard = self._where.pop(id, None)
        if shard is None:
            return None
        packed = shard.requests.pop(id)
        if not shard.requests:
            self._shards.pop(shard.id, None)
        self._bytes -= packed.size
        self._pace.ended(id, self._clock())
        return packed

    def _count(self, packed: Packed, outcome: Outcome) -> None:
        status = self._status
        status.requests += 1
        status.packed += packed.lines > 1
        status.attempts += outcome.attempts
        status.rate_limited += outcome.rate_limited
        for cause, count in outcome.retries.items():
            status.retries[cause] = status.retries.get(cause, 0) + count
        usage = (outcome.completion or {}).get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("total_tokens"), int):
            status.tokens += usage["total_tokens"]

    def _learn(self, packed: Packed, outcome: Outcome) -> None:
        latency = self._tuner.latency(packed.shape.model)
        if outcome.attempts == 1 and outcome.provider_s > 0:
            latency.add(packed.shape.max_tokens, packed.choices, outcome.provider_s)
        if outcome.retries.get(Cause.TIMEOUT) and len(packed.parts) > 1:
            latency.timed_out(packed.shape.max_tokens, packed.choices)

    def _refuse(self, unit: Unit, message: str) -> None:
        wanted = unit.wanted or tuple(
            (prompt, choice) for prompt in range(len(unit.request.prompts)) for choice in range(unit.request.n)
        )
        failure = Failure(Cause.BAD_REQUEST, message, permanent=True)
        record = Failed(unit.line, unit.id, unit.request, wanted, failure, Outcome(unit.id, failure=failure))
        self._status.failures += 1
        self._batches.put_nowait(([record], self._to_forget or "0-0"))

    async def _next_batch(self) -> tuple[list[Delivered | Failed], str | None]:
        if self._batches.empty():
            waiting = [asyncio.ensure_future(self._batches.get()), asyncio.ensure_future(self._over.wait())]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
            if waiting[0].done() and not waiting[0].cancelled():
                return waiting[0].result()  # type: ignore[return-value]
        return self._batches.get_nowait() if not self._batches.empty() else ([], None)

    async def _acknowledge(self) -> None:
        """What was taken is written down. Should Redis be away, the next one does it."""
        if self._to_forget is not None and self._to_forget != "0-0":
            with contextlib.suppress(*_AWAY):
                await self._ledger.forget(self._to_forget)

    def _end_if_done(self) -> None:
        read = self._fed or self._status.stopping is not None
        held = self._planner.held and self._status.stopping is None
        if read and not held and not self._where:
            self._over.set()

    # -- stopping ----------------------------------------------------------------------------------------------------

    def _begin_stop(self, why: str) -> None:
        self._status.stopping = why if self._status.stopping in (None, "drain") else self._status.stopping
        self._wanted.set()
        while self._unsent:
            self._drop(self._unsent.pop())
        self._end_if_done()

    def _drop(self, shard: _Shard) -> None:
        for id in list(shard.requests):
            if (packed := self._forget(id)) is not None:
                self._dropped[id] = packed
        self._shards.pop(shard.id, None)

    async def _withdraw_unbegun(self) -> None:
        """Shards that no worker has begun; workers hold back what of theirs is not on the wire."""
        await self._insist(lambda: self._ledger.drain(True))
        seen = await self._insist(lambda: self._ledger.look(list(self._shards)))
        unbegun = [shard for shard, (_, claimed, _) in seen.items() if not claimed]
        if unbegun:
            await self._insist(lambda: self._ledger.withdraw(unbegun))
            # One that began at this very moment finds its shard gone; what it had sampled stays in the stream.
            for id in unbegun:
                if (shard := self._shards.get(id)) is not None:
                    self._drop(shard)
        self._end_if_done()

    # -- what is found nowhere ---------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        touched = self._clock()
        while True:
            await asyncio.sleep(self._sweep_s / 5)
            now = self._clock()
            old = [shard for shard in self._shards.values() if 0 < shard.enqueued_at < now - self._sweep_s / 5]
            if old:
                await self._look_after(old, now)
            if now - touched > _TOUCH_S:
                touched = now
                await self._insist(lambda: self._ledger.touch(list(self._shards)))

    async def _look_after(self, old: list[_Shard], now: float) -> None:
        seen = await self._insist(lambda: self._ledger.look([shard.id for shard in old]))
        suspect: list[_Shard] = []
        for shard in old:
            recorded, claimed, begun = seen[shard.id]
            if recorded and claimed:
                shard.missed = 0
                continue
            if recorded and not begun and now - shard.enqueued_at < self._sweep_s:
                continue  # still in its queue, no doubt
            suspect.append(shard)
        if not suspect:
            return
        # Begun, and its worker's claim ran out: its message comes again, but late. Not begun, but queued: all is well.
        unbegun = [shard.id for shard in suspect if not seen[shard.id][2] and seen[shard.id][0]]
        messages = await self._insist(lambda: queued.find(self._client, unbegun)) if unbegun else {}
        lost: list[_Shard] = []
        for shard in suspect:
            if shard.id in messages:
                shard.missed = 0
                continue
            shard.missed += 1
            if shard.missed >= 2:
                lost.append(shard)
        if lost:
            await self._enqueue_again(lost)

    async def _enqueue_again(self, lost: list[_Shard]) -> None:
        """Their outcomes may be in the stream though, if Redis went back in time; if not, they are asked again."""
        entry = "0"
        missed: list[Result] = []
        while results := await self._insist(lambda: self._ledger.results(entry, 64, None)):  # noqa: B023
            missed += [result for result in results if result.id in self._where]
            entry = results[-1].entry
        known = self._last
        if missed:
            self._take(missed)
            self._last = max(known, self._last, key=_order)
        again = [shard for shard in lost if shard.requests and shard.id in self._shards]
        if not again:
            return
        if self._status.stopping is not None:
            await self._insist(lambda: self._ledger.withdraw([shard.id for shard in again]))
            for shard in again:
                self._drop(shard)
            self._end_if_done()
            return
        log.info("%d shards were found nowhere; enqueued again", len(again))
        self._status.redelivered += len(again)
        for shard in again:
            shard.missed = 0
        await self._enqueue(again)

    def _adopt(self, shard_id: str, rows: dict[str, Manifest], message: list[dict[str, Any]]) -> None:
        """Take over a shard of an earlier submitter, as far as its message tells what it asks."""
        shard = _Shard(shard_id, (self._workload or Workload.BATCH).value, enqueued_at=self._clock())
        for entry in message:
            id = str(entry.get("id"))
            if id in rows and (packed := rebuilt(id, rows[id], entry.get("request"), self._profile)) is not None:
                shard.requests[id] = packed
        if len(shard.requests) < len(rows) or not rows:
            return  # withdrawn as a whole, and planned anew by whoever reads the input
        self._shards[shard.id] = shard
        now = self._clock()
        for id, packed in shard.requests.items():
            self._where[id] = shard
            self._foreign.add(id)
            self._bytes += packed.size
            self._pace.enqueued(id, partial(self._seconds, packed), now)

    # -- around it all -----------------------------------------------------------------------------------------------

    async def _follow_limits(self) -> None:
        """The limits in force, which an operator may change while it runs."""
        while True:
            with contextlib.suppress(*_AWAY):
                if (limits := await live_limits(self._client)) is not None:
                    self._pace.limits = self._tuner.limits = limits
            await asyncio.sleep(5.0)

    async def _insist(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Until Redis answers."""
        warned = False
        while True:
            try:
                return await call()
            except _AWAY as error:
                if not warned:
                    log.warning("Redis does not answer (%s); trying on", type(error).__name__)
                warned = True
                await asyncio.sleep(_PAUSE_S)

    async def _guarded(self, work: Awaitable[None]) -> None:
        """A fault in any part ends the deliveries and is raised there."""
        try:
            await work
        except Exception as error:
            self._fault = self._fault or error
            self._over.set()


def _order(entry: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry.partition("-")
    return int(milliseconds), int(sequence or 0)
