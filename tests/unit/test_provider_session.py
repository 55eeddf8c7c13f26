"""The session with the provider: what each of its requests carries, and what none of its answers may quote."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from brimful.config import Settings
from brimful.errors import SettingError
from brimful.names import Mode
from brimful.outcome import Cause
from brimful.request import Request
from brimful_worker.provider import Provider
from brimful_worker.provider.answers.answer import Answer, Kind, TransportError
from brimful_worker.provider.assembly import Part
from brimful_worker.provider.jobs import Hooks, JobKey
from support.fake_admission import FakeLease
from support.provider_server import serving
from support.waiting import wait_until_async

KEY = "sk-canary-5f2d9c"
BEHIND = "pk-behind-it-77aa"


class Server:
    """Answers with ``document``, and under ``status``; its answers have the ids r1, r2, …"""

    def __init__(self) -> None:
        self.requests: list[web.BaseRequest] = []
        self.bodies: list[bytes] = []
        self.status = 200
        self.document: object = {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        document = self.document.pop(0) if isinstance(self.document, list) else self.document
        return web.json_response(document, status=self.status, headers={"x-request-id": f"r{len(self.requests)}"})

    @property
    def asked(self) -> list[str]:
        return [f"{request.method} {request.path_qs}" for request in self.requests]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def url(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    async with serving(server) as url:
        monkeypatch.setenv("ACS_API_KEY", KEY)
        monkeypatch.setenv("ACS_API_BASE", url)
        yield url


def part(settings: Settings, prompt: object = "tell me more", **fields: object) -> Part:
    request = Request.parse({"prompt": prompt, "max_tokens": 4, **fields}, settings.profile)
    return Part(request, tuple(range(request.choices)))


def nothing() -> None:
    pass


@pytest.mark.parametrize("key", ["sk-“a”", "sk-a\nb", "sk-a\x7f", "sk-é"])
def test_a_key_that_no_header_can_carry_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACS_API_KEY", key)
    monkeypatch.setenv("ACS_API_BASE", "http://127.0.0.1:9")
    with pytest.raises(SettingError, match="ACS_API_KEY") as refused:
        Provider(Settings.load())
    assert "sk-" not in str(refused.value)


async def test_a_request_is_sent_under_its_grant_and_its_answer_classified(url: str, server: Server) -> None:
    settings, lease, sent = Settings.load(), FakeLease(), []
    async with Provider(settings) as provider:
        assert provider.host == url.removeprefix("http://")
        asked = part(settings, ["a", "b"])
        body = provider.body(asked)
        found = await provider.complete(asked, body, lease, lambda: sent.append(lease.sent_at))
        assert (found.kind, found.missing, found.request_id) == (Kind.SHORT, (1,), "r1")
        assert sent == [lease.sent_at]
        assert sent[0] is not None
        exchanged = await provider.exchange(asked, body, FakeLease(), nothing)
    assert isinstance(exchanged, Answer)
    assert (exchanged.status, exchanged.request_id) == (200, "r2")
    assert server.asked == ["POST /v1/completions"] * 2
    assert server.bodies == [body, body]
    headers = server.requests[0].headers
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert (headers["Accept"], headers["User-Agent"]) == ("application/json", "brimful")
    assert (headers["Content-Type"], headers["X-Acs-Workload"]) == ("application/json", "batch")


async def test_a_transport_error_has_no_request_id(url: str) -> None:
    settings = Settings.load()
    found = Provider(settings).classify(TransportError(Cause.CONNECTION, "reset"), part(settings))
    assert (found.kind, found.request_id) == (Kind.TRANSIENT, "")


async def test_the_list_of_models_takes_no_start(url: str, server: Server) -> None:
    async with Provider(Settings.load()) as provider:
        answer = await provider.models()
    assert isinstance(answer, Answer)
    assert answer.status == 200
    assert server.asked == ["GET /v1/models"]
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


async def test_an_error_quotes_neither_secrets_nor_the_prompt(
    url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTKEY_API_KEY", KEY)
    monkeypatch.setenv("PORTKEY_BASE_URL", url)
    monkeypatch.setenv("PORTKEY_PROVIDER_KEY", f" {BEHIND}\n")
    for name in ("PROVIDER", "VIRTUAL_KEY", "CONFIG"):
        monkeypatch.delenv(f"PORTKEY_{name}", raising=False)
    settings = Settings.load(provider="portkey", model="m")
    server.status, server.document = 400, {"error": {"message": f"{KEY}, {BEHIND}: tell me more", "code": "no"}}
    async with Provider(settings) as provider:
        asked = part(settings)
        found = await provider.complete(asked, b"{}", FakeLease(), nothing)
        assert found.message == "HTTP 400: [key], [PORTKEY_PROVIDER_KEY]: [prompt] (no)"
        hidden = provider.conceal(f"{KEY} {BEHIND} {KEY}".encode())
    assert hidden == b"[key] [PORTKEY_PROVIDER_KEY] [key]"
    headers = server.requests[0].headers
    assert (headers["x-portkey-api-key"], headers["Authorization"]) == (KEY, f"Bearer {BEHIND}")
    assert not {"x-portkey-provider", "X-Acs-Workload"} & set(headers)


@pytest.mark.parametrize("ends", ["succeeded", "failed"])
async def test_a_job_has_the_request_id_of_its_submission(url: str, server: Server, ends: str) -> None:
    settings, polls = Settings.load(), []
    queued = {"id": "j", "status": "queued"}
    ended = {"id": "j", "status": ends, "error": {"code": "bad_request", "message": f"{KEY} may not"}}
    server.document = [queued, ended, server.document]

    async def pause(count: int) -> None:
        polls.append(count)

    async def throttled(_: object) -> None:
        raise AssertionError

    key, lease, sent = JobKey("caller", b"{}"), FakeLease(), []
    async with Provider(settings) as provider:
        asked = part(settings, mode="job", workload="interactive")
        assert asked.request.mode is Mode.JOB
        found = await provider.job(asked, b"{}", lease, lambda: sent.append(1), key, Hooks(pause, None, throttled))
    assert found.request_id == "r1"
    assert (polls, sent, lease.sent_at is not None) == ([0], [1], True)
    paths = ["POST /v1/completion-jobs", "GET /v1/completion-jobs/j", "GET /v1/completion-jobs/j/result"]
    if ends == "succeeded":
        assert (found.kind, server.asked) == (Kind.SUCCESS, paths)
    else:
        assert server.asked == paths[:2]
        assert "[key] may not" in found.message
    keys = [request.headers.get("Idempotency-Key") for request in server.requests]
    assert keys == [str(JobKey("caller", b"{}")), *[None] * (len(keys) - 1)]
    assert {request.headers["X-Acs-Workload"] for request in server.requests} == {"interactive"}
    assert server.bodies[0] == b"{}"


async def test_an_answer_of_more_than_the_limit_is_refused(url: str, server: Server) -> None:
    settings = Settings.load(max_answer_mb=0.001)
    server.document = {"choices": [{"index": 0, "text": "x" * 1100}]}
    async with Provider(settings) as provider:
        found = await provider.complete(part(settings), b"{}", FakeLease(), nothing)
        assert found.cause is Cause.BAD_ANSWER
        assert "BRIMFUL_MAX_ANSWER_MB" in found.message
        server.document = {"choices": [{"index": 0, "text": "x" * 900, "finish_reason": "stop"}]}
        assert (await provider.complete(part(settings), b"{}", FakeLease(), nothing)).kind is Kind.SUCCESS


async def test_a_sessions_end_closes_its_connections(url: str, server: Server) -> None:
    async with Provider(Settings.load()) as provider:
        await provider.models()
        transport = server.requests[0].transport
        assert transport is not None
    await wait_until_async(transport.is_closing, "the server to see the connection's end")


@pytest.mark.parametrize(("slots", "warned"), [("44", False), ("45", True), ("auto", True)])
async def test_a_session_needs_as_many_open_files_as_it_has_slots(
    url: str, slots: str, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And 256 for all else."""
    monkeypatch.setenv("BRIMFUL_SLOTS", slots)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300, 300))
    async with Provider(Settings.load()):
        assert ("may open 300 files" in caplog.text) is warned
