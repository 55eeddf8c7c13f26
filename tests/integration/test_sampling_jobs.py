"""Jobs at the mock gateway: one Job per idempotency key, whatever happens to the requests that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from brimful.outcome import Cause, Outcome
from brimful_worker.gateway import Gateway, GatewayOptions
from brimful_worker.provider import GIVE_BACK
from support.fake_admission import FakeAdmission
from support.sampling import Bench, bench
from support.waiting import wait_until_async


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with Gateway(GatewayOptions(latency_s=0.05, per_token_s=0.0)) as running:
        yield running


def job(it: Bench, scope: str = "run-1", **fields: Any) -> asyncio.Task[Outcome]:
    request = it.request(["a", "b"], n=2, mode="job", **{"id": "7", **fields})
    return asyncio.create_task(it.sampler.sample(request, scope=scope))


def statuses(gateway: Gateway) -> dict[str, int]:
    found: dict[str, int] = gateway.jobs.snapshot()["by_status"]
    return found


async def test_submit_poll_fetch(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await job(it)
        assert outcome.completion is not None
        assert [choice["index"] for choice in outcome.completion["choices"]] == [0, 1, 2, 3]
        assert (outcome.attempts, outcome.retries) == (1, {})
        assert statuses(gateway) == {"succeeded": 1}
        _, *polls = it.admission.grants
        assert len(polls) >= 2, "polls and the result take starts"
        assert all(poll.sent_at is not None for poll in polls)
        assert it.admission.grants[0].reports[0]["tokens_used"] == outcome.completion["usage"]["total_tokens"]
    assert gateway.snapshot()["workloads"] == {"batch": 1}


async def test_a_repeated_request_finds_the_same_job(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, gateway.url) as it:
        first = await job(it)
        second = await job(it)
        other_run = await job(it, scope="run-2")
        other_request = await job(it, id="8")
    assert first.completion == second.completion
    assert other_run.ok
    assert other_request.ok
    created = gateway.jobs.snapshot()
    assert created["created"] == 3
    assert sorted(created["submits"].values()) == [1, 1, 2]


async def test_without_scope_and_id_each_call_is_a_job_of_its_own(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(monkeypatch, gateway.url) as it:
        await asyncio.gather(job(it, scope="", id=None), job(it, scope="", id=None))
    assert gateway.jobs.snapshot()["created"] == 2


@pytest.mark.parametrize("told", ["by the message", "by the worker that stops"])
async def test_a_request_given_back_leaves_its_job_to_the_next_worker(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    gateway.set(latency_s=0.4)
    async with bench(monkeypatch, gateway.url) as it:
        stopping = asyncio.Event()
        it.sampler.stopping = stopping.is_set
        task = job(it)
        await wait_until_async(lambda: statuses(gateway).get("running"), "the Job to run")
        if told == "by the message":
            task.cancel(GIVE_BACK)
        else:
            stopping.set()
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert statuses(gateway) == {"running": 1}
    async with bench(monkeypatch, gateway.url) as it:
        assert (await job(it)).ok
    assert statuses(gateway) == {"succeeded": 1}


async def test_a_revoked_requests_job_is_cancelled_and_a_later_call_makes_a_new_one(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(latency_s=60.0)
    async with bench(monkeypatch, gateway.url) as it:
        task = job(it)
        await wait_until_async(lambda: statuses(gateway).get("running"), "the Job to run")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert it.admission.active == 0
        await wait_until_async(lambda: statuses(gateway) == {"cancelled": 1}, "the Job to be cancelled")
        gateway.set(latency_s=0.0)
        outcome = await job(it)
    assert outcome.ok
    assert outcome.retries == {"job_cancelled": 1}
    assert statuses(gateway) == {"cancelled": 1, "succeeded": 1}


async def test_a_job_is_cancelled_when_revoked_during_its_submission(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(latency_s=60.0, faults="slow=0.2")
    async with bench(monkeypatch, gateway.url) as it:
        task = job(it)
        await wait_until_async(lambda: it.admission.sent == 1, "the submission to be on the wire")
        await wait_until_async(lambda: gateway.request_log.kinds["submit"] == 1, "the gateway to see it")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await wait_until_async(lambda: statuses(gateway) == {"cancelled": 1}, "the Job to be cancelled")


async def test_a_lost_lease_leaves_the_job_to_the_next_attempt(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(latency_s=0.3)
    async with bench(monkeypatch, gateway.url) as it:
        task = job(it)
        await wait_until_async(lambda: statuses(gateway).get("running"), "the Job to run")
        it.admission.lose(task)
        outcome = await task
    assert outcome.ok
    assert outcome.retries == {"lease_lost": 1}
    assert gateway.jobs.snapshot()["created"] == 1


async def test_a_job_cancelled_elsewhere_fails_its_request(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.set(latency_s=60.0)
    async with bench(monkeypatch, gateway.url) as it:
        task = job(it)
        await wait_until_async(lambda: statuses(gateway).get("running"), "the Job to run")
        (job_id,) = gateway.jobs.snapshot()["keys"].values()
        gateway.jobs.cancel(job_id)
        outcome = await task
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.failure.permanent) == (Cause.JOB_CANCELLED, True)


async def test_a_failed_job_is_replaced_by_a_new_one(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.set(faults="jobfail:x2")
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await job(it)
    assert outcome.ok
    assert (outcome.attempts, outcome.retries) == (3, {"job_failed": 2})
    assert statuses(gateway) == {"failed": 2, "succeeded": 1}
    assert set(gateway.jobs.snapshot()["submits"].values()) == {1}


@pytest.mark.parametrize(
    ("fault", "cause"), [("job/400:x1", Cause.BAD_REQUEST), ("job/filter:x1", Cause.CONTENT_FILTER)]
)
async def test_a_jobs_error_result_has_a_status_of_its_own(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, fault: str, cause: Cause
) -> None:
    gateway.set(faults=fault)
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await job(it)
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.failure.permanent) == (cause, True)
    assert gateway.jobs.snapshot()["created"] == 1


@pytest.mark.parametrize(
    "faults",
    [
        "submit/500:x2",
        "submit/reset:x2",
        "poll/500:x3",
        "poll/reset:x3",
        "poll/html200:x2",
        "poll/429bare:x3",
        "result/502html:x2",
        "result/trunc:x2",
        "result/resetmid:x1",
    ],
)
async def test_network_faults_never_make_a_second_job(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, faults: str
) -> None:
    gateway.set(faults=faults)
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await job(it)
    assert outcome.ok
    assert gateway.jobs.snapshot()["created"] == 1


async def test_an_expired_result_is_sampled_again(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(monkeypatch, gateway.url) as it:
        assert (await job(it)).ok
        (job_id,) = gateway.jobs.snapshot()["keys"].values()
        gateway.jobs.get(job_id).expires = 0.0
        outcome = await job(it)
    assert outcome.ok
    assert outcome.retries == {"job_expired": 1}
    assert gateway.jobs.snapshot()["created"] == 2


async def test_pending_usage_is_waited_for(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.set(usage_pending_s=0.05)
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await job(it)
        assert outcome.completion is not None
        assert outcome.completion["usage"]["total_tokens"] > 0
        gateway.set(usage_pending_s=60.0)
        outcome = await job(it, id="8")
        assert outcome.completion is not None
        assert outcome.completion["usage"]["estimated"] is True, "it did not come, and is estimated"


async def test_the_missing_choices_of_a_short_job_are_another_job(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.set(faults="result/short=1:x1")
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await job(it)
    assert outcome.completion is not None
    assert [choice["index"] for choice in outcome.completion["choices"]] == [0, 1, 2, 3]
    assert gateway.jobs.snapshot()["created"] == 2


async def test_polls_take_no_starts_if_the_profile_says_so(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "p.toml").write_text("[acs]\njob_polls_count = false\n")
    async with bench(monkeypatch, gateway.url, FakeAdmission(), profiles=tmp_path / "p.toml") as it:
        assert (await job(it)).ok
        assert len(it.admission.grants) == 1


async def test_jobs_in_all_slots_do_not_wait_for_their_own_polls(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(monkeypatch, gateway.url, FakeAdmission(1)) as it:
        assert (await job(it)).ok
        assert it.admission.sent > 1


async def test_a_job_takes_its_hold_when_it_runs(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.set(budget=1)
    async with bench(monkeypatch, gateway.url) as it:
        outcome = await job(it)
    assert outcome.failure is not None
    assert outcome.failure.cause is Cause.BUDGET
