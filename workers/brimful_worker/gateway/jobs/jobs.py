"""Completion Jobs ("Sample many rollouts"): queued -> running -> succeeded, failed or cancelled; results expire."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.responses import Refusal, error_body
from brimful_worker.gateway.sample_request import SampleRequest

Result = tuple[int, Any]
"""HTTP status and JSON body."""
Work = Callable[[SampleRequest, Callable[[], None]], Awaitable[Result]]
"""A Job's work: waits for a slot, calls back when it has one, returns the result. May raise Refusal."""


@dataclass(slots=True)
class Job:
    request: SampleRequest
    id: str
    created: float
    status: str = "queued"
    cancel_requested: bool = False
    started: float | None = None
    finished: float | None = None
    expires: float | None = None
    result: Result | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def ended(self) -> bool:
        return self.finished is not None

    @property
    def expired(self) -> bool:
        return self.expires is not None and time.time() >= self.expires


class Jobs:
    """All Jobs of the gateway. Times are Unix times in seconds."""

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._jobs: dict[str, Job] = {}
        self._keys: dict[str, tuple[bytes, Job]] = {}
        self.submits: Counter[str] = Counter()
        """Submissions by idempotency key."""

    def submit(self, request: SampleRequest, key: str | None, body: bytes, work: Work) -> Job:
        """A new Job, or the one of this idempotency key. Raises Refusal (409) if its ``body`` was another."""
        if key is not None:
            self.submits[key] += 1
            if key in self._keys:
                first, job = self._keys[key]
                if first != body:
                    message = "This Idempotency-Key was used with a different request body."
                    raise Refusal(409, "idempotency_key_reused", message)
                return job
        job = Job(request, str(uuid.uuid4()), time.time())
        self._jobs[job.id] = job
        if key is not None:
            self._keys[key] = (body, job)
        job.task = asyncio.get_running_loop().create_task(self._run(job, work))
        return job

    def get(self, id: str) -> Job:
        """Raises Refusal (404)."""
        if id not in self._jobs:
            raise Refusal(404, "job_not_found", f"No Job has the id '{id[:64]}'.")
        return self._jobs[id]

    def result(self, id: str) -> Result:
        """The Completion, or the error object with its own status.

        Raises Refusal: 404 unknown; 409 not ended or cancelled, 410 expired (these are our choice).
        """
        job = self.get(id)
        if not job.ended:
            raise Refusal(409, "job_not_finished", f"The Job is {job.status}; it has no result yet.")
        if job.status == "cancelled":
            raise Refusal(409, "job_cancelled", "The Job was cancelled; it has no result.")
        if job.result is None or job.expired:
            raise Refusal(410, "result_expired", "The Job's result has expired.")
        status, body = job.result
        if self._usage_pending(job) and "usage" in body:
            body = {**body, "usage": None}
        return status, body

    def cancel(self, id: str) -> Job:
        """Cancel the Job; one that has ended stays as it is. Raises Refusal (404)."""
        job = self.get(id)
        if not job.ended and not job.cancel_requested:
            job.cancel_requested = True
            if job.status == "queued":
                self._end(job, "cancelled")
            if job.task is not None:
                job.task.cancel()
        return job

    def view(self, job: Job) -> dict[str, Any]:
        """The Job's JSON."""
        path = f"/v1/completion-jobs/{job.id}"
        return {
            "id": job.id,
            "request_id": "req_job_" + job.id.replace("-", ""),
            "model": job.request.model,
            "status": job.status,
            "cancel_requested": job.cancel_requested,
            "created_at": _iso(job.created),
            "started_at": _iso(job.started),
            "finished_at": _iso(job.finished),
            "expires_at": _iso(job.expires),
            "result_expired": job.expired,
            "status_url": path,
            "result_url": f"{path}/result",
            "usage_pending": self._usage_pending(job),
        }

    def snapshot(self) -> dict[str, Any]:
        return {
            "created": len(self._jobs),
            "by_status": dict(Counter(job.status for job in self._jobs.values())),
            "keys": {key: job.id for key, (_, job) in self._keys.items()},
            "submits": dict(self.submits),
        }

    async def stop(self) -> None:
        """Cancel all running Jobs."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job, work: Work) -> None:
        def on_running() -> None:
            job.status, job.started = "running", time.time()

        try:
            status, body = await work(job.request, on_running)
        except Refusal as refusal:
            status, body = refusal.status, refusal.body
        except asyncio.CancelledError:
            self._end(job, "cancelled")
            raise
        except Exception as error:
            status, body = 500, error_body(500, None, f"The mock gateway failed: {error!r}")
        job.result = (status, body)
        self._end(job, "succeeded" if status < 400 else "failed")

    def _end(self, job: Job, status: str) -> None:
        if not job.ended:
            job.status, job.finished = status, time.time()
            job.expires = job.finished + self._options.result_ttl_s

    def _usage_pending(self, job: Job) -> bool:
        return job.finished is not None and time.time() < job.finished + self._options.usage_pending_s


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
