"""Streams of the front door: events as the provider sends them, a slot to their end, no failure that looks whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
import redis
import yarl
from aiohttp import web

from brimful.state.status import known_tags, read_status
from brimful_worker.gateway import Gateway
from brimful_worker.local.server.valkey import Valkey
from support.doors import Door, door, until_active
from support.gateways import running_gateway
from support.provider_server import serving
from support.waiting import wait_until_async

DONE = "[DONE]"
HEAD = {"Content-Type": "text/event-stream; charset=utf-8", "x-request-id": "req-of-provider"}


async def stream(here: Door, path: str = "completions", **fields: Any) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and the whole body of a streamed answer."""
    prompt = {} if "messages" in fields else {"prompt": "The sky is"}
    body = {"model": "llama-8b", "max_tokens": 4, "stream": True, **prompt, **fields}
    async with here.http.post(f"{here.url}/{path}", json=body) as answer:
        return answer.status, dict(answer.headers), await answer.read()


def events(body: bytes) -> list[Any]:
    """The data of each event, parsed but for [DONE]. Comments are left out."""
    found = []
    for event in body.decode().split("\n\n"):
        data = "".join(line.removeprefix("data: ") for line in event.splitlines() if line.startswith("data:"))
        if data:
            found.append(DONE if data == DONE else json.loads(data))
    return found


async def test_openai_s_client_streams(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here, here.openai() as api:
        texts = {0: "", 1: ""}
        ends = {}
        async for chunk in await api.completions.create(
            model="llama-8b", prompt="a", max_tokens=3, n=2, stream=True, stream_options={"include_usage": True}
        ):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                ends[choice.index] = choice.finish_reason
            usage = chunk.usage
        assert all(texts.values())
        assert set(ends.values()) == {"length"}
        assert usage is not None
        assert usage.completion_tokens == 6
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        chunks = [
            chunk
            async for chunk in await api.chat.completions.create(
                model="llama-8b", messages=messages, max_tokens=3, stream=True
            )
        ]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices[0].finish_reason == "length"
        assert gateway.request_log.statuses == {200: 2}


async def test_events_pass_through_as_the_provider_sent_them(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    sent = (
        b': the provider\'s own comment\n\ndata: {"choices": [{"index": 0,  "text": "a", "new": 1}]}\r\n\r\n'
        b'event: odd\nid: 7\ndata: {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    )
    async with _provider(lambda write: write(sent)) as root, door(monkeypatch, valkey.url, root) as here:
        status, headers, body = await stream(here)
        assert status == 200
        assert body == sent.partition(b"\n\n")[2]
        assert headers["x-brimful-provider-request-id"] == "req-of-provider"
        assert headers["x-brimful-attempts"] == "1"
        assert headers["x-ratelimit-limit-requests"] == "600"
        assert headers["Content-Type"].startswith("text/event-stream")


Write = Callable[[bytes], Awaitable[None]]


async def test_the_fleet_learns_what_the_headers_of_a_stream_state(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    monkeypatch.setitem(HEAD, "anthropic-ratelimit-requests-limit", "90")
    async with (
        _provider(lambda write: write(CHUNK + LAST + END)) as root,
        door(monkeypatch, valkey.url, root) as here,
    ):
        status, _, _ = await stream(here)
        assert status == 200
        with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
            (tag,) = known_tags(client)
            await wait_until_async(lambda: "starts" in read_status(client, tag).learnt, "the limit is in use")
            assert read_status(client, tag).learnt["starts"].limit == 90


def _provider(answer: Callable[[Write], Awaitable[None]]) -> Any:
    """A provider whose answers are streams that ``answer`` writes; an exception of it cuts the connection."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers=HEAD)
        await response.prepare(request)
        await answer(response.write)
        await response.write_eof()
        return response

    return serving(handle)


CHUNK = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}\n\n'
END = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("sent", "whole"),
    [
        (CHUNK + LAST + END, True),
        (CHUNK + LAST, True),
        (CHUNK + LAST + b"data: [DONE]", True),
        (CHUNK, False),
        (CHUNK + END, False),
        (CHUNK + b"data: {oops}\n\n" + END, False),
        (CHUNK + b'data: {"error": {"message": "no", "code": 500}}\n\n', False),
        (CHUNK + b'event: error\ndata: {"error": {"message": "no", "code": 500}}\n\n' + END, False),
    ],
)
async def test_a_stream_ends_whole_or_with_an_error(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, sent: bytes, whole: bool
) -> None:
    async with _provider(lambda write: write(sent)) as root, door(monkeypatch, valkey.url, root) as here:
        status, _, body = await stream(here)
        assert status == 200
        found = events(body)
        if whole:
            assert body == CHUNK + LAST + END
        else:
            assert found[-1]["error"]["message"]
            assert DONE not in found
            async with here.openai() as api:
                with pytest.raises(openai.APIError):
                    async for _ in await api.completions.create(model="llama-8b", prompt="a", stream=True):
                        pass


@pytest.mark.parametrize("faults", ["errorevent", "reset"])
async def test_a_provider_that_fails_within_a_stream(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, faults: str
) -> None:
    async with running_gateway(faults=faults) as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        status, _, body = await stream(here, prompt="once")
        assert status == 200
        assert events(body)[-1]["error"]
        assert gateway.request_log.attempts("once") == 1, "the caller has had a part of it"


async def test_attempts_are_repeated_before_the_first_event(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        running_gateway(faults="429=0.05:x1,503:x1", retry_after="ms") as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
    ):
        status, headers, body = await stream(here, prompt="again")
        assert (status, headers["x-brimful-attempts"]) == (200, "3")
        assert events(body)[-1] == DONE
        assert gateway.request_log.attempts("again") == 3


async def test_an_empty_stream_is_no_success(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        _provider(lambda write: write(END)) as root,
        door(monkeypatch, valkey.url, root, attempts=2) as here,
    ):
        status, headers, body = await stream(here)
        assert (status, headers["x-should-retry"], headers["x-brimful-attempts"]) == (502, "false", "2")
        assert json.loads(body)["error"]["code"] == "bad_answer"


@pytest.mark.parametrize(("faults", "status"), [("404", 404), ("filter", 400), ("500", 500), ("401", 502)])
async def test_an_error_before_the_first_event_has_its_own_status(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, faults: str, status: int
) -> None:
    async with (
        running_gateway(faults=faults) as gateway,
        door(monkeypatch, valkey.url, gateway.url, attempts=1) as here,
    ):
        got, headers, body = await stream(here)
        assert (got, headers["x-should-retry"]) == (status, "false")
        assert json.loads(body)["error"]["message"]


async def test_comments_keep_a_waiting_stream_open(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        running_gateway(latency_s=60.0) as gateway,
        door(monkeypatch, valkey.url, gateway.url, slots=1, serve_keepalive_s=0.05) as here,
    ):
        first = asyncio.create_task(here.complete("first"))
        await until_active(gateway, 1)
        body = {"prompt": "second", "max_tokens": 2, "stream": True}
        async with here.http.post(f"{here.url}/completions", json=body) as answer:
            assert answer.status == 200
            assert await answer.content.readuntil(b"\n\n") == b": waiting\n\n"
            gateway.options.latency_s = 0.0
            gateway.set(faults="404")
            first.cancel()
            rest = await answer.content.read()
        assert rest.rpartition(b"event: error\n")[1], rest
        assert events(rest)[-1]["error"]["code"] == "model_not_found"
        assert DONE not in events(rest)


async def test_the_slot_is_held_to_the_end_of_the_stream_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    """Also by a caller that does not read."""
    goes_on = asyncio.Event()

    async def answer(write: Write) -> None:
        await write(CHUNK)
        await goes_on.wait()
        for _ in range(40):
            await write(b'data: {"choices": [{"index": 0, "text": "%b"}]}\n\n' % (b"a" * 100_000))
        await write(LAST + END)

    async with _provider(answer) as root, door(monkeypatch, valkey.url, root) as here:
        admission = here.front.process.key.admission
        body = {"prompt": "a", "max_tokens": 2, "stream": True}
        async with here.http.post(f"{here.url}/completions", json=body) as unread:
            assert await unread.content.readuntil(b"\n\n") == CHUNK
            assert admission.held == 1
            goes_on.set()
            await wait_until_async(lambda: admission.held == 0, "the slot to be free")
            assert (await unread.content.read()).endswith(LAST + END)


async def test_a_caller_that_goes_away_frees_its_slot(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        running_gateway(latency_s=0.5, per_token_s=0.5) as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
    ):
        admission = here.front.process.key.admission
        body = {"prompt": "a", "max_tokens": 200, "stream": True}
        async with here.http.post(f"{here.url}/completions", json=body) as answer:
            await answer.content.readuntil(b"\n\n")
            assert (gateway.slots.active, admission.held) == (1, 1)
        await until_active(gateway, 0)
        await wait_until_async(lambda: admission.held == 0 and not here.front.gate.turns, "nothing to be left")


async def test_a_deadline_ends_a_stream_with_an_error(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        running_gateway(per_token_s=0.2) as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
    ):
        body = {"prompt": "a", "max_tokens": 200, "stream": True}
        late = {"X-Brimful-Deadline": "1"}
        async with here.http.post(f"{here.url}/completions", json=body, headers=late) as answer:
            found = events(await answer.read())
        assert found[-1]["error"]["code"] == "deadline_exceeded"
        await until_active(gateway, 0)


async def test_a_provider_that_does_not_stream(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        return web.json_response({"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]})

    async with serving(handle) as root, door(monkeypatch, valkey.url, root) as here:
        status, headers, body = await stream(here)
        assert (status, headers["x-brimful-attempts"]) == (502, "1")
        assert "stream" in json.loads(body)["error"]["message"]


async def test_many_streams_at_once_keep_the_limits(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        running_gateway(latency_s=0.05) as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
    ):
        found = await asyncio.gather(*(stream(here, prompt=f"p{i}", n=2) for i in range(60)))
        assert all(events(body)[-1] == DONE for _, _, body in found)
        _within(gateway, 60)


def _within(gateway: Gateway, requests: int) -> None:
    assert gateway.slots.peak_active <= 16
    assert gateway.request_log.statuses == {200: requests}


async def test_a_stream_is_sampled_once_for_an_idempotency_key(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with running_gateway(faults="errorevent:x1") as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        body = {"prompt": "once", "max_tokens": 4, "stream": True}

        async def ask() -> bytes:
            async with here.http.post(f"{here.url}/completions", json=body, headers={"Idempotency-Key": "k"}) as answer:
                assert answer.headers["Content-Type"].startswith("text/event-stream")
                return await answer.read()

        assert b"error" in await ask()
        found = await asyncio.gather(ask(), ask())
        assert found[0] == found[1] == await ask()
        assert events(found[0])[-1] == DONE
        assert gateway.request_log.attempts("once") == 2


async def test_a_caller_that_hangs_up_after_done_has_its_answer(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    """As OpenAI's client does, which reads no further. By then the answer is kept for its key, and counted."""
    caplog.set_level("INFO", "brimful_worker.serve.app")
    goes_on = asyncio.Event()

    async def answer(write: Write) -> None:
        await write(CHUNK)
        await goes_on.wait()
        await write(LAST + END)

    async with _provider(answer) as root, door(monkeypatch, valkey.url, root) as here:
        body, headers = {"prompt": "a", "max_tokens": 2, "stream": True}, {"Idempotency-Key": "k"}
        url = yarl.URL(f"{here.url}/completions")
        reader, writer = await asyncio.open_connection(url.host, url.port)
        content = json.dumps(body).encode()  # as here.http sends it, since the key is for this one body
        head = (
            f"POST {url.path} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"
        )
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        await reader.readuntil(CHUNK)
        with redis.Redis.from_url(valkey.url) as client:
            client.execute_command("CLIENT PAUSE", 500, "WRITE")  # so that keeping the answer takes time
        goes_on.set()
        await reader.readuntil(END)
        writer.transport.abort()
        await wait_until_async(lambda: _statuses(caplog), "the request to be logged")
        async with here.http.post(url, json=body, headers=headers) as again:
            assert (await again.read(), again.headers.get("x-brimful-replayed")) == (CHUNK + LAST + END, "true")
    assert _statuses(caplog) == [200, 200]


def _statuses(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.__dict__["status"] for record in caplog.records if "path" in record.__dict__]
