"""The spans of requests and attempts, and the header by which a provider continues the trace."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from brimful.outcome import Cause
from brimful.runtime import tracing
from brimful_worker.logs.fields import describe
from brimful_worker.logs.json_format import RecordFormatter
from brimful_worker.provider.answers.answer import Classification, Kind
from support.fake_admission import FakeAdmission, FakeLease
from support.gateways import running_gateway
from support.provider_server import Completions, serving
from support.sampling import KEY, Scripted, bench
from support.spans import in_memory

SECRET = "a prompt that is nobody's business"


@pytest.fixture
def exported() -> Iterator[Any]:
    with in_memory() as exporter:
        yield exporter


def _by_name(exporter: Any, name: str) -> list[Any]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


async def test_a_request_with_two_attempts(monkeypatch: pytest.MonkeyPatch, exported: Any) -> None:
    async with running_gateway(faults="500:x1") as gateway, bench(monkeypatch, gateway.url) as it:

        async def task() -> Any:
            describe(request_id="q-1", task_id="t-1", run="r", units=[[1, "line-1", 0, [0]]])
            return await it.sample(SECRET, n=2, temperature=0.5, model="llama-8b")

        outcome = await asyncio.create_task(task())
        ids = [arrival.request_id for arrival in gateway.request_log.arrivals]
    first, second = _by_name(exported, "brimful attempt")
    [request] = _by_name(exported, "brimful request")
    assert {span.parent.span_id for span in (first, second)} == {request.context.span_id}
    assert (request.kind.name, first.kind.name, request.parent) == ("CONSUMER", "CLIENT", None)
    assert dict(request.attributes) == {
        "brimful.request_id": "q-1",
        "brimful.task_id": "t-1",
        "brimful.run": "r",
        "brimful.line_id": "line-1",
        "brimful.mode": "completion",
        "brimful.workload": "batch",
        "brimful.attempts": 2,
        "brimful.waited_ms": request.attributes["brimful.waited_ms"],
    }
    assert first.attributes["http.response.status_code"] == 500
    assert first.attributes["error.type"] == "server_error"
    assert first.status.status_code.name == "ERROR"
    assert "brimful.retry_cause" not in first.attributes
    found = dict(second.attributes)
    assert [span.attributes["brimful.provider_request_id"] for span in (first, second)] == ids
    assert outcome.provider_request_ids == ids
    usage = outcome.completion["usage"]
    assert {name: found[name] for name in found if name not in ("server.port", "gen_ai.response.id")} == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "acs",
        "gen_ai.request.model": "llama-8b",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.model": "llama-8b",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "brimful.attempt": 2,
        "brimful.prompts": 1,
        "brimful.provider_request_id": ids[1],
        "brimful.retry_cause": "server_error",
        "brimful.waited_ms": found["brimful.waited_ms"],
    }
    text = "".join(span.to_json() for span in exported.get_finished_spans())
    assert SECRET not in text
    assert KEY not in text


@pytest.mark.parametrize(
    ("url", "address", "port"),
    [
        ("http://127.0.0.1:1", "127.0.0.1", 1),
        ("http://localhost", "localhost", None),
        ("http://[::1]:8", "::1", 8),
        ("http://[::1]", "::1", None),
    ],
)
async def test_an_attempt_names_the_server_and_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, exported: Any, url: str, address: str, port: int | None
) -> None:
    class Waited(FakeAdmission):
        def made(self, lease: FakeLease) -> None:
            lease.waited_s = 1.25

    answer = Classification(
        Kind.SUCCESS,
        {
            "id": "c-1",
            "model": "m-2026",
            "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": "many", "total_tokens": 4},
        },
        status=200,
        request_id="req-1",
    )
    async with bench(monkeypatch, url, Waited()) as it:
        request = it.request("a", temperature=0, seed=7, top_p=True, model="m")
        outcome = await it.sampler.sample(request, exchange=Scripted(answer))
        chat = it.request(messages=[{"role": "user", "content": "a"}])
        await it.sampler.sample(chat, exchange=Scripted(Classification(Kind.PERMANENT, cause=Cause.BAD_REQUEST)))
    assert outcome.ok
    first, second = (dict(span.attributes) for span in _by_name(exported, "brimful attempt"))
    assert {name: value for name, value in first.items() if name != "gen_ai.request.max_tokens"} == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "acs",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0,
        "gen_ai.request.seed": 7,
        "server.address": address,
        **({} if port is None else {"server.port": port}),
        "brimful.attempt": 1,
        "brimful.prompts": 1,
        "brimful.waited_ms": 1250,
        "http.response.status_code": 200,
        "brimful.provider_request_id": "req-1",
        "gen_ai.response.id": "c-1",
        "gen_ai.response.model": "m-2026",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 3,
    }
    assert (second["gen_ai.operation.name"], second["gen_ai.request.model"]) == ("chat", "llama-8b")
    assert not [name for name in second if name.startswith("gen_ai.response")]
    served, refused = _by_name(exported, "brimful request")
    assert (served.kind.name, served.attributes["brimful.waited_ms"]) == ("SERVER", 1250)
    assert refused.attributes["error.type"] == "bad_request"


async def test_the_provider_gets_the_attempt_s_span_and_nothing_else_of_the_trace(
    monkeypatch: pytest.MonkeyPatch, exported: Any
) -> None:
    provider = Completions()
    header = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "us=1", "baggage": "user=ann"}.get
    async with serving(provider) as url, bench(monkeypatch, f"{url}/v1") as it:
        with tracing.continued(header):
            await it.sample("a")
        await it.sample("b", messages=[{"role": "user", "content": "b"}])
    [one, two] = _by_name(exported, "brimful attempt")
    sent = [headers for _, headers, _ in provider.requests]
    assert [headers["traceparent"].split("-")[1:3] for headers in sent] == [
        [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"] for span in (one, two)
    ]
    assert one.context.trace_id == int("a" * 32, 16)
    assert two.context.trace_id != one.context.trace_id
    assert not [headers for headers in sent if {"tracestate", "baggage"} & {name.lower() for name in headers}]


async def test_without_a_provider_of_spans_no_header_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Completions()
    async with serving(provider) as url, bench(monkeypatch, f"{url}/v1") as it:
        assert (await it.sample("a")).ok
    [(_, headers, _)] = provider.requests
    assert "traceparent" not in {name.lower() for name in headers}


async def test_a_packed_request_is_one_span_that_counts_its_prompts(
    monkeypatch: pytest.MonkeyPatch, exported: Any
) -> None:
    async with running_gateway() as gateway, bench(monkeypatch, gateway.url) as it:

        async def task() -> None:
            describe(units=[[line, f"p{line}", 0, [0]] for line in range(20)])
            await it.sample([f"prompt {line}" for line in range(20)])

        await asyncio.create_task(task())
    [request], [attempt] = _by_name(exported, "brimful request"), _by_name(exported, "brimful attempt")
    assert attempt.attributes["brimful.prompts"] == 20
    assert request.attributes["brimful.lines"] == 20
    assert request.attributes["brimful.line_ids"] == tuple(f"p{line}" for line in range(16))


async def test_a_job_is_one_attempt_with_the_id_of_its_submission(
    monkeypatch: pytest.MonkeyPatch, exported: Any
) -> None:
    async with running_gateway() as gateway, bench(monkeypatch, gateway.url) as it:
        outcome = await it.sample("a", mode="job", id="j")
        [arrival] = gateway.request_log.arrivals
    [attempt] = _by_name(exported, "brimful attempt")
    assert attempt.attributes["brimful.provider_request_id"] == arrival.request_id
    assert outcome.provider_request_ids == [arrival.request_id]


async def test_a_cancelled_request_ends_its_spans(monkeypatch: pytest.MonkeyPatch, exported: Any) -> None:
    arrived, over = asyncio.Event(), asyncio.Event()

    async def hang(request: web.BaseRequest) -> web.StreamResponse:
        arrived.set()
        await over.wait()
        return web.Response()

    async with serving(hang) as url, bench(monkeypatch, f"{url}/v1") as it:
        sampling = asyncio.create_task(it.sample(SECRET))
        await arrived.wait()
        sampling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sampling
        over.set()  # else the server waits for its handler
    spans = exported.get_finished_spans()
    assert [span.name for span in spans] == ["brimful attempt", "brimful request"]
    assert {span.attributes["error.type"] for span in spans} == {"CancelledError"}


async def test_log_records_name_the_span(
    monkeypatch: pytest.MonkeyPatch, exported: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[dict[str, Any]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(RecordFormatter("w").format(record)))

    caplog.set_level(logging.DEBUG, "brimful_worker.sampling")
    handler, logger = Handler(), logging.getLogger("brimful_worker.sampling.sampler")
    logger.addHandler(handler)
    try:
        async with running_gateway(faults="503:x1") as gateway, bench(monkeypatch, gateway.url) as it:
            await it.sample("a", id="q")
    finally:
        logger.removeHandler(handler)
    [request] = _by_name(exported, "brimful request")
    [line] = [line for line in lines if line.get("attempt") == 1]
    assert line["trace_id"] == f"{request.context.trace_id:032x}"
    assert line["span_id"] == f"{request.context.span_id:016x}"
