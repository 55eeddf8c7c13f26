"""A Job from submission to result, on a provider whose answers the test gives: what is asked, and what it means."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from brimful.outcome import Cause
from brimful_worker.admission import StaleGrant
from brimful_worker.provider import GIVE_BACK
from brimful_worker.provider.answers.answer import Answer, Classification, Kind, TransportError
from brimful_worker.provider.jobs import Hooks, JobKey, JobPoller
from brimful_worker.provider.transport.exchange import Grant
from support.fake_admission import FakeLease

Said = Answer | TransportError | Exception
SUBMIT, POLL, RESULT, CANCEL, DELETE = "POST", "GET j", "GET j/result", "POST j/cancel", "DELETE j"
RESET = TransportError(Cause.CONNECTION, "reset")
DAMAGED = TransportError(Cause.BAD_ANSWER, "the answer's compression cannot be decoded")
CUT = b'{"choices": ['


def said(document: object, status: int = 200) -> Answer:
    return Answer(status, {}, document if isinstance(document, bytes) else json.dumps(document).encode())


def job(status: object, http: int = 200, **fields: object) -> Answer:
    return said({"id": "j", "status": status, **fields}, http)


def refused(status: int, code: str = "", **fields: str) -> Answer:
    return said({"error": {"message": "no", "code": code, **fields}}, status)


def result(choices: int = 1) -> Answer:
    return said({"choices": [{"index": index, "text": "x", "finish_reason": "stop"} for index in range(choices)]})


class Bench:
    """A poller whose requests get the answers in turn."""

    def __init__(self, *answers: Said, expected: int = 1, starts: bool = False) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.grants: list[Grant | None] = []
        self.pauses: list[int] = []
        self.throttled: list[Classification] = []
        self.giving_back = False
        self.key = JobKey("caller", b"body")
        self.lease = FakeLease()
        self.held = ""
        """This request is answered when ``go_on`` is set; ``waiting`` shows that it has been sent."""
        self.go_on = asyncio.Event()
        self.waiting = asyncio.Event()
        hooks = Hooks(self._pause, self._start if starts else None, self._throttled, lambda: self.giving_back)
        self._poller = JobPoller(self._send, hooks, self.key, expected=expected, prompts=1)

    async def run(self) -> Classification:
        return await self._poller.run(self.lease)

    async def _send(self, method: str, path: tuple[str, ...], *, key: JobKey | None, grant: Grant | None) -> Any:
        assert (key is self.key, grant is self.lease) == ((not path,) * 2), "the submission alone has the key"
        self.asked.append(f"{method} {'/'.join(path)}".strip())
        self.grants.append(grant)
        if self.asked[-1] == self.held:
            self.waiting.set()
            await self.go_on.wait()
        if isinstance(answer := self.answers.pop(0), Exception):
            raise answer
        return answer

    async def _pause(self, polls: int) -> None:
        self.pauses.append(polls)

    async def _throttled(self, classification: Classification) -> None:
        self.throttled.append(classification)

    @asynccontextmanager
    async def _start(self) -> AsyncIterator[Grant | None]:
        yield FakeLease()


async def test_a_job_is_submitted_polled_and_its_result_fetched() -> None:
    bench = Bench(job("queued"), job("running", result_expired=False), job("succeeded"), result())
    found = await bench.run()
    assert found.kind is Kind.SUCCESS
    assert bench.asked == [SUBMIT, POLL, POLL, RESULT]
    assert bench.pauses == [0, 1]
    assert bench.key.generation == 0
    assert re.fullmatch(r"brimful-[0-9a-f]{40}-0", str(bench.key))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (result(), Kind.SUCCESS),
        (said({"id": "j", "status": "succeeded", "choices": [{"index": 0, "text": "x"}]}), Kind.SUCCESS),
        (job("running", 300), Kind.PERMANENT),
        (job("running", 500), Kind.TRANSIENT),
        (job(None), Kind.TRANSIENT),
        (said({"id": "", "status": "running"}), Kind.TRANSIENT),
        (said(["running"]), Kind.TRANSIENT),
        (RESET, Kind.TRANSIENT),
    ],
)
async def test_an_answer_to_the_submission_that_is_no_job_is_classified(answer: Said, kind: Kind) -> None:
    bench = Bench(answer)
    assert (await bench.run()).kind is kind
    assert bench.asked == [SUBMIT]
    assert bench.key.generation == 0


@pytest.mark.parametrize(
    ("last", "kind", "cause"),
    [
        (job("expired"), Kind.TRANSIENT, Cause.JOB_EXPIRED),
        (job("succeeded", result_expired=True), Kind.TRANSIENT, Cause.JOB_EXPIRED),
        (job("cancelled"), Kind.PERMANENT, Cause.JOB_CANCELLED),
        (job("canceled"), Kind.PERMANENT, Cause.JOB_CANCELLED),
        (refused(404), Kind.TRANSIENT, Cause.JOB_EXPIRED),
    ],
)
async def test_a_job_that_ends_without_a_result_is_replaced(last: Answer, kind: Kind, cause: Cause) -> None:
    bench = Bench(job("running"), last)
    found = await bench.run()
    assert (found.kind, found.cause, bench.key.generation) == (kind, cause, 1)
    assert bench.asked == [SUBMIT, POLL]


@pytest.mark.parametrize("status", ["cancelled", "canceled"])
async def test_a_job_that_was_cancelled_earlier_is_replaced_at_once(status: str) -> None:
    bench = Bench(job(status))
    found = await bench.run()
    assert (found.kind, found.cause, bench.key.generation) == (Kind.TRANSIENT, Cause.JOB_CANCELLED, 1)


async def test_a_pending_usage_is_polled_for_three_times() -> None:
    pending = job("succeeded", usage_pending=True)
    bench = Bench(pending, pending, pending, pending, result())
    assert (await bench.run()).kind is Kind.SUCCESS
    assert bench.asked == [SUBMIT, POLL, POLL, POLL, RESULT]
    bench = Bench(pending, job("succeeded", usage_pending=False), result())
    assert (await bench.run()).kind is Kind.SUCCESS
    assert bench.asked == [SUBMIT, POLL, RESULT]


@pytest.mark.parametrize(
    "answer",
    [job("succeeded", 202), refused(409, "NOT_READY"), refused(409, "", type="conflict"), refused(425, "job_running")],
)
async def test_a_result_that_is_not_ready_is_polled_for(answer: Answer) -> None:
    bench = Bench(job("succeeded"), answer, job("succeeded"), result())
    assert (await bench.run()).kind is Kind.SUCCESS
    assert bench.asked == [SUBMIT, RESULT, POLL, RESULT]


async def test_a_conflict_of_another_kind_is_the_results() -> None:
    bench = Bench(job("succeeded"), *[refused(409, "locked")] * 5)
    assert (await bench.run()).status == 409
    assert bench.asked == [SUBMIT, *[RESULT] * 5]


@pytest.mark.parametrize("status", [404, 410])
async def test_a_job_whose_result_is_gone_is_replaced(status: int) -> None:
    bench = Bench(job("succeeded"), refused(status))
    found = await bench.run()
    assert (found.kind, found.cause, bench.key.generation) == (Kind.TRANSIENT, Cause.JOB_EXPIRED, 1)


@pytest.mark.parametrize(
    ("answer", "generation"),
    [(refused(500), 0), (RESET, 0), (said(CUT), 1), (DAMAGED, 1)],
    ids=["500", "reset", "cut", "damaged"],
)
async def test_a_result_is_fetched_five_times(answer: Answer | TransportError, generation: int) -> None:
    """One that is damaged each time is replaced."""
    bench = Bench(job("succeeded"), *[answer] * 5)
    assert (await bench.run()).kind is Kind.TRANSIENT
    assert bench.asked == [SUBMIT, *[RESULT] * 5]
    assert bench.pauses == [1, 2, 3, 4]
    assert bench.key.generation == generation
    bench = Bench(job("succeeded"), *[answer] * 4, refused(429), result())
    assert (await bench.run()).kind is Kind.SUCCESS
    assert len(bench.throttled) == 1


@pytest.mark.parametrize(
    ("answer", "kind"), [(refused(400), Kind.PERMANENT), (result(1), Kind.SHORT)], ids=["refused", "short"]
)
async def test_a_result_that_would_be_the_same_again_is_replaced(answer: Answer, kind: Kind) -> None:
    bench = Bench(job("succeeded"), answer, expected=2)
    assert (await bench.run()).kind is kind
    assert bench.key.generation == 1


async def test_a_job_is_given_up_after_five_polls_that_fail_in_a_row() -> None:
    failing: list[Said] = [RESET, refused(429)]
    bench = Bench(job("running"), *[RESET] * 4, job("running"), *failing * 4, RESET)
    found = await bench.run()
    assert (found.kind, found.cause) == (Kind.TRANSIENT, Cause.CONNECTION)
    assert bench.asked == [SUBMIT, *[POLL] * 14]
    assert [one.kind for one in bench.throttled] == [Kind.THROTTLED] * 4
    assert bench.key.generation == 0, "the next attempt finds the same Job"


async def test_a_poll_that_is_refused_is_not_repeated() -> None:
    bench = Bench(job("running"), refused(401))
    assert (await bench.run()).kind is Kind.KEY_REFUSED
    assert bench.asked == [SUBMIT, POLL]


@pytest.mark.parametrize(
    ("answers", "kind", "cause", "generation"),
    [
        ([job("failed", error={"code": "invalid_request", "status": 400})], Kind.PERMANENT, Cause.BAD_REQUEST, 1),
        ([job("failed"), refused(400)], Kind.PERMANENT, Cause.BAD_REQUEST, 1),
        ([job("failed"), refused(500)], Kind.TRANSIENT, Cause.JOB_FAILED, 1),
        ([job("failed"), result()], Kind.TRANSIENT, Cause.JOB_FAILED, 1),
        ([job("failed"), RESET], Kind.TRANSIENT, Cause.CONNECTION, 0),
    ],
)
async def test_why_a_job_failed(answers: list[Said], kind: Kind, cause: Cause, generation: int) -> None:
    bench = Bench(*answers)
    found = await bench.run()
    assert (found.kind, found.cause, bench.key.generation) == (kind, cause, generation)
    assert bench.asked == [SUBMIT, RESULT][: len(answers)]


async def test_a_failed_job_asks_for_no_wait_of_its_own() -> None:
    bench = Bench(job("failed"), Answer(503, {"retry-after": "60"}, b"{}"))
    found = await bench.run()
    assert (found.cause, found.retry_after_s) == (Cause.JOB_FAILED, None)
    assert found.message.startswith("the Job failed: ")


async def test_polls_take_starts_and_a_stale_one_is_replaced() -> None:
    bench = Bench(job("running"), StaleGrant("late"), job("succeeded"), StaleGrant("late"), result(), starts=True)
    assert (await bench.run()).kind is Kind.SUCCESS
    assert bench.asked == [SUBMIT, POLL, POLL, RESULT, RESULT]
    assert all(bench.grants)
    assert len(set(map(id, bench.grants))) == 5
    bench = Bench(job("running"), job("succeeded"), result())
    await bench.run()
    assert bench.grants == [bench.lease, None, None]


async def test_a_stale_submission_is_the_callers() -> None:
    with pytest.raises(StaleGrant):
        await Bench(StaleGrant("late")).run()


async def cancelled(bench: Bench, held: str = POLL, message: str = "") -> list[str]:
    """What is asked after a cancellation, which comes while a request is on its way."""
    bench.held = held
    running = asyncio.create_task(bench.run())
    await bench.waiting.wait()
    asked = len(bench.asked)
    running.cancel(message)
    await asyncio.sleep(0)
    bench.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    return bench.asked[asked:]


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (job("cancelled"), [CANCEL]),
        (refused(404), [CANCEL, DELETE]),
        (refused(405), [CANCEL, DELETE]),
        (refused(500), [CANCEL]),
        (RESET, [CANCEL]),
        (ValueError("broken"), [CANCEL]),
    ],
)
async def test_a_revoked_requests_job_is_cancelled(answer: Said, asked: list[str]) -> None:
    bench = Bench(job("running"), answer, job("cancelled"))
    assert await cancelled(bench) == asked


async def test_a_job_that_the_next_worker_shall_find_is_left() -> None:
    assert await cancelled(Bench(job("running")), message=GIVE_BACK) == []
    stopping, lost = Bench(job("running")), Bench(job("running"))
    stopping.giving_back = lost.lease.lost = True
    assert await cancelled(stopping) == []
    assert await cancelled(lost) == []


@pytest.mark.parametrize(("answer", "asked"), [(job("queued"), [CANCEL]), (refused(500), []), (RESET, [])])
async def test_a_job_is_cancelled_once_its_submission_is_answered(answer: Said, asked: list[str]) -> None:
    assert await cancelled(Bench(answer, job("cancelled")), SUBMIT) == asked


async def test_a_submission_that_is_given_back_is_dropped() -> None:
    """Its Job is found by the key."""
    bench = Bench(job("queued"))
    assert await cancelled(bench, SUBMIT, GIVE_BACK) == []
    assert bench.answers
