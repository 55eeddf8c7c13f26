"""Runs shards: claims one, samples the requests still wanted of it, stores their outcomes in the run's ledger.

Each request's outcome is stored exactly once, by three means:

- a claim (:mod:`brimful_worker.shards.claims`) makes a second delivery of the same message wait while the first lives;
- a request's outcome is stored and the request removed from the shard's HASH in one step, so that another
  delivery samples only what has no outcome;
- the submitter drops what comes twice all the same, as when a claim was lost to an outage.

While Redis is away, outcomes are kept in memory; nothing that was sampled is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from celery.exceptions import Reject
from redis import RedisError

from brimful.dispatch.ledger import CLAIM_TTL_S, SUSPECT, TTL_S, Keys
from brimful.errors import BadRequest, VersionMismatch
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.units import weight_of
from brimful.request import Request
from brimful.runtime.aio import cancel_and_wait
from brimful.runtime.hiredis_packing import packed
from brimful.schema import MESSAGES, check_schema
from brimful.state.redis_url import close_redis_client, redis_client
from brimful_worker.admission import Flow
from brimful_worker.admission.wire.connection import Connection
from brimful_worker.logs.fields import describe, log_failure
from brimful_worker.shards.claims import Claim, Claims
from brimful_worker.shards.store import Store

log = logging.getLogger(__name__)

_CHECK_S = 1.0
_CLOSE_S = 5.0
"""Outcomes that Redis has not taken by then are lost, and their requests sampled again."""


@dataclass(eq=False)
class _Shard(Claim):
    """A shard in hand: its claim, and its requests' tasks."""

    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    on_wire: set[str] = field(default_factory=set)
    left: int = 1
    """Requests whose outcome is not stored yet; 1 until they are counted."""
    last_put: asyncio.Future[None] | None = None
    """Done when the outcome that was put last is stored, and with it all before."""
    withdrawn: set[str] = field(default_factory=set)
    """Requests that their submitter does not want any more."""
    stopped: str = ""
    """Why the rest is not done here: ``withdrawn``, ``lost`` or ``stopping``."""

    def wire(self, id: str, sent: bool) -> None:
        if sent:
            self.on_wire.add(id)
            return
        self.on_wire.discard(id)
        if self.stopped or self.draining:
            asyncio.get_running_loop().call_soon(self.stop_unsent)

    def stored(self) -> bool:
        """One more outcome is stored. Returns whether the shard ends with it."""
        self.left -= 1
        return self.left == 0

    def stop(self) -> None:
        """The worker stops: requests on the wire end, the rest goes to another worker."""
        self.stopped = self.stopped or "stopping"
        self.stop_unsent()

    def withdraw(self, wanted: set[str]) -> None:
        """End the requests that are neither done nor ``wanted``."""
        for id, task in self.tasks.items():
            if id not in wanted and id not in self.withdrawn and not task.done():
                self.withdrawn.add(id)
                self.left -= 1
                task.cancel()

    def stop_all(self) -> None:
        for task in self.tasks.values():
            task.cancel()

    def stop_unsent(self) -> None:
        for id, task in self.tasks.items():
            if id not in self.on_wire:
                task.cancel()


class ShardRunner:
    """All shards of one worker process. Use it as an async context manager."""

    def __init__(
        self,
        sample: Callable[..., Awaitable[Outcome]],
        redis_url: str,
        worker_name: str,
        stopping: asyncio.Event,
        parse: Callable[[Mapping[str, Any]], Request],
        *,
        expires_s: int = TTL_S,
        claim_ttl_s: float = CLAIM_TTL_S,
        check_s: float = _CHECK_S,
    ) -> None:
        """``sample`` is :meth:`brimful_worker.sampling.sampler.Sampler.sample`; ``parse`` makes a checked request of a
        message's fields, or raises BadRequest. Once ``stopping`` is set, nothing new begins, requests on the wire end,
        and the rest is given back. ``expires_s``: how long outcomes are kept.
        """
        self._sample = sample
        self._redis = packed(redis_client(redis_url))
        self._name = worker_name
        self._stopping = stopping
        self._parse = parse
        self._check_s = min(check_s, claim_ttl_s / 4)
        self._renewing = Connection(redis_url, "brimful-claims")
        self._claims = Claims(self._redis, self._renewing, stopping, claim_ttl_s)
        self._store = Store(self._redis, lambda: sum(shard.left for shard in self._shards), expires_s)
        self._shards: set[_Shard] = set()
        self._looking: dict[_Shard, asyncio.Task[None]] = {}
        self._background: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._background = [
            asyncio.create_task(self._claims.keep(self._running, self._on_state, self._check_s)),
            asyncio.create_task(self._watch_stopping()),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(self._background)
        await cancel_and_wait(self._looking.values())  # only now: a renewal may have begun another one
        await self._store.aclose(_CLOSE_S)
        await self._renewing.dispose()
        await close_redis_client(self._redis)

    async def run(self, run: str, shard: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns ``{"requests": …, "failed": …}`` once every request still wanted has its outcome stored.

        Raises celery's Reject (requeue) if the worker stops first. A cancellation gives the claim up at once.
        """
        mine = _Shard(run, shard, Keys(run), f"{self._name}:{uuid.uuid4().hex}")
        try:
            if not await self._claims.take(mine):
                mine.left = 0
                return {"requests": 0, "failed": 0}
            self._shards.add(mine)
            return await self._run_claimed(mine, requests)
        finally:
            self._shards.discard(mine)
            mine.stop_all()
            if mine.left:
                await self._claims.give_up(mine, given_back=mine.stopped == "stopping")

    async def _run_claimed(self, shard: _Shard, requests: list[dict[str, Any]]) -> dict[str, Any]:
        wanted = await self._claims.begin(shard)
        entries = [entry for entry in requests if entry["id"] in wanted]
        counts = {"requests": 0, "failed": 0}
        shard.left = len(entries)
        if not entries:
            await self._claims.end_empty(shard)
            return counts
        create_task = asyncio.get_running_loop().create_task
        for entry in entries:
            shard.tasks[entry["id"]] = create_task(self._one(shard, entry, counts))
        if self._stopping.is_set():
            shard.stop()
        elif shard.draining:
            await asyncio.sleep(0)  # each has begun then, and ends as cancelled
            shard.stop_unsent()
        for task in reversed(shard.tasks.values()):  # the last one first: most of the others have ended by then
            if not task.done():
                await asyncio.wait([task])
        if shard.last_put is not None:
            await asyncio.wait([shard.last_put])
        if shard.withdrawn and not shard.left:
            await self._claims.end_empty(shard)
        if shard.left and shard.stopped == "stopping":
            raise Reject("the worker stops", requeue=True)
        return counts

    async def _one(self, shard: _Shard, entry: dict[str, Any], counts: dict[str, int]) -> None:
        id = entry["id"]
        describe(request_id=id, task_id=shard.shard, run=shard.run, units=entry.get("units"))
        try:
            check_schema("the request's message", entry.get("schema"), MESSAGES, "start workers of its release")
            request = self._parse({**entry["request"], "id": id})
            outcome = await self._sample(
                request,
                scope=shard.run,
                on_wire=partial(shard.wire, id),
                flow=Flow(shard.run, weight_of(entry)),
                divided=entry.get(SUSPECT) is True,
                divisible=len(entry["units"]) > 1,
            )
        except VersionMismatch as error:
            outcome = Outcome(id, failure=Failure(Cause.VERSION, str(error)), worker=self._name)
        except BadRequest as error:
            outcome = Outcome(id, failure=Failure(Cause.BAD_REQUEST, str(error), permanent=True))
        except Exception as error:  # of one malformed entry: the shard's other requests go on
            name = type(error).__name__
            log.error("a shard's request failed: %s\n%s", name, "".join(traceback.format_tb(error.__traceback__)))
            outcome = Outcome(
                id, failure=Failure(Cause.INTERNAL, f"brimful's own fault ({name}): see the worker's log")
            )
        except asyncio.CancelledError:
            if not shard.draining:
                raise
            outcome = Outcome(id, failure=Failure(Cause.CANCELLED, "withdrawn before it was sent: its run drains"))
        if id in shard.withdrawn:
            return
        counts["requests"] += 1
        counts["failed"] += not outcome.ok
        if outcome.failure is not None and outcome.failure.cause is not Cause.CANCELLED:
            log_failure(log, outcome, outcome.failure)
        shard.last_put = self._store.put(shard.keys, shard.shard, id, entry["units"], outcome, last=shard.stored)

    # -- what ends a shard early

    async def _watch_stopping(self) -> None:
        await self._stopping.wait()
        for shard in self._shards:
            shard.stop()

    def _running(self) -> list[_Shard]:
        return [shard for shard in self._shards if shard.tasks]

    def _on_state(self, shard: _Shard, state: str, wanted: int) -> None:
        """The renewal of a shard's claim found this; the shard may have ended meanwhile."""
        if shard not in self._shards or shard.left == 0:
            return
        if state in ("lost", "withdrawn"):
            shard.stopped = state
            shard.stop_all()
        elif state == "draining":
            shard.draining = True
            shard.stop_unsent()
        elif wanted < shard.left and not self._looking.get(shard):
            self._looking[shard] = asyncio.create_task(self._end_withdrawn(shard))

    async def _end_withdrawn(self, shard: _Shard) -> None:
        """Its submitter has withdrawn some of the shard's requests."""
        try:
            with contextlib.suppress(RedisError, OSError):
                shard.withdraw(await self._claims.wanted(shard))
        finally:
            del self._looking[shard]
