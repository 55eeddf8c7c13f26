"""The worker's side of a run: claim a shard, sample what is still wanted of it, bring the outcomes to the ledger.

Exactly once rests on three things. A claim (:mod:`brimful_worker.shards.claims`) keeps a second delivery of the same
message
waiting while the first lives. A request's outcome and its removal from the shard's HASH go to Redis in one step, so
that whoever begins the shard again asks only for what has no outcome. And the submitter drops what comes twice all the
same, as when a claim was lost to an outage.

When Redis is away, outcomes are kept here until it is back; nothing that was sampled is thrown away for it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from celery.exceptions import Reject

from brimful.dispatch.ledger import CLAIM_TTL_S, MAX_TRIES, Keys
from brimful.errors import BadRequest
from brimful.names import Mode, Workload
from brimful.outcome import Cause, Failure, Outcome
from brimful.request import Request
from brimful.runtime.aio import cancel_and_wait
from brimful.state.redis_url import close_redis_client, redis_client
from brimful_worker.broker.hiredis_packing import packed
from brimful_worker.shards.claims import Claim, Claims
from brimful_worker.shards.store import Store

_CHECK_S = 1.0


class Samples(Protocol):
    """What a runner needs of the sampler."""

    async def sample(
        self, request: Request, *, scope: str = "", on_wire: Callable[[bool], None] | None = None
    ) -> Outcome:
        """``on_wire`` is told True when an attempt's bytes are sent, False when it failed and another is to follow.
        ``scope`` and the request's id name it to the provider's Jobs. Raises only CancelledError."""


@dataclass(eq=False)
class _Job(Claim):
    """A shard in hand: its claim, and its requests' tasks."""

    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    on_wire: set[str] = field(default_factory=set)
    left: int = 1
    """Requests whose outcome is not stored yet; until they are counted, as good as one."""
    put: asyncio.Future[None] | None = None
    """Done when the outcome that was put last is stored, and with it all before."""
    stopped: str = ""
    """Why the rest is not done here: withdrawn, lost, stopping."""

    def wire(self, id: str, on: bool) -> None:
        if on:
            self.on_wire.add(id)
            return
        self.on_wire.discard(id)
        if self.stopped or self.drained:
            asyncio.get_running_loop().call_soon(self.stop_unsent)

    def stored(self) -> bool:
        """Another outcome is; whether the shard ends with it."""
        self.left -= 1
        return self.left == 0

    def stop_all(self) -> None:
        for task in self.tasks.values():
            task.cancel()

    def stop_unsent(self) -> None:
        for id, task in self.tasks.items():
            if id not in self.on_wire:
                task.cancel()


class ShardRunner:
    """All shards of one worker process. ``async with``, or ``start``/``aclose``."""

    def __init__(
        self,
        sampler: Samples,
        redis_url: str,
        worker_name: str,
        stopping: asyncio.Event,
        *,
        parse: Callable[[Mapping[str, Any]], Request] | None = None,
        claim_ttl_s: float = CLAIM_TTL_S,
        check_s: float = _CHECK_S,
    ) -> None:
        """``stopping``: begin nothing new, finish what is on the wire, give the rest back.

        ``parse`` makes a checked request of a message's fields (raises BadRequest); default: taken as they are.
        """
        self._sampler = sampler
        self._redis = packed(redis_client(redis_url))
        self._name = worker_name
        self._stopping = stopping
        self._parse = parse or _as_it_is
        self._check_s = check_s
        self._claims = Claims(self._redis, stopping, claim_ttl_s)
        self._store = Store(self._redis, lambda: sum(job.left for job in self._jobs))
        self._jobs: set[_Job] = set()
        self._background: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._background = [
            asyncio.create_task(self._claims.keep(self._running, self._heard, self._check_s)),
            asyncio.create_task(self._watch_stopping()),
        ]
        self._store.start()

    async def aclose(self, grace_s: float = 5.0) -> None:
        """Outcomes that Redis has not taken within ``grace_s`` are lost (their requests are asked again)."""
        await cancel_and_wait(self._background)
        await self._store.aclose(grace_s)
        await close_redis_client(self._redis)

    async def __aenter__(self) -> ShardRunner:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def shards(self) -> int:
        """Shards in hand."""
        return len(self._jobs)

    @property
    def unstored(self) -> int:
        """Outcomes that wait for Redis."""
        return self._store.waiting

    async def run(self, run: str, shard: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Until every request still wanted has its outcome stored. Returns ``{"requests": …, "failed": …}``.

        Raises celery's Reject (requeue) where the worker stops first. Cancelled: gives its claim up at once.
        """
        job = _Job(run, shard, Keys(run), f"{self._name}:{uuid.uuid4().hex}")
        try:
            if not await self._claims.take(job):
                job.left = 0
                return {"requests": 0, "failed": 0}
            self._jobs.add(job)
            return await self._run_claimed(job, requests)
        finally:
            self._jobs.discard(job)
            for task in job.tasks.values():
                task.cancel()
            if job.left:
                await self._claims.give_up(job, given_back=job.stopped == "stopping")

    async def _run_claimed(self, job: _Job, requests: list[dict[str, Any]]) -> dict[str, Any]:
        wanted, tries = await self._claims.begin(job)
        todo = [entry for entry in requests if entry["id"] in wanted]
        job.left = len(todo)
        if not todo:
            await self._claims.end_empty(job)
            return {"requests": 0, "failed": 0}
        counts = {"requests": 0, "failed": 0}
        lost = tries > MAX_TRIES
        for entry in todo:
            job.tasks[entry["id"]] = asyncio.create_task(self._one(job, entry, lost, counts))
        if self._stopping.is_set():
            job.stopped = job.stopped or "stopping"
            job.stop_unsent()
        elif job.drained:
            await asyncio.sleep(0)  # each has begun then, and says that it was withdrawn
            job.stop_unsent()
        await asyncio.wait(job.tasks.values())
        if job.put is not None:
            await asyncio.wait([job.put])
        failures = [task.exception() for task in job.tasks.values() if not task.cancelled() and task.exception()]
        if failures:
            raise failures[0]  # type: ignore[misc]  # a fault of ours: the shard is begun again, at most MAX_TRIES times
        if job.left and job.stopped == "stopping":
            raise Reject("the worker stops", requeue=True)
        return counts

    async def _one(self, job: _Job, entry: dict[str, Any], lost: bool, counts: dict[str, int]) -> None:
        id = entry["id"]
        if lost:
            message = f"its worker died {MAX_TRIES} times while it ran"
            outcome = Outcome(id, failure=Failure(Cause.WORKER_LOST, message, permanent=True), worker=self._name)
        else:
            try:
                request = self._parse({**entry["request"], "id": id})
            except BadRequest as error:
                outcome = Outcome(id, failure=Failure(Cause.BAD_REQUEST, str(error), permanent=True))
            else:
                try:
                    outcome = await self._sampler.sample(request, scope=job.run, on_wire=partial(job.wire, id))
                except asyncio.CancelledError:
                    if not job.drained:
                        raise
                    message = "withdrawn before it was sent: its run drains"
                    outcome = Outcome(id, failure=Failure(Cause.CANCELLED, message))
        counts["requests"] += 1
        counts["failed"] += not outcome.ok
        job.put = self._store.put(job.keys, job.shard, id, entry["units"], outcome, last=job.stored)

    # -- what may end a job early --------------------------------------------------------------------------------

    async def _watch_stopping(self) -> None:
        await self._stopping.wait()
        for job in self._jobs:
            job.stopped = job.stopped or "stopping"
            job.stop_unsent()

    def _running(self) -> list[_Job]:
        return [job for job in self._jobs if job.tasks]

    def _heard(self, job: _Job, told: str) -> None:
        """What the renewal of a job's claim told; the job may have ended meanwhile."""
        if job not in self._jobs or job.left == 0:
            return
        if told in ("lost", "withdrawn"):
            job.stopped = told
            job.stop_all()
        elif told == "drains":
            job.drained = True
            job.stop_unsent()


def _as_it_is(fields: Mapping[str, Any]) -> Request:
    ours = {"id", "mode", "workload"}
    return Request(
        fields={name: value for name, value in fields.items() if name not in ours},
        id=str(fields.get("id", "")),
        mode=Mode(fields.get("mode", Mode.COMPLETION)),
        workload=Workload(fields.get("workload", Workload.BATCH)),
    )
