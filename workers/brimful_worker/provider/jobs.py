"""A request as a Job: submit, poll, fetch; the same Job again after a redelivery; cancelled with its caller.

What counts against the key: the submission takes a slot and a start, and the slot is kept until the Job has ended: the
Job runs in the API, and whether it counts among the key's active requests is the provider's to say, so we assume it
does. Whether a poll, or fetching the result, takes a start is the profile's ``job_polls_count``. A cancellation asks
for none: a paused or full window must not let a revoked Job run on.

A Job is paid for once: the ``Idempotency-Key`` is made of what the caller is called and what is asked, so that a
redelivered task, or a worker that starts where another died, finds the Job that is there. Only a Job that ended without
a result makes way for a new one, under the next ``generation``'s key.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from brimful.outcome import Cause
from brimful_worker.admission import StaleGrant
from brimful_worker.provider.answers.answer import Answer, Classification, Kind, TransportError
from brimful_worker.provider.answers.classify import bad_answer, classify_answer, lost, parse
from brimful_worker.provider.answers.refusal import error_of, refused
from brimful_worker.provider.transport.exchange import Grant

GIVE_BACK = "give back"
"""``task.cancel(GIVE_BACK)``: the work goes to another worker, so the Job is left running for it to find."""

_CANCEL_S = 5.0
_POLL_FAILURES = 5
_USAGE_POLLS = 3
_NOT_READY = ("result_not_ready", "not_ready", "job_not_finished", "job_running", "conflict")


class Ticket:
    """What names one caller's Job from attempt to attempt."""

    __slots__ = ("_digest", "body", "generation")

    def __init__(self, caller: str, body: bytes) -> None:
        """``caller``: what stays the same when the same work comes again (run and request id, or Celery's task id)."""
        self._digest = hashlib.sha256(caller.encode("utf-8", "surrogatepass") + b"\0" + body).hexdigest()[:40]
        self.body = body
        self.generation = 0

    @property
    def key(self) -> str:
        return f"brimful-{self._digest}-{self.generation}"


class Send(Protocol):
    """One exchange with the provider. ``path`` is "" for the submission, else a Job's id with or without a verb."""

    async def __call__(
        self, method: str, path: tuple[str, ...], *, key: str | None, grant: Grant | None
    ) -> Answer | TransportError: ...


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a Job's conversation needs of its surroundings; all of it passed in."""

    pause: Callable[[int], Awaitable[None]]
    """Waits before the next poll; the number of polls so far."""
    start: Callable[[], AbstractAsyncContextManager[Grant | None]] | None
    """A start for a poll, without a slot: the Job holds one; None where polls take none."""
    throttled: Callable[[Classification], Awaitable[None]]
    """A 429 to a poll: the fleet pauses, or only this Job waits."""
    giving_back: Callable[[], bool] = lambda: False
    """Whether a cancellation now means that the worker stops: the Job is then left for the next worker to find."""


class JobPoller:
    """One Job from submission to result."""

    def __init__(self, send: Send, hooks: Hooks, ticket: Ticket, *, expected: int, prompts: int) -> None:
        self._send = send
        self._hooks = hooks
        self._ticket = ticket
        self._expected = expected
        self._prompts = prompts

    async def run(self, grant: Grant) -> Classification:
        """The Job's completion, or why there is none. Cancelled, the Job is cancelled too, unless it is given back or
        the lease was lost: then the next attempt, or the next worker, finds it by its key."""
        submission = asyncio.ensure_future(self._send("POST", (), key=self._ticket.key, grant=grant))
        submission.add_done_callback(lambda done: done.cancelled() or done.exception())
        job_id: str | None = None
        try:
            came = await asyncio.shield(submission)
            job = _job(came)
            if job is None:
                return self._judge(came)
            job_id = str(job["id"])
            if job.get("status") in ("cancelled", "canceled"):
                # We are asked for it now, so whoever cancelled it earlier (an earlier delivery, revoked) is history.
                return self._spent(Cause.JOB_CANCELLED, f"Job {job_id} had been cancelled before")
            return await self._watch(job_id, job)
        except asyncio.CancelledError as error:
            if grant.lost or self._hooks.giving_back() or error.args[:1] == (GIVE_BACK,):
                submission.cancel()
            else:
                await self._cancel(submission, job_id)
            raise

    async def _watch(self, job_id: str, job: dict[str, Any]) -> Classification:
        polls = failures = usage_polls = 0
        while True:
            status = job.get("status")
            if job.get("result_expired") is True or status == "expired":
                return self._spent(Cause.JOB_EXPIRED, f"the result of Job {job_id} expired before it was fetched")
            if status in ("cancelled", "canceled"):
                self._ticket.generation += 1
                return Classification(Kind.PERMANENT, cause=Cause.JOB_CANCELLED, message=f"Job {job_id} was cancelled")
            if status == "failed":
                return await self._failed(job_id, job)
            if status == "succeeded":
                if job.get("usage_pending") is not True or usage_polls >= _USAGE_POLLS:
                    result = await self._result(job_id)
                    if result is not None:
                        return result
                usage_polls += 1
            await self._hooks.pause(polls)
            polls += 1
            came = await self._ask((job_id,))
            polled = _job(came)
            if polled is not None:
                job, failures = polled, 0
                continue
            told = self._judge(came)
            if told.kind is Kind.THROTTLED:
                await self._hooks.throttled(told)
                continue
            if told.status == 404:
                return self._spent(Cause.JOB_EXPIRED, f"the provider no longer knows Job {job_id}")
            failures += 1
            if told.kind is not Kind.TRANSIENT or failures >= _POLL_FAILURES:
                return told

    async def _result(self, job_id: str) -> Classification | None:
        """The succeeded Job's completion; None where it is not there yet."""
        failures = 0
        while True:
            came = await self._ask((job_id, "result"))
            if isinstance(came, Answer):
                if came.status == 202 or (came.status in (409, 425) and _code(came) in _NOT_READY):
                    return None
                if came.status in (404, 410):
                    return self._spent(Cause.JOB_EXPIRED, f"the result of Job {job_id} is gone (HTTP {came.status})")
            told = self._judge(came)
            if told.kind is Kind.THROTTLED:
                await self._hooks.throttled(told)
                continue
            if told.kind is not Kind.TRANSIENT:
                self._ticket.generation += told.kind is not Kind.SUCCESS  # fetched again it would be the same
                return told
            failures += 1
            if failures >= _POLL_FAILURES:
                if told.cause is Cause.BAD_ANSWER:
                    self._ticket.generation += 1  # the result itself is no good, however often it is fetched
                return told
            await self._hooks.pause(failures)

    async def _failed(self, job_id: str, job: dict[str, Any]) -> Classification:
        """Why a Job failed: the error object that is its result, with its own status."""
        error = error_of(job)
        if error is not None:
            told = refused(200, {}, error, now=time.time())
        else:
            came = await self._ask((job_id, "result"))
            if isinstance(came, TransportError):
                return self._judge(came)  # the next attempt finds the same Job, and asks again
            told = self._judge(came)
        self._ticket.generation += 1
        if told.kind in (Kind.SUCCESS, Kind.SHORT):
            return Classification(
                Kind.TRANSIENT, cause=Cause.JOB_FAILED, message=f"Job {job_id} failed without an error"
            )
        if told.kind is Kind.TRANSIENT:
            return Classification(
                Kind.TRANSIENT, cause=Cause.JOB_FAILED, message=f"the Job failed: {told.message}", status=told.status
            )
        return told

    async def _ask(self, path: tuple[str, ...], method: str = "GET") -> Answer | TransportError:
        start = self._hooks.start
        if start is None:
            return await self._send(method, path, key=None, grant=None)
        while True:
            try:
                async with start() as grant:
                    return await self._send(method, path, key=None, grant=grant)
            except StaleGrant:
                continue  # given back: another start is asked for

    async def _cancel(self, submission: asyncio.Future[Answer | TransportError], job_id: str | None) -> None:
        """End the Job at the provider, in bounded time and come what may; the slot is kept meanwhile."""

        async def end() -> None:
            name = job_id
            if name is None:  # cancelled while it was being submitted: the Job may be there
                job = _job(await submission)
                name = None if job is None else str(job["id"])
            if name is None:
                return
            came = await self._send("POST", (name, "cancel"), key=None, grant=None)
            if isinstance(came, Answer) and came.status in (404, 405):
                await self._send("DELETE", (name,), key=None, grant=None)

        ending = asyncio.ensure_future(asyncio.wait_for(end(), _CANCEL_S))
        ending.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({ending})

    def _spent(self, cause: Cause, message: str) -> Classification:
        """The Job has ended and gives nothing: the next attempt makes a new one."""
        self._ticket.generation += 1
        return Classification(Kind.TRANSIENT, cause=cause, message=message)

    def _judge(self, came: Answer | TransportError) -> Classification:
        if isinstance(came, TransportError):
            return lost(came)
        told = classify_answer(came, expected=self._expected, prompts=self._prompts, now=time.time())
        if told.kind is Kind.PERMANENT and told.status == 404 and not told.message:
            return bad_answer(404, "no such Job")
        return told


def _job(came: Answer | TransportError) -> dict[str, Any] | None:
    """The Job object an answer holds; None where it holds none."""
    if isinstance(came, TransportError) or came.too_large or not 200 <= came.status < 300:
        return None
    document = parse(came)
    if isinstance(document, dict) and document.get("id") and isinstance(document.get("status"), str):
        return document if "choices" not in document else None
    return None


def _code(came: Answer) -> str:
    error = error_of(parse(came)) or {}
    return json.dumps(error.get("code") or error.get("type") or "").strip('"').lower()
