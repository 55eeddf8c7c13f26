"""The provider session on real sockets: headers, base URLs, chat, TLS, proxies, IPv6, grants and timeouts."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

from brimful.errors import SettingError
from brimful.outcome import Cause
from support.fake_admission import FakeAdmission
from support.provider_server import Completions, serving
from support.sampling import KEY, bench
from support.tls import certificate_in


async def test_paths_headers_and_body_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Completions()
    async with serving(seen) as url, bench(monkeypatch, url) as it:
        await it.sample("x", id="7", workload="interactive", temperature=0.5, steering={"layers": [1]}, seed=3)
        await it.sample("y")
        await it.sample(messages=[{"role": "user", "content": "z \ud800"}])
    paths = [path for path, _, _ in seen.requests]
    assert paths == ["/v1/completions", "/v1/completions", "/v1/chat/completions"]
    headers = seen.requests[0][1]
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["X-Acs-Workload"] == "interactive"
    assert headers["Content-Type"] == "application/json"
    assert "Cookie" not in headers
    assert seen.requests[1][1]["X-Acs-Workload"] == "batch"
    assert seen.requests[0][2] == {
        "model": "llama-8b",
        "prompt": "x",
        "max_tokens": 4,
        "temperature": 0.5,
        "steering": {"layers": [1]},
        "seed": 3,
    }
    assert seen.requests[2][2]["messages"] == [{"role": "user", "content": "z \ud800"}]


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
@pytest.mark.parametrize("provider", ["kios", "openai"])
async def test_chat_providers(monkeypatch: pytest.MonkeyPatch, provider: str, tail: str) -> None:
    seen = Completions()
    async with serving(seen) as url, bench(monkeypatch, url + tail, provider=provider) as it:
        outcome = await it.sample("Say hi", n=2, model="m", system="Be brief", mode="chat")
    assert outcome.completion is not None
    assert [choice["message"]["content"] for choice in outcome.completion["choices"]] == ["Hi.", "Hi."]
    (path, headers, body) = seen.requests[0]
    assert path == "/v1/chat/completions"
    assert "X-Acs-Workload" not in headers
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_ipv4_and_ipv6(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    if host == "::1":
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind((host, 0))
        except OSError:
            pytest.skip("no IPv6 on this machine")
    async with serving(Completions(), host=host) as url, bench(monkeypatch, url) as it:
        assert (await it.sample()).ok


async def test_the_providers_cookies_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Completions()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        answer = await seen(request)
        answer.headers["Set-Cookie"] = "session=1"
        return answer

    async with serving(handler) as url, bench(monkeypatch, url.replace("127.0.0.1", "localhost")) as it:
        assert (await it.sample()).ok
        assert (await it.sample()).ok
    assert all("Cookie" not in headers for _, headers, _ in seen.requests)


async def test_a_redirect_names_its_host_and_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        raise web.HTTPPermanentRedirect(f"https://other.example{request.path}?key=1")

    async with serving(handler) as url, bench(monkeypatch, url) as it:
        outcome = await it.sample()
    assert outcome.failure is not None
    assert (outcome.failure.permanent, outcome.attempts) == (True, 1)
    assert "redirects to https://other.example" in outcome.failure.message


async def test_an_error_that_echoes_key_and_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json()
        message = f"{request.headers['Authorization']} may not ask {body['prompt']!r}"
        return web.json_response({"error": {"message": message, "code": "denied"}}, status=400)

    async with serving(handler) as url, bench(monkeypatch, url) as it:
        outcome = await it.sample("my very private prompt")
    assert outcome.failure is not None
    assert outcome.failure.message == "HTTP 400: Bearer [key] may not ask '[prompt]' (denied)"


async def test_bytes_that_are_not_http(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, bench(monkeypatch, url, attempts=2) as it:
        outcome = await it.sample()
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.failure.permanent) == (Cause.BAD_ANSWER, False)


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-“a”", "sk-a\x00"])
async def test_a_key_that_a_header_cannot_carry_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr("support.sampling.KEY", key.replace("\x00", "\x7f"))
    with pytest.raises(SettingError, match="ACS_API_KEY") as error:
        async with bench(monkeypatch, "http://127.0.0.1:9"):
            pass
    assert "sk-" not in str(error.value)


async def test_a_proxys_password_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serving(refuse) as proxy:
        monkeypatch.setenv("http_proxy", proxy.replace("http://", "http://me:hunter2@"))
        async with bench(monkeypatch, "http://provider.example", attempts=3) as it:
            outcome = await it.sample()
    assert outcome.failure is not None
    assert outcome.failure.cause is Cause.CONNECTION
    assert "hunter2" not in str(outcome)


# -- TLS and proxies ----------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    return certificate_in(tmp_path)


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
async def test_an_authority_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, ssl.SSLContext], variable: str
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv(variable, str(certificate[0]))
    async with serving(Completions(), tls=certificate[1]) as url, bench(monkeypatch, url) as it:
        assert (await it.sample()).ok


async def test_a_certificate_that_does_not_verify_fails_at_once(
    monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    async with serving(Completions(), tls=certificate[1]) as url, bench(monkeypatch, url) as it:
        outcome = await it.sample()
    assert outcome.failure is not None
    assert (outcome.failure.cause, outcome.failure.permanent, outcome.attempts) == (Cause.CONNECTION, True, 0)
    assert "does not verify" in outcome.failure.message
    assert "SSL_CERT_FILE" in outcome.failure.message


@pytest.mark.parametrize("bypassed", [False, True])
async def test_a_proxy_from_the_environment(monkeypatch: pytest.MonkeyPatch, bypassed: bool) -> None:
    through, direct = Completions(), Completions()
    async with serving(through) as proxy, serving(direct) as url:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1" if bypassed else "")
        async with bench(monkeypatch, url) as it:
            assert (await it.sample()).ok
    assert (len(through.requests), len(direct.requests)) == ((0, 1) if bypassed else (1, 0))


# -- grants ------------------------------------------------------------------------------------------------------


async def test_the_grant_is_checked_when_the_connection_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that was opened for a stale grant is used by the next one."""
    seen = Completions()
    sent: list[bool] = []

    async with serving(seen) as url, bench(monkeypatch, url, FakeAdmission(stale=2)) as it:
        outcome = await it.sample()
        sent += [lease.transport is not None for lease in it.admission.grants]
    assert outcome.ok
    assert sent == [False, False, True]
    assert len(seen.requests) == 1


async def test_a_grant_past_its_deadline_keeps_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Completions()
    async with serving(seen) as url, bench(monkeypatch, url, FakeAdmission(1)) as it:
        assert (await it.sample()).ok
        late = iter([0.0, float("inf")])
        real = it.admission.slot

        @asynccontextmanager
        async def slot(workload: Any = "batch", *, tokens: int = 0, **_: Any) -> AsyncIterator[Any]:
            async with real(workload, tokens=tokens) as lease:
                lease.wire_deadline = next(late)
                yield lease

        monkeypatch.setattr(it.admission, "slot", slot)
        assert (await it.sample()).ok
    assert len(seen.requests) == 2
    assert len(seen.peers) == 1, "the connection went back to the pool"


async def test_a_get_that_breaks_is_not_sent_twice_under_one_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp's ClientSession repeats idempotent requests when a reused connection breaks."""
    kinds: Counter[str] = Counter()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        kinds[request.method] += 1
        if request.method == "POST":
            return web.json_response({"id": "j", "status": "queued"}, status=202)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serving(handler) as url, bench(monkeypatch, url, attempts=1) as it:
        outcome = await it.sample(mode="job", id="1")
        polls = it.admission.sent - 1
    assert not outcome.ok
    assert kinds["GET"] == polls


async def test_finished_requests_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Completions()
    async with serving(seen) as url, bench(monkeypatch, url, FakeAdmission(32)) as it:

        async def some(count: int) -> None:
            outcomes = await asyncio.gather(*(it.sample(f"prompt {number}") for number in range(count)))
            assert all(outcome.ok for outcome in outcomes)
            seen.requests.clear()
            it.admission.grants.clear()
            it.admission.workloads.clear()
            it.admission.tokens.clear()

        await some(64)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(5):
            await some(64)
        gc.collect()
        assert len(gc.get_objects()) - before < 320, "less than one object for each finished request"


def test_finished_requests_leave_no_reference_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting thousands of cycles would stop the loop. On uvloop, as asyncio's loop keeps cancelled timers."""

    async def some() -> int:
        async with serving(Completions()) as url, bench(monkeypatch, url, FakeAdmission(32)) as it:
            gc.collect()
            gc.disable()
            try:
                await asyncio.gather(*(it.sample(f"prompt {number}") for number in range(96)))
                return gc.collect()
            finally:
                gc.enable()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(some()) < 96


async def test_the_timeout_starts_with_the_first_byte_not_with_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow_resolve(*_: Any, **__: Any) -> list[dict[str, Any]]:
        await asyncio.sleep(0.3)
        return [
            {
                "hostname": "provider.test",
                "host": "127.0.0.1",
                "port": port,
                "family": socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
        ]

    async with serving(Completions()) as url:
        port = int(url.rpartition(":")[2])
        async with bench(monkeypatch, f"http://provider.test:{port}", timeout_s=0.25) as it:
            monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", slow_resolve)
            outcome = await it.sample()
    assert outcome.ok, outcome.failure
    assert outcome.attempts == 1
