"""Samples a single request once: of all deliveries and copies of its task one asks the provider; all get the result.

A copy is another message with the same task id, or with the same ``idempotency_key``. The first to *claim* the request
samples it; the others wait, then leave the result that is stored under their own id alone, or return the one stored
under the other's. A claim is a key with a TTL, renewed while the request is sampled, so a worker that dies leaves its
request to the next. A task that was revoked is not sampled, whenever that was.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from celery import Task
from celery.exceptions import Ignore, Reject
from celery.signals import task_revoked

from brimful.outcome import Outcome
from brimful.runtime.aio import cancel_and_wait, until_tick
from brimful.state.keys import claim_key, revoked_key
from brimful.state.redis_retry import REDIS_ERRORS
from brimful.state.result_consumer import read_result
from brimful.state.revocations import TERMINATE
from brimful_worker.lua_script import load_script
from brimful_worker.pool.result_store import SUCCEEDED
from brimful_worker.singles.pipeline import SharedPipeline

_CLAIM, _RELEASE = (load_script("brimful_worker.singles", f"{name}.lua") for name in ("claim", "release"))
_TTL_S = 12.0
"""At most. Below the visibility timeout: a dead worker's claim has expired when its message is delivered again."""
_WAIT_S = 0.5
_DONE = "done "
"""A claim's value once its idempotency key has a result; the id of the task that stored it follows."""


class Revoked(Exception):
    """The task was revoked before it was sampled, or while its worker could not hear of it."""


@dataclass(eq=False)
class _Claim:
    task_id: str
    key: str
    token: str
    sampling: asyncio.Task[Any]
    revoked: bool = False


class Once:
    """One worker process's single requests. An async context manager; everything is used on its loop."""

    def __init__(
        self, redis_url: str, stopping: asyncio.Event, fleet: str = "", visibility_timeout_s: float = 15.0
    ) -> None:
        """Nothing is claimed once ``stopping`` is set."""
        self._ttl_ms = int(min(_TTL_S, 0.8 * visibility_timeout_s) * 1000)
        self._fleet = fleet
        self._url = redis_url
        self._stopping = stopping
        self._held: set[_Claim] = set()

    async def __aenter__(self) -> Self:
        self.pipeline = SharedPipeline(self._url, "brimful-singles")
        self.pipeline.start()
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait([self._renewing])
        await self.pipeline.aclose()

    async def sample(self, task: Task, idempotency_key: str | None, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """The outcome of ``call``, or that of a copy of the task which succeeded.

        Raises Revoked, celery's Ignore if the result is already stored under this task's id, and Reject when the worker
        stops.
        """
        id = str(task.request.id)
        sampling = asyncio.current_task()
        assert sampling is not None
        claim = _Claim(id, claim_key(_identity(id, idempotency_key), self._fleet), uuid.uuid4().hex, sampling)
        if (stored := await self._claim(claim, task)) is not None:
            return stored
        self._held.add(claim)
        sampled = False
        try:
            outcome = await call()
            sampled = outcome.ok
        except asyncio.CancelledError:
            if claim.revoked:
                raise Revoked from None
            raise
        finally:
            self._held.discard(claim)
            if not sampled:
                self._release(claim, claim.token)
        if sampled and idempotency_key is not None:
            with contextlib.suppress(*REDIS_ERRORS):
                await self.pipeline.ask("SET", claim.key, f"{_DONE}{id}", "EX", task.backend.expires)
        return outcome  # a plain claim expires after Celery has stored the result

    async def _claim(self, claim: _Claim, task: Task) -> Outcome | None:
        """None: the request is this delivery's to sample. An Outcome: a copy of the task has sampled it."""
        result_key = task.backend.get_key_for_task(claim.task_id)
        while not self._stopping.is_set():
            with contextlib.suppress(*REDIS_ERRORS):
                keys = (claim.key, revoked_key(claim.task_id, self._fleet), result_key)
                reply = await self.pipeline.call(_CLAIM, keys, claim.token, self._ttl_ms, SUCCEEDED)
                state = reply.decode()
                if state == claim.token:
                    return None
                if state == "revoked":
                    raise Revoked
                if state == "stored":
                    raise Ignore("its result is stored")
                if state.startswith(_DONE):
                    if (stored := await self._stored(task, state.removeprefix(_DONE))) is not None:
                        return stored
                    self._release(claim, state)  # its result has expired or was deleted
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _WAIT_S)
        raise Reject("the worker stops", requeue=True)

    async def _stored(self, task: Task, id: str) -> Outcome | None:
        raw = await self.pipeline.ask("GET", task.backend.get_key_for_task(id))
        meta = read_result(task.backend, id, raw) if raw else {}
        if meta.get("status") != "SUCCESS" or not isinstance(meta["result"], dict):
            return None
        completion = dict(meta["result"])
        took = completion.pop("brimful", {})
        return Outcome.from_message({**took, "id": str(task.request.id), "completion": completion})

    def _release(self, claim: _Claim, value: str) -> None:
        """Without waiting: if it fails, the claim expires."""
        self.pipeline.call(_RELEASE, [claim.key], value)

    async def _renew(self) -> None:
        """Also ends what was revoked without this worker hearing of it: Celery's broadcasts are not kept for a worker
        that is reconnecting."""
        while True:
            await asyncio.sleep(until_tick(self._ttl_ms / 4000))
            asked = []
            for claim in self._held:
                self.pipeline.ask("PEXPIRE", claim.key, self._ttl_ms)
                asked.append((claim, self.pipeline.ask("GET", revoked_key(claim.task_id, self._fleet))))
            for claim, answered in asked:
                with contextlib.suppress(*REDIS_ERRORS):
                    if await answered == TERMINATE.encode() and claim in self._held:
                        claim.revoked = True
                        claim.sampling.cancel()


def announce_revoked(task: Task) -> None:
    """Store and announce what Celery does for a revoked task. Called on the tracer's thread, which then ignores it."""
    request = task.request
    task.backend.mark_as_revoked(request.id, "revoked", request=request, store_result=not request.ignore_result)
    task.send_event("task-revoked", terminated=False, signum=None, expired=False)
    task_revoked.send(sender=task, request=request, terminated=False, signum=None, expired=False)


def _identity(task_id: str, idempotency_key: str | None) -> str:
    """What the copies of a task have in common."""
    if idempotency_key is None:
        return task_id
    return "key-" + hashlib.sha256(idempotency_key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
