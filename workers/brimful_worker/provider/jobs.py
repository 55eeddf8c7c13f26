"""A request as a provider Job: submit, poll, fetch the result; found again after a redelivery, cancelled on revoke.

The submission takes a slot and a start, and the slot is held until the Job has ended: no page says whether a running
Job counts among the key's active requests, so we assume that it does. Whether a poll or a fetch takes a start is the
profile's ``job_polls_count``. A cancellation takes none: a paused or full window must not let a revoked Job run on.

A Job is paid for once. Its ``Idempotency-Key`` is derived from the caller's name and the body, so that a redelivered
task finds the same Job. Only a Job that ended without a result is replaced, under the key of the next ``generation``.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from brimful.outcome import Cause
from brimful_worker.admission import StaleGrant
from brimful_worker.provider.answers.answer import Answer, Classification, Kind, TransportError
from brimful_worker.provider.answers.classify import classify_answer, parse_json
from brimful_worker.provider.answers.refusal import classify_refusal, find_error
from brimful_worker.provider.transport.exchange import Grant

GIVE_BACK = "give back"
"""``task.cancel(GIVE_BACK)``: the work returns to the queue, so its Job is left running for the next worker to find."""

_CANCEL_S = 5.0
_MAX_FAILURES = 5
"""Consecutive failures of a poll or a fetch."""
_USAGE_POLLS = 3
"""How often a succeeded Job whose usage is pending is polled again."""
_NOT_READY = ("result_not_ready", "not_ready", "job_not_finished", "job_running", "conflict")
_CANCELLED = ("cancelled", "canceled")


class JobKey:
    """The ``Idempotency-Key`` of one caller's Job, the same on every attempt."""

    __slots__ = ("_digest", "body", "generation")

    def __init__(self, caller: str, body: bytes) -> None:
        """``caller`` is the same when the work is redelivered (run and request id, or Celery's task id)."""
        self._digest = hashlib.sha256(caller.encode("utf-8", "surrogatepass") + b"\0" + body).hexdigest()[:40]
        self.body = body
        self.generation = 0
        """How many Jobs of this key ended without a result."""

    def __str__(self) -> str:
        return f"brimful-{self._digest}-{self.generation}"


class Send(Protocol):
    """One exchange with the provider. ``path`` is empty for the submission, or a Job's id with or without a verb."""

    async def __call__(
        self, method: str, path: tuple[str, ...], *, key: JobKey | None, grant: Grant | None
    ) -> Answer | TransportError: ...


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a :class:`JobPoller` needs of the sampler."""

    pause: Callable[[int], Awaitable[None]]
    """Waits before the next poll; the argument is the number of polls so far."""
    start: Callable[[], AbstractAsyncContextManager[Grant | None]] | None
    """Takes a start for a poll, without a slot, because the Job holds one; None if polls take no starts."""
    throttled: Callable[[Classification], Awaitable[None]]
    """Waits after a 429 to a poll, and pauses the fleet if the 429 names a time."""
    giving_back: Callable[[], bool] = lambda: False
    """Whether a cancellation means that the worker stops; the Job is then left for the next worker to find."""


@dataclass(slots=True)
class JobPoller:
    """One Job of ``prompts`` prompts and ``expected`` choices, from submission to result."""

    send: Send
    hooks: Hooks
    key: JobKey
    expected: int
    prompts: int

    async def run(self, grant: Grant) -> Classification:
        """Submit the Job, or find it again, and wait for its completion.

        A cancellation also cancels the Job, unless the work is given back or the lease was lost: then the next attempt
        finds the Job by its key. ``grant.sent()``'s StaleGrant is raised.
        """
        submission = asyncio.ensure_future(self.send("POST", (), key=self.key, grant=grant))
        submission.add_done_callback(_retrieve_exception)
        job_id: str | None = None
        try:
            answer = await asyncio.shield(submission)
            job = _job(answer)
            if job is None:
                return self._classify(answer)
            job_id = str(job["id"])
            if job.get("status") in _CANCELLED:
                # An earlier delivery of this work was revoked, but this one was not.
                return self._start_over(Cause.JOB_CANCELLED, f"Job {job_id} was cancelled earlier")
            return await self._watch(job_id, job)
        except asyncio.CancelledError as error:
            if grant.lost or self.hooks.giving_back() or error.args[:1] == (GIVE_BACK,):
                submission.cancel()
            else:
                await self._cancel(submission, job_id)
            raise

    async def _watch(self, job_id: str, job: dict[str, Any]) -> Classification:
        """Poll until the Job has ended; the classification of its result."""
        polls = failures = usage_polls = 0
        while True:
            status = job.get("status")
            if job.get("result_expired") is True or status == "expired":
                return self._start_over(Cause.JOB_EXPIRED, f"the result of Job {job_id} expired before it was fetched")
            if status in _CANCELLED:
                self.key.generation += 1
                return Classification(Kind.PERMANENT, cause=Cause.JOB_CANCELLED, message=f"Job {job_id} was cancelled")
            if status == "failed":
                return await self._failed(job_id, job)
            if status == "succeeded":
                if job.get("usage_pending") is not True or usage_polls >= _USAGE_POLLS:
                    result = await self._result(job_id)
                    if result is not None:
                        return result
                usage_polls += 1
            await self.hooks.pause(polls)
            polls += 1
            answer = await self._get(job_id)
            if (polled := _job(answer)) is not None:
                job, failures = polled, 0
                continue
            classification = self._classify(answer)
            if classification.kind is Kind.THROTTLED:
                await self.hooks.throttled(classification)
                continue
            if classification.status == 404:
                return self._start_over(Cause.JOB_EXPIRED, f"the provider no longer knows Job {job_id}")
            failures += 1
            if classification.kind is not Kind.TRANSIENT or failures >= _MAX_FAILURES:
                return classification

    async def _result(self, job_id: str) -> Classification | None:
        """The classification of a succeeded Job's result; None if the provider does not have it ready."""
        failures = 0
        while True:
            answer = await self._get(job_id, "result")
            if isinstance(answer, Answer):
                if answer.status == 202 or (answer.status in (409, 425) and _error_code(answer) in _NOT_READY):
                    return None
                if answer.status in (404, 410):
                    return self._start_over(
                        Cause.JOB_EXPIRED, f"the result of Job {job_id} is gone (HTTP {answer.status})"
                    )
            classification = self._classify(answer)
            if classification.kind is Kind.THROTTLED:
                await self.hooks.throttled(classification)
                continue
            if classification.kind is not Kind.TRANSIENT:
                # Fetched again, a refused or incomplete result would be the same.
                self.key.generation += classification.kind is not Kind.SUCCESS
                return classification
            failures += 1
            if failures >= _MAX_FAILURES:
                # A result that is damaged on every fetch is replaced.
                self.key.generation += classification.cause is Cause.BAD_ANSWER
                return classification
            await self.hooks.pause(failures)

    async def _failed(self, job_id: str, job: dict[str, Any]) -> Classification:
        """Why the Job failed: its result is the error object with its own status."""
        if (error := find_error(job)) is not None:
            classification = classify_refusal(200, {}, error, now=time.time())
        else:
            answer = await self._get(job_id, "result")
            classification = self._classify(answer)
            if isinstance(answer, TransportError):
                return classification  # the next attempt finds the same Job
        self.key.generation += 1
        if classification.kind in (Kind.SUCCESS, Kind.SHORT):
            return Classification(
                Kind.TRANSIENT, cause=Cause.JOB_FAILED, message=f"Job {job_id} failed without an error"
            )
        if classification.kind is Kind.TRANSIENT:
            message = f"the Job failed: {classification.message}"
            return replace(classification, cause=Cause.JOB_FAILED, message=message, retry_after_s=None)
        return classification

    async def _get(self, *path: str) -> Answer | TransportError:
        if self.hooks.start is None:
            return await self.send("GET", path, key=None, grant=None)
        while True:
            try:
                async with self.hooks.start() as grant:
                    return await self.send("GET", path, key=None, grant=grant)
            except StaleGrant:
                continue  # given back; take another start

    async def _cancel(self, submission: asyncio.Future[Answer | TransportError], job_id: str | None) -> None:
        """Cancel the Job at the provider, in bounded time and without raising; the slot is held meanwhile."""

        async def cancel() -> None:
            id = job_id
            if id is None:  # cancelled while it was being submitted; the Job may exist
                job = _job(await submission)
                if job is None:
                    return
                id = str(job["id"])
            answer = await self.send("POST", (id, "cancel"), key=None, grant=None)
            if isinstance(answer, Answer) and answer.status in (404, 405):
                await self.send("DELETE", (id,), key=None, grant=None)

        cancelling = asyncio.ensure_future(asyncio.wait_for(cancel(), _CANCEL_S))
        cancelling.add_done_callback(_retrieve_exception)
        await asyncio.wait({cancelling})

    def _start_over(self, cause: Cause, message: str) -> Classification:
        """The Job ended without a result: the next attempt makes a new one."""
        self.key.generation += 1
        return Classification(Kind.TRANSIENT, cause=cause, message=message)

    def _classify(self, answer: Answer | TransportError) -> Classification:
        return classify_answer(answer, expected=self.expected, prompts=self.prompts, now=time.time())


def _retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Keeps asyncio from logging an exception that nobody awaits."""
    if not done.cancelled():
        done.exception()


def _job(answer: Answer | TransportError) -> dict[str, Any] | None:
    """The Job object of a successful answer, if it holds one."""
    if isinstance(answer, TransportError) or not 200 <= answer.status < 300:
        return None
    document = parse_json(answer)
    if isinstance(document, dict) and document.get("id") and isinstance(document.get("status"), str):
        return document if "choices" not in document else None
    return None


def _error_code(answer: Answer) -> str:
    error = find_error(parse_json(answer)) or {}
    return str(error.get("code") or error.get("type") or "").lower()
