"""The mock gateway over HTTP: answers, refusals, limits, holds, and clients that disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import pytest
from aiohttp.web import StreamResponse

from brimful_worker.gateway import Fault, FaultContext, Gateway, Rule, prompt_digest, sample_text
from support.gateways import running_gateway
from support.waiting import wait_until_async

KEY = {"Authorization": "Bearer sk-any"}
ASK: dict[str, Any] = {"model": "llama-8b", "prompt": "The sky is", "max_tokens": 4}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers=KEY, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def post(session: aiohttp.ClientSession, url: str, body: Any, **more: Any) -> tuple[int, Any, Any]:
    """(status, JSON, headers)"""
    async with session.post(url, json=body, **more) as answer:
        return answer.status, await answer.json(), answer.headers


async def test_the_documented_request(session: aiohttp.ClientSession) -> None:
    async with running_gateway() as gateway:
        body = {"model": "llama-8b", "prompt": ["The sky is", "The grass is"], "max_tokens": 2, "n": 2}
        for base in (gateway.url, gateway.root):
            status, found, _ = await post(session, f"{base}/completions", body)
            assert status == 200
            assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
            assert found["usage"] == {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16}
        for index, choice in enumerate(found["choices"]):
            digest = prompt_digest(body["prompt"][index // 2])
            text, _, finish = sample_text(digest, index % 2, max_tokens=2, model="llama-8b")
            assert (choice["text"], choice["finish_reason"]) == (text, finish)
        assert gateway.request_log.times_sampled("The sky is") == [2, 2]
        assert (gateway.request_log.sampled_total, gateway.request_log.sampled_repeated) == (8, 4)


async def test_tokens_chat_stop_and_seed(session: aiohttp.ClientSession) -> None:
    async with running_gateway() as gateway:
        _, found, _ = await post(session, f"{gateway.url}/completions", {**ASK, "prompt": [[1, 2], [3]], "n": 2})
        assert (len(found["choices"]), found["usage"]["prompt_tokens"]) == (4, 3)
        chat = {"model": "gpt-5.5", "messages": [{"role": "user", "content": "Hi"}], "n": 2, "max_tokens": 5}
        _, found, _ = await post(session, f"{gateway.url}/chat/completions", chat)
        assert found["object"] == "chat.completion"
        assert len({choice["message"]["content"] for choice in found["choices"]}) == 2
        texts = []
        for more in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {"stop": " "}):
            _, found, _ = await post(session, f"{gateway.url}/completions", {**ASK, **more})
            texts.append(found["choices"][0])
        assert texts[0] == texts[1] != texts[2]
        assert (texts[3]["text"], texts[3]["finish_reason"]) == ("", "stop")


async def test_lone_surrogates_are_read_and_written(session: aiohttp.ClientSession) -> None:
    async with running_gateway(text="unicode") as gateway:
        _, found, _ = await post(session, f"{gateway.url}/completions", {**ASK, "prompt": "\ud800", "max_tokens": 99})
        text, _, _ = sample_text(prompt_digest("\ud800"), 0, max_tokens=99, model="llama-8b", odd=True)
        assert found["choices"][0]["text"] == text


async def test_keys_routes_and_bodies(session: aiohttp.ClientSession) -> None:
    async with running_gateway(keys=("right",), max_body_bytes=100) as gateway:
        url = f"{gateway.url}/completions"
        for headers in ({"Authorization": ""}, {"Authorization": "Bearer "}, {"Authorization": "Bearer wrong"}):
            status, found, _ = await post(session, url, ASK, headers=headers)
            assert (status, found["error"]["type"]) == (401, "authentication_error")
        right = {"Authorization": "Bearer right"}
        assert (await post(session, url, ASK, headers=right))[0] == 200
        for header in gateway.options.key_headers:
            assert (await post(session, url, ASK, headers={"Authorization": "", header: "wrong"}))[0] == 401
            assert (await post(session, url, ASK, headers={"Authorization": "", header: "right"}))[0] == 200
        status, found, _ = await post(session, url, {**ASK, "prompt": "x" * 200}, headers=right)
        assert (status, found["error"]["code"]) == (413, "body_too_large")
        async with session.post(url, data=b"{", headers=right) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (400, "invalid_json")
        assert (await post(session, f"{gateway.url}/embeddings", ASK))[0] == 404
        async with session.get(url) as answer:
            assert answer.status == 405
        async with session.get(f"{gateway.url}/models", headers=right) as answer:
            assert "llama-8b" in [model["id"] for model in (await answer.json())["data"]]
        for base in (gateway.url, gateway.root):
            async with session.get(f"{base}/healthz") as answer:
                assert answer.status == 200
        assert gateway.request_log.statuses == {401: 5, 200: 3, 413: 1, 400: 1}


async def test_slots_waiters_and_queue_full(session: aiohttp.ClientSession) -> None:
    opened = asyncio.Event()

    async def wait_for_the_gate(context: FaultContext) -> StreamResponse:
        await opened.wait()
        return context.whole_response()

    rule = Rule(Fault("gate", wait_for_the_gate, after_work=True))
    async with running_gateway(slots=2, waiters=3, faults=[rule]) as gateway:
        calls = [post(session, f"{gateway.url}/completions", {**ASK, "prompt": str(n)}) for n in range(8)]
        waiting = asyncio.gather(*calls)
        await wait_until_async(lambda: gateway.request_log.statuses[429] == 3, "three refusals")
        opened.set()
        found = await waiting
        assert sorted(status for status, _, _ in found) == [200] * 5 + [429] * 3
        refused = [(body["error"]["code"], headers["Retry-After"]) for status, body, headers in found if status == 429]
        assert refused == [("queue_full", "1")] * 3
        assert (gateway.slots.peak_active, gateway.slots.peak_waiting, gateway.slots.active) == (2, 3, 0)
        assert gateway.request_log.codes == {"queue_full": 3}


async def test_the_window_and_every_form_of_retry_after(session: aiohttp.ClientSession) -> None:
    async with running_gateway(starts=3, window_s=3600) as gateway:
        url = f"{gateway.url}/completions"
        # a request that is refused for its body counts as a start
        assert [(await post(session, url, body))[0] for body in (ASK, {**ASK, "n": 0}, ASK, ASK)] == [
            200,
            400,
            200,
            429,
        ]
        for form in ("seconds", "fraction", "ms", "date", "none"):
            gateway.set(retry_after=form)
            status, found, headers = await post(session, url, ASK)
            assert (status, found["error"]["code"]) == (429, "rate_limited")
            value = headers.get("retry-after-ms" if form == "ms" else "Retry-After")
            if form == "none":
                assert value is None
            elif form == "date":
                assert parsedate_to_datetime(value)
            else:
                assert 3000 < float(value) / (1000 if form == "ms" else 1) <= 3601
        assert (gateway.request_log.most_arrivals, gateway.window.peak) == (9, 3)
        gateway.set(starts=None)
        assert (await post(session, url, ASK))[0] == 200


async def test_holds_and_an_exhausted_budget(session: aiohttp.ClientSession) -> None:
    async with running_gateway(budget=30) as gateway:
        url = f"{gateway.url}/completions"
        gateway.set(faults="hang:x1")
        async with asyncio.TaskGroup() as group:
            held = group.create_task(post(session, url, {**ASK, "max_tokens": 20}))  # holds 4 + 20
            await wait_until_async(lambda: gateway.budget.held == 24, "the hold")
            status, found, _ = await post(session, url, ASK)  # would hold 4 + 4
            assert (status, found["error"]["code"]) == (402, "insufficient_quota")
            held.cancel()
        await wait_until_async(lambda: gateway.budget.held == 0, "the hold to end")
        assert (await post(session, url, ASK))[0] == 200
        assert gateway.budget.used == 8
        gateway.set(budget_status=429, budget=10)
        status, found, headers = await post(session, url, ASK)
        assert (status, found["error"]["code"]) == (429, "insufficient_quota")
        assert "Retry-After" not in headers


@pytest.mark.parametrize("disconnect", ["free", "finish"])
async def test_a_client_that_disconnects(disconnect: str) -> None:
    async with running_gateway(latency_s=1.0 if disconnect == "finish" else 3600, disconnect=disconnect) as gateway:
        async with aiohttp.ClientSession(headers=KEY) as session:
            call = asyncio.create_task(post(session, f"{gateway.url}/completions", ASK))
            await wait_until_async(lambda: gateway.slots.active == 1, "the request")
            call.cancel()
            await wait_until_async(lambda: gateway.request_log.gone == 1, "the client to disconnect")
        if disconnect == "finish":
            assert gateway.slots.active == 1
        await wait_until_async(lambda: gateway.slots.active == 0, "the slot to be free")
        assert gateway.request_log.sampled_total == 0
        assert gateway.budget.used == (8 if disconnect == "finish" else 0)
        await wait_until_async(lambda: gateway.request_log.connections_open == 0, "the connection to close")


async def test_a_waiter_that_disconnects_leaves_the_queue(session: aiohttp.ClientSession) -> None:
    async with running_gateway(slots=1, faults="hang:x1") as gateway:
        url = f"{gateway.url}/completions"
        calls = [asyncio.create_task(post(session, url, ASK))]
        await wait_until_async(lambda: gateway.slots.active == 1, "the first request")
        calls += [asyncio.create_task(post(session, url, ASK)) for _ in range(2)]
        await wait_until_async(lambda: gateway.slots.waiting == 2, "two waiters")
        calls[1].cancel()
        await wait_until_async(lambda: gateway.slots.waiting == 1, "one waiter")
        calls[0].cancel()
        assert (await calls[2])[0] == 200
        await asyncio.wait(calls)


async def test_the_ledger_over_http(session: aiohttp.ClientSession) -> None:
    async with running_gateway() as gateway:
        await post(session, f"{gateway.url}/completions", ASK, headers={"X-Acs-Workload": "batch"})
        async with session.get(f"{gateway.root}/ledger?arrivals=1") as answer:
            ledger = json.loads(await answer.read())
        assert ledger["workloads"] == {"batch": 1}
        assert ledger["rollouts"] == {"total": 1, "distinct": 1, "repeated": 0, "prompts": 1}
        assert [(a["kind"], a["status"], a["workload"]) for a in ledger["arrivals_list"]] == [
            ("completions", 200, "batch")
        ]
        assert "sk-any" not in json.dumps(ledger)
        _, found, _ = await post(session, f"{gateway.root}/ledger/prompts", {"prompts": ["The sky is", "no"]})
        assert found["prompts"] == [{"attempts": 1, "sampled": [1]}, {"attempts": 0, "sampled": []}]
        _, found, _ = await post(session, f"{gateway.root}/ledger/reset", {})
        assert (found["arrivals"], found["rollouts"]["total"], found["peak_active"]) == (0, 0, 0)


async def test_options_and_faults_change_while_it_runs(session: aiohttp.ClientSession) -> None:
    async with running_gateway() as gateway:
        status, found, _ = await post(session, f"{gateway.root}/faults", {"faults": "503:x1"})
        assert (status, found) == (200, {"rules": [{"fault": "503", "happened": 0}]})
        assert [(await post(session, f"{gateway.url}/completions", ASK))[0] for _ in range(2)] == [503, 200]
        assert (await post(session, f"{gateway.root}/options", {"slots": 3}))[0] == 200
        assert gateway.options.slots == 3
        for path, body in (("faults", {"faults": "what"}), ("faults", {}), ("options", {"slot": 1})):
            status, found, _ = await post(session, f"{gateway.root}/{path}", body)
            assert status == 400, found


async def test_it_stops_with_requests_in_flight() -> None:
    gateway = await Gateway().start()
    gateway.set(faults="hang")
    async with aiohttp.ClientSession(headers=KEY) as session:
        call = asyncio.create_task(post(session, f"{gateway.url}/completions", ASK))
        await wait_until_async(lambda: gateway.slots.active == 1, "the request")
        await gateway.stop()
        with pytest.raises(aiohttp.ClientError):
            await call
    assert gateway.slots.active == 0
