"""Completion Jobs: queued -> running -> succeeded, failed or cancelled; kept with their results until those expire."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from brimful_worker.gateway.ask import Ask
from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.refusal import Refusal, error_body

Result = tuple[int, Any]
"""A status and a JSON body."""
Work = Callable[[Ask, Callable[[], None]], Awaitable[Result]]
"""Does a Job's work: waits for a slot, calls back when it runs, returns its result."""


@dataclass(slots=True)
class Job:
    ask: Ask
    id: str
    created: float
    status: str = "queued"
    cancel_requested: bool = False
    started: float | None = None
    finished: float | None = None
    expires: float | None = None
    result: Result | None = None
    expired: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def ended(self) -> bool:
        return self.finished is not None


class Jobs:
    """All Jobs of the gateway. Times are wall-clock seconds, as the provider tells them."""

    def __init__(self, options: GatewayOptions, work: Work, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._work = work
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._keys: dict[str, tuple[bytes, Job]] = {}
        self.submits: Counter[str] = Counter()
        """Submissions by idempotency key."""

    def submit(self, ask: Ask, key: str | None, body: bytes) -> Job:
        """A new Job, or the one that this key made. Raises Refusal (409) for another ``body`` under the same key."""
        if key is not None:
            self.submits[key] += 1
            if key in self._keys:
                first, job = self._keys[key]
                if first != body:
                    raise Refusal(
                        409, "idempotency_key_reused", "This Idempotency-Key was used with a different request body."
                    )
                return job
        job = Job(ask, _uuid7(self._clock()), self._clock())
        self._jobs[job.id] = job
        if key is not None:
            self._keys[key] = (body, job)
        job.task = asyncio.get_running_loop().create_task(self._run(job))
        return job

    def get(self, id: str) -> Job:
        """Raises Refusal (404)."""
        job = self._jobs.get(id)
        if job is None:
            raise Refusal(404, "job_not_found", f"No Job has the id '{id[:64]}'.")
        if job.expires is not None and self._clock() >= job.expires:
            job.expired, job.result = True, None
        return job

    def result(self, id: str) -> Result:
        """The Completion, or the error object with its own status.

        Raises Refusal: 404 unknown; 409 not ended, or cancelled; 410 expired (the last three are our choice).
        """
        job = self.get(id)
        if not job.ended:
            raise Refusal(409, "job_not_finished", f"The Job is {job.status}; it has no result yet.")
        if job.status == "cancelled":
            raise Refusal(409, "job_cancelled", "The Job was cancelled; it has no result.")
        if job.result is None:
            raise Refusal(410, "result_expired", "The Job's result has expired.")
        status, body = job.result
        if self._pending(job) and "usage" in body:
            body = {**body, "usage": None}
        return status, body

    def cancel(self, id: str) -> Job:
        """Asks it to stop; one that has ended stays as it is."""
        job = self.get(id)
        if not job.ended and not job.cancel_requested:
            job.cancel_requested = True
            if job.status == "queued":
                self._end(job, "cancelled")
            if job.task is not None:
                job.task.cancel()
        return job

    def view(self, job: Job) -> dict[str, Any]:
        """The Job as the API tells it."""
        path = f"/v1/completion-jobs/{job.id}"
        return {
            "id": job.id,
            "request_id": "req_job_" + job.id.replace("-", ""),
            "model": job.ask.model,
            "status": job.status,
            "cancel_requested": job.cancel_requested,
            "created_at": _iso(job.created),
            "started_at": _iso(job.started),
            "finished_at": _iso(job.finished),
            "expires_at": _iso(job.expires),
            "result_expired": job.expired,
            "status_url": path,
            "result_url": f"{path}/result",
            "usage_pending": self._pending(job),
        }

    def snapshot(self) -> dict[str, Any]:
        return {
            "created": len(self._jobs),
            "by_status": dict(Counter(job.status for job in self._jobs.values())),
            "keys": {key: job.id for key, (_, job) in self._keys.items()},
            "submits": dict(self.submits),
        }

    async def stop(self) -> None:
        """Ends what runs."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job) -> None:
        def running() -> None:
            job.status, job.started = "running", self._clock()

        try:
            await asyncio.sleep(self._options.job_queued_s)
            status, body = await self._work(job.ask, running)
        except Refusal as refusal:
            status, body = refusal.status, refusal.body()
        except asyncio.CancelledError:
            self._end(job, "cancelled")
            raise
        except Exception as error:
            status, body = 500, error_body(500, None, f"The gateway itself failed: {error!r}")
        job.result = (status, body)
        self._end(job, "succeeded" if status < 400 else "failed")

    def _end(self, job: Job, status: str) -> None:
        if not job.ended:
            job.status, job.finished = status, self._clock()
            job.expires = job.finished + self._options.result_ttl_s

    def _pending(self, job: Job) -> bool:
        return job.finished is not None and self._clock() < job.finished + self._options.usage_pending_s


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _uuid7(seconds: float) -> str:
    """A time-ordered id (RFC 9562, version 7)."""
    value = int(seconds * 1000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    return str(uuid.UUID(int=value))
