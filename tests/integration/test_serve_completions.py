"""The front door: whole answers, errors and headers as OpenAI's clients expect them, within the key's limits."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from brimful.runtime import json_bytes
from brimful_worker.gateway import Gateway
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.serve.completions import reading
from support.doors import KEY, Door, door, until_active
from support.gateways import running_gateway
from support.provider_server import serving
from support.spans import in_memory
from support.waiting import wait_until_async

LARGE = 2**20
"""Bytes of a body that the front door decodes in a thread."""


async def test_openai_s_client_completes_chats_and_lists_models(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with (
        running_gateway() as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
        here.openai() as api,
    ):
        found = await api.completions.create(model="llama-8b", prompt=["a", "b"], max_tokens=3, n=2)
        assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
        assert found.usage is not None
        assert found.usage.completion_tokens == 12
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        chat = await api.chat.completions.create(model="gpt-5.5", messages=messages, max_completion_tokens=3)
        assert chat.choices[0].message.content
        assert {model.id async for model in api.models.list()} == {"llama-8b", "llama-70b", "gpt-5.5"}
        assert (await api.models.retrieve("llama-70b")).id == "llama-70b"
        with pytest.raises(openai.NotFoundError) as raised:
            await api.models.retrieve("meta/none")
        assert raised.value.code == "model_not_found"


async def test_a_hundred_and_twenty_at_once_get_their_answers_within_the_limits(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with (
        running_gateway(latency_s=0.05) as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
        here.openai(timeout=100) as api,
    ):
        calls = (api.completions.create(model="llama-8b", prompt=f"p{i}", max_tokens=3) for i in range(120))
        found = await asyncio.gather(*calls)
        assert all(each.choices[0].text for each in found)
        assert gateway.slots.peak_active <= 16
        assert gateway.request_log.statuses == {200: 120}


class Recorder:
    """A provider that records bodies and answers with what it is told."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[web.Response] = []

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        return self.answers.pop(0)


def completion(text: str = " blue", **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": "stop", "novel": [1]}
    document = {"id": "cmpl-1", "created": 7, "choices": [choice], "usage": {"total_tokens": 3}, "of_its": "own"}
    return json.dumps(document | more, indent=1).encode()


async def test_bodies_pass_through_untouched_both_ways(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    provider = Recorder()
    async with serving(provider) as root, door(monkeypatch, valkey.url, f"{root}/v1") as here:
        provider.answers = [web.Response(body=completion(), headers={"x-request-id": "req-of-provider"})]
        sent = b'{"model": "m",  "prompt": "a", "stop": null, "id": "mine", "mode": "odd", "later": {"a": 1.0}}'
        kind = {"Content-Type": "application/json", "Authorization": "Bearer of-the-caller"}
        async with here.http.post(f"{here.url}/completions", data=sent, headers=kind) as answer:
            assert await answer.read() == completion()
            assert answer.headers["x-request-id"].startswith("req_")
            assert answer.headers["x-brimful-provider-request-id"] == "req-of-provider"
            assert answer.headers["x-brimful-attempts"] == "1"
            assert int(answer.headers["x-brimful-waited-ms"]) >= 0
        assert provider.bodies == [sent]
        assert provider.headers[0]["Authorization"] == f"Bearer {KEY}"
        assert provider.headers[0]["X-Acs-Workload"] == "interactive"
        provider.answers = [web.Response(body=completion())]
        async with here.http.post(f"{here.url}/completions", json={"prompt": "a"}, headers={"X-Acs-Workload": "batch"}):
            pass
        assert json.loads(provider.bodies[1]) == {"prompt": "a", "model": "llama-8b"}
        assert provider.headers[1]["X-Acs-Workload"] == "batch"


async def test_the_limits_of_the_window_are_in_the_headers(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:

        async def remaining() -> int:
            _, headers, _ = await here.complete()
            assert headers["x-ratelimit-limit-requests"] == "600"
            assert headers["x-ratelimit-reset-requests"] == "1m0.8s"
            return int(headers["x-ratelimit-remaining-requests"])

        first = await remaining()
        assert first < 600  # the request itself counts
        assert await remaining() == first - 1


async def test_retries_are_the_front_door_s(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        running_gateway(faults="429=0.05:x1,503:x1,reset:x1", retry_after="ms") as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
    ):
        status, headers, body = await here.complete("a")
        assert (status, headers["x-brimful-attempts"]) == (200, "4")
        assert body["choices"][0]["text"]
        assert gateway.request_log.attempts("a") == 4


@pytest.mark.parametrize(
    ("faults", "status", "code", "attempts"),
    [
        ("500", 500, None, 2),
        ("404", 404, None, 1),
        ("filter", 400, "content_filter", 1),
        ("429", 429, "rate_limited", 3),
        ("502html", 502, "server_error", 2),
        ("reset", 502, "connection", 2),
        ("cutjson", 502, "bad_answer", 2),
        ("error200", 502, None, 2),
    ],
)
async def test_an_error_of_the_provider_s_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, faults: str, status: int, code: str | None, attempts: int
) -> None:
    async with (
        running_gateway(faults=faults, retry_after="none") as gateway,
        door(monkeypatch, valkey.url, gateway.url, attempts=2, throttle_attempts=3) as here,
    ):
        got, headers, body = await here.complete("a")
        assert (got, headers["x-should-retry"], headers["x-brimful-attempts"]) == (status, "false", str(attempts))
        assert body["error"]["message"]
        assert code is None or body["error"]["code"] == code
        assert gateway.request_log.attempts("a") == attempts
        async with here.openai(max_retries=3) as api:
            with pytest.raises(openai.APIStatusError):
                await api.completions.create(model="llama-8b", prompt="b", max_tokens=3)
        assert gateway.request_log.attempts("b") == attempts, "OpenAI's client does not retry"


async def test_the_provider_s_error_object_is_unchanged_but_for_the_key(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    provider = Recorder()
    async with serving(provider) as root, door(monkeypatch, valkey.url, f"{root}/v1") as here:
        error = {"error": {"message": f"no such field for {KEY}", "type": "odd", "code": 77, "inner": {"a": None}}}
        provider.answers = [web.json_response(error, status=422)]
        status, _, body = await here.complete()
        error["error"]["message"] = "no such field for [key]"
        assert (status, body) == (422, error)


async def test_a_refused_key_of_the_fleet_s_is_not_the_caller_s(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with running_gateway(faults="401") as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        status, headers, body = await here.complete()
        assert (status, body["error"]["code"], headers["x-should-retry"]) == (502, "provider_key_refused", "false")


@pytest.mark.parametrize(
    ("path", "method", "kind", "data", "status", "param"),
    [
        ("/v1/embeddings", "POST", "application/json", "{}", 404, None),
        ("/page", "GET", "", "", 404, None),
        ("/v1/completions", "GET", "", "", 405, None),
        ("/v1/completions", "POST", "application/json", "{", 400, None),
        ("/v1/completions", "POST", "application/json", "[]", 400, None),
        ("/v1/completions", "POST", "text/plain", '{"prompt": "a"}', 415, None),
        ("/v1/completions", "POST", "application/json", '{"prompt": "a", "n": "x"}', 400, "n"),
        ("/v1/completions", "POST", "application/json", '{"prompt": {}}', 400, "prompt"),
        ("/v1/completions", "POST", "application/json", '{"prompt": "a", "stream": 1}', 400, "stream"),
        ("/v1/completions", "POST", "application/json", '{"prompt": "a", "n": 2}', 400, "max_tokens"),
        ("/v1/completions", "POST", "application/json", '{"prompt": "a", "temperature": NaN}', 400, "temperature"),
        ("/v1/completions", "POST", "application/json", '{"prompt": "a", "top_p": 1e999}', 400, "top_p"),
        (
            "/v1/completions",
            "POST",
            "application/json",
            '{"prompt": "a", "logit_bias": {"5": -1e999}}',
            400,
            "logit_bias",
        ),
        ("/v1/completions", "POST", "application/json", f'{{"prompt": "a", "seed": {2**70}}}', 400, "seed"),
        ("/v1/chat/completions", "POST", "application/json", '{"prompt": "a"}', 400, "messages"),
    ],
)
async def test_what_cannot_be_a_request_is_refused_in_openai_s_form(
    monkeypatch: pytest.MonkeyPatch,
    valkey: Valkey,
    path: str,
    method: str,
    kind: str,
    data: str,
    status: int,
    param: str | None,
) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        headers = {"Content-Type": kind} if kind else {}
        url = here.url.removesuffix("/v1") + path
        async with here.http.request(method, url, data=data or None, headers=headers) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["param"]) == (status, param)
            assert error["type"] == "invalid_request_error"
            assert "--" not in error["message"]
            assert answer.headers["x-request-id"]
        assert gateway.request_log.total == 0


async def test_a_body_whose_encoding_is_damaged_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        async with here.http.post(f"{here.url}/completions", data=b"no gzip", headers=headers) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (400, "invalid_body")
            assert answer.headers["Connection"] == "close"
        for _ in range(3):
            assert (await here.complete())[0] == 200


async def test_a_body_that_is_too_large(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    monkeypatch.setattr("brimful_worker.serve.app.MAX_BODY", 1000)
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        status, _, body = await here.complete("a" * 2000)
        assert (status, body["error"]["code"]) == (413, "request_too_large")


async def complete_large(here: Door, prompt: Any) -> tuple[int, Any]:
    """As :meth:`Door.complete`, without aiohttp's warning."""
    raw = json.dumps({"model": "llama-8b", "prompt": prompt, "max_tokens": 4}).encode()
    assert len(raw) >= LARGE
    headers = {"Content-Type": "application/json"}
    async with here.http.post(f"{here.url}/completions", data=io.BytesIO(raw), headers=headers) as answer:
        return answer.status, await answer.json()


async def test_a_large_body_is_read_while_other_requests_go_on(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    answered, decode = threading.Event(), json_bytes.decode

    def decode_when_answered(raw: bytes) -> Any:
        assert len(raw) < LARGE or answered.wait(60)
        return decode(raw)

    monkeypatch.setattr(json_bytes, "decode", decode_when_answered)
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        large = asyncio.create_task(complete_large(here, "a" * LARGE))
        assert (await here.complete("b"))[0] == 200
        answered.set()
        assert (await large)[0] == 200


async def test_a_body_of_too_many_values(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    monkeypatch.setattr(reading, "MOST_VALUES", 500)
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        status, body = await complete_large(here, ["a" * (LARGE // 600)] * 600)
        assert (status, body["error"]["code"]) == (413, "too_many_values")
        assert "at most 500" in body["error"]["message"]
        assert (await complete_large(here, ["a" * (LARGE // 400)] * 400))[0] == 200
        assert (await here.complete([1] * 600))[0] == 200, "a short body is decoded at once"


async def test_a_body_that_is_nested_too_deeply_costs_no_start(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    nested = "[" * 1000 + "]" * 1000
    bodies = {
        "completions": f'{{"model": "llama-8b", "prompt": "a", "metadata": {nested}}}',
        "chat/completions": f'{{"model": "llama-8b", "messages": [{{"role": "user", "content": {nested}}}]}}',
        "batches": f'{{"input_file_id": "a", "endpoint": "/v1/completions", "completion_window": "1h", "a": {nested}}}',
    }
    headers = {"Content-Type": "application/json", "Idempotency-Key": "a"}
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        for path, body in bodies.items():
            async with here.http.post(f"{here.url}/{path}", data=body, headers=headers) as answer:
                assert (answer.status, "more than 400 levels" in await answer.text()) == (400, True)
        assert (await here.complete())[1]["x-ratelimit-remaining-requests"] == "599"


async def _disconnect_one(here: Door, gateway: Gateway) -> None:
    """A request that is on the wire, and whose caller goes away."""
    asking = asyncio.create_task(here.complete("gone"))
    await until_active(gateway, 1)
    asking.cancel()
    await until_active(gateway, 0)


async def test_a_caller_that_goes_away_frees_its_slot(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        running_gateway(latency_s=60.0) as gateway,
        door(monkeypatch, valkey.url, gateway.url, slots=1, cooldown_s=0.0) as here,
    ):
        await _disconnect_one(here, gateway)
        first = asyncio.create_task(here.complete("first"))
        await until_active(gateway, 1)
        second = asyncio.create_task(here.complete("second"))
        admission = here.front.process.key.admission
        await wait_until_async(lambda: admission.waiting == 1, "the second to wait")
        second.cancel()
        await wait_until_async(lambda: admission.waiting == 0, "the second to be forgotten")
        first.cancel()
        await wait_until_async(lambda: admission.held == 0, "the slot to be free")
        assert gateway.request_log.attempts("second") == 0
        assert not here.front.gate.turns


async def test_a_deadline_bounds_waiting_and_sending(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        running_gateway(latency_s=60.0) as gateway,
        door(monkeypatch, valkey.url, gateway.url, slots=1) as here,
    ):
        body = {"prompt": "a", "max_tokens": 2}
        asking = asyncio.create_task(here.post("completions", body))
        await until_active(gateway, 1)
        waited = await here.post("completions", body, X_Brimful_Deadline="0.2")
        assert (waited[0], waited[2]["error"]["code"]) == (504, "deadline_exceeded")
        asking.cancel()
        sent = await here.post("completions", body, X_Brimful_Deadline="3")
        assert (sent[0], sent[1]["x-should-retry"]) == (504, "false")
        wrong = await here.post("completions", body, X_Brimful_Deadline="soon")
        assert wrong[0] == 400


async def test_without_redis_nothing_is_sent_and_callers_are_told_when_to_come_back(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        assert (await here.complete())[0] == 200
        valkey.stop()
        status, headers, body = await here.complete("later")
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "redis_away", "5")
        async with here.http.get(here.url.removesuffix("v1") + "readyz") as ready:
            assert ready.status == 503
        async with here.http.get(here.url.removesuffix("v1") + "healthz") as healthy:
            assert healthy.status == 200
        assert gateway.request_log.attempts("later") == 0


async def test_an_idempotency_key_is_sampled_once_across_front_doors(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with (
        running_gateway(latency_s=0.3) as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
        door(monkeypatch, valkey.url, gateway.url, clean=False) as there,
    ):
        same = {"prompt": "once", "max_tokens": 4}
        asking = [door.post("completions", same, Idempotency_Key="k1") for door in (here, there, here, there)]
        found = await asyncio.gather(*asking)
        assert {status for status, _, _ in found} == {200}
        assert len({json.dumps(body) for _, _, body in found}) == 1
        assert sorted("x-brimful-replayed" in headers for _, headers, _ in found) == [False, True, True, True]
        assert gateway.request_log.attempts("once") == 1
        other = await there.post("completions", {**same, "max_tokens": 5}, Idempotency_Key="k1")
        assert (other[0], other[2]["error"]["code"]) == (422, "idempotency_key_reused")
        assert (await there.post("completions", same, Idempotency_Key="k2"))[2] != found[0][2]
        assert gateway.request_log.attempts("once") == 2


async def test_a_request_without_an_answer_leaves_its_idempotency_key_to_the_next(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with running_gateway(faults="404:x1") as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        body = {"prompt": "again", "max_tokens": 4}
        assert (await here.post("completions", body, Idempotency_Key="k"))[0] == 404
        assert (await here.post("completions", body, Idempotency_Key="k"))[0] == 200
        gateway.options.latency_s = 60.0
        slow = {"prompt": "gone", "max_tokens": 4}
        first = asyncio.create_task(here.post("completions", slow, Idempotency_Key="k3"))
        await until_active(gateway, 1)
        second = asyncio.create_task(here.post("completions", slow, Idempotency_Key="k3"))
        gateway.options.latency_s = 0.0
        first.cancel()
        assert (await second)[0] == 200
        assert gateway.request_log.attempts("gone") == 2


async def test_a_key_that_is_replaced_in_its_file_is_used_from_then_on(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("sk-first-0001")
    monkeypatch.setenv("ACS_API_KEY_FILE", str(file))
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url, key=None) as here:
        gateway.options.keys = ("sk-first-0001",)
        assert (await here.complete())[0] == 200
        file.write_text("sk-second-002")
        gateway.options.keys = ("sk-second-002",)
        here.front.process.look_at_key()
        settings = here.front.process.key
        await wait_until_async(lambda: settings.settings.api_key.get_secret_value() == "sk-second-002", "the new key")
        assert (await here.complete())[0] == 200


async def test_a_provider_without_a_list_of_models_has_the_profile_s(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    provider = Recorder()
    async with serving(provider) as root, door(monkeypatch, valkey.url, f"{root}/v1") as here:
        provider.answers = [web.Response(status=404)]
        for _ in range(2):  # it is asked once
            async with here.http.get(f"{here.url}/models") as answer:
                assert [model["id"] for model in (await answer.json())["data"]] == ["llama-8b"]


async def test_interactive_requests_go_before_batch(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    provider = Recorder()
    async with serving(provider) as root, door(monkeypatch, valkey.url, f"{root}/v1", slots=1) as here:
        admission = here.front.process.key.admission
        provider.answers = [web.Response(body=completion()) for _ in range(4)]
        async with admission.slot():
            asking = []
            for prompt, workload in (("b1", "batch"), ("b2", "batch"), ("i", "interactive")):
                body = {"prompt": prompt, "model": "m"}
                asking.append(asyncio.create_task(here.post("completions", body, X_Acs_Workload=workload)))
                await wait_until_async(lambda: admission.waiting == len(asking), "it to wait")
        assert [status for status, _, _ in await asyncio.gather(*asking)] == [200, 200, 200]
        assert [json.loads(body)["prompt"] for body in provider.bodies] == ["i", "b1", "b2"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_s_own_request_id_is_taken_if_it_is_harmless(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO, "brimful_worker.serve.app")
    kept = []
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        body = {"model": "llama-8b", "prompt": "Hi", "max_tokens": 4, "stream": stream}
        for sent in ("order-17/step:3", "order-17/step:3", "a b", "x" * 129, "ä", ""):
            headers = {"X-Request-Id": sent}
            async with here.http.post(f"{here.url}/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
                kept.append(answer.headers["x-request-id"])
                await answer.read()
        await wait_until_async(lambda: len(_of_the_app(caplog)) == 6, "a log record for each request", 60)
        arrivals = [arrival.request_id for arrival in gateway.request_log.arrivals]
    assert kept[:2] == ["order-17/step:3"] * 2
    assert all(id.startswith("req_") for id in kept[2:])
    logged = _of_the_app(caplog)
    assert [record.getMessage().split(", ")[1] for record in logged] == kept
    assert [record.__dict__["provider_request_ids"] for record in logged] == [[id] for id in arrivals]


def _of_the_app(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "brimful_worker.serve.app"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_s_trace_and_id_are_continued(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, stream: bool
) -> None:
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with in_memory() as exported:
        async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
            body = {"model": "llama-8b", "prompt": "Hi", "max_tokens": 4, "stream": stream}
            headers = {"X-Request-Id": "order-17", "traceparent": f"00-{trace}-{span}-01"}
            async with here.http.post(f"{here.url}/completions", json=body, headers=headers) as answer:
                await answer.read()
            async with here.http.post(f"{here.url}/completions", json=body) as answer:
                await answer.read()
        spans = {name: [one for one in exported.get_finished_spans() if one.name == name] for name in _SPANS}
    [first, second], [attempt, _] = spans["brimful request"], spans["brimful attempt"]
    assert (f"{first.context.trace_id:032x}", f"{first.parent.span_id:016x}") == (trace, span)
    assert (first.kind.name, first.attributes["brimful.request_id"]) == ("SERVER", "order-17")
    assert attempt.parent.span_id == first.context.span_id
    assert attempt.attributes["brimful.provider_request_id"]
    assert attempt.attributes["http.response.status_code"] == 200
    assert second.parent is None, "the same connection, another request"


_SPANS = ("brimful request", "brimful attempt")
