"""Jobs of the mock gateway, from submission to the expiry of the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from brimful_worker.gateway import Gateway
from support.gateways import running_gateway
from support.waiting import wait_until_async

ASK: dict[str, Any] = {"model": "llama-8b", "prompt": ["The sky is", "The grass is"], "max_tokens": 2, "n": 2}
FIELDS = {
    "id", "request_id", "model", "status", "cancel_requested", "created_at", "started_at", "finished_at", "expires_at",
    "result_expired", "status_url", "result_url", "usage_pending",
}  # fmt: skip


class Client:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def ask(self, method: str, url: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
        headers = {} if key is None else {"Idempotency-Key": key}
        async with self.session.request(method, url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def submit(self, gateway: Gateway, key: str | None = None, **change: Any) -> Any:
        status, job = await self.ask("POST", f"{gateway.url}/completion-jobs", {**ASK, **change}, key)
        assert status == 202, job
        return job

    async def ended(self, gateway: Gateway, job: Any) -> Any:
        async def poll() -> Any:
            found = (await self.ask("GET", gateway.root + job["status_url"]))[1]
            return found if found["finished_at"] else None

        return await wait_until_async(poll, "the Job to end")

    async def result(self, gateway: Gateway, job: Any) -> tuple[int, Any]:
        return await self.ask("GET", gateway.root + job["result_url"])


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer sk-any"}) as session:
        yield Client(session)


async def test_the_documented_job(client: Client) -> None:
    async with running_gateway(slots=1) as gateway:
        job = await client.submit(gateway, "rollouts-001")
        assert set(job) == FIELDS
        assert (job["status"], job["started_at"], job["usage_pending"]) == ("queued", None, False)
        assert job["request_id"] == "req_job_" + job["id"].replace("-", "")
        job = await client.ended(gateway, job)
        assert (job["status"], job["result_expired"]) == ("succeeded", False)
        assert job["created_at"] <= job["started_at"] <= job["finished_at"] < job["expires_at"]
        status, result = await client.result(gateway, job)
        assert (status, [choice["index"] for choice in result["choices"]]) == (200, [0, 1, 2, 3])
        assert result["usage"] == {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16}
        assert gateway.request_log.times_sampled("The grass is") == [1, 1]
        assert (gateway.request_log.total, gateway.request_log.kinds["submit"]) == (1, 1)


async def test_one_job_per_idempotency_key(client: Client) -> None:
    async with running_gateway() as gateway:
        first = await client.submit(gateway, "k")
        assert (await client.submit(gateway, "k"))["id"] == first["id"]
        assert (await client.submit(gateway, "l"))["id"] != first["id"]
        assert (await client.submit(gateway))["id"] != first["id"]
        status, found = await client.ask("POST", f"{gateway.url}/completion-jobs", {**ASK, "n": 3}, "k")
        assert (status, found["error"]["code"]) == (409, "idempotency_key_reused")
        jobs = gateway.snapshot()["jobs"]
        assert (jobs["created"], jobs["keys"]["k"], jobs["submits"]) == (3, first["id"], {"k": 3, "l": 1})


async def test_after_a_lost_answer_the_key_finds_the_job(client: Client) -> None:
    async with running_gateway(faults="submit/reset:x1") as gateway:
        with pytest.raises(aiohttp.ClientError):
            await client.submit(gateway, "k")
        job = await client.submit(gateway, "k")
        assert gateway.snapshot()["jobs"]["keys"] == {"k": job["id"]}
        gateway.set(faults="submit/500:x1")
        assert (await client.ask("POST", f"{gateway.url}/completion-jobs", ASK, "l"))[0] == 500
        assert gateway.snapshot()["jobs"]["created"] == 1


@pytest.mark.parametrize("way", ["POST", "DELETE"])
async def test_cancel_while_running_and_while_queued(client: Client, way: str) -> None:
    async with running_gateway(latency_s=3600, slots=1) as gateway:
        running = await client.submit(gateway)
        await wait_until_async(lambda: gateway.slots.active == 1, "the running Job")
        queued = await client.submit(gateway)
        for job in (queued, running):
            status, found = await client.result(gateway, job)
            assert (status, found["error"]["code"]) == (409, "job_not_finished")
            url = gateway.root + job["status_url"] + ("/cancel" if way == "POST" else "")
            status, found = await client.ask(way, url)
            assert (status, found["cancel_requested"]) == (200, True)
            assert (await client.ended(gateway, job))["status"] == "cancelled"
            status, found = await client.result(gateway, job)
            assert (status, found["error"]["code"]) == (409, "job_cancelled")
        await wait_until_async(lambda: gateway.slots.active == 0, "the slot to be free")
        assert gateway.snapshot()["jobs"]["by_status"] == {"cancelled": 2}


async def test_a_failed_job_has_the_error_with_its_own_status(client: Client) -> None:
    async with running_gateway(faults="jobfail:x1,job/filter:@grass") as gateway:
        for status, code in ((500, "job_failed"), (400, "content_filter")):
            job = await client.ended(gateway, await client.submit(gateway))
            found = await client.result(gateway, job)
            assert (job["status"], found[0], found[1]["error"]["code"]) == ("failed", status, code)
        assert gateway.request_log.sampled_total == 0


async def test_a_job_holds_its_tokens_when_it_runs(client: Client) -> None:
    async with running_gateway(budget=10) as gateway:
        job = await client.ended(gateway, await client.submit(gateway))
        status, found = await client.result(gateway, job)
        assert (job["status"], status, found["error"]["code"]) == ("failed", 402, "insufficient_quota")


async def test_usage_pending_then_expired(client: Client) -> None:
    async with running_gateway(usage_pending_s=3600.0) as gateway:
        job = await client.ended(gateway, await client.submit(gateway))
        assert job["usage_pending"]
        assert (await client.result(gateway, job))[1]["usage"] is None
        gateway.set(usage_pending_s=0.0)
        assert (await client.result(gateway, job))[1]["usage"]["total_tokens"] == 16
        gateway.set(result_ttl_s=0.0)
        job = await client.ended(gateway, await client.submit(gateway))
        assert (await client.ask("GET", gateway.root + job["status_url"]))[1]["result_expired"]
        status, found = await client.result(gateway, job)
        assert (status, found["error"]["code"]) == (410, "result_expired")


async def test_polls_and_their_faults(client: Client) -> None:
    async with running_gateway(starts=2, polls_count=True) as gateway:
        job = await client.submit(gateway)
        url = gateway.root + job["status_url"]
        gateway.set(faults="poll/503:x1")
        assert (await client.ask("GET", url))[0] == 503
        assert (await client.ask("GET", url))[0] == 429
        gateway.set(polls_count=False, faults="result/trunc:x1")
        await client.ended(gateway, job)
        with pytest.raises(aiohttp.ClientError):
            await client.result(gateway, job)
        assert (await client.result(gateway, job))[0] == 200
        assert (await client.ask("GET", f"{gateway.url}/completion-jobs/none"))[0] == 404
        assert (gateway.request_log.total, gateway.request_log.faults) == (1, {"503": 1, "trunc": 1})


async def test_a_hanging_job_ends_with_the_gateway(client: Client) -> None:
    async with running_gateway(faults="job/hang") as gateway:
        await client.submit(gateway)
        await wait_until_async(lambda: gateway.slots.active == 1, "the running Job")
    assert gateway.slots.active == 0
    assert len(asyncio.all_tasks()) < 5
