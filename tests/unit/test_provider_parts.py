"""The provider's URLs, redaction, idempotency keys and process environment."""

from __future__ import annotations

import logging
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brimful.errors import SettingError
from brimful.names import Mode
from brimful.outcome import Cause
from brimful.profile import get_profile
from brimful.request import Request
from brimful_worker.provider import environment
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.provider.answers.redact import redact
from brimful_worker.provider.endpoints import Endpoints
from brimful_worker.provider.jobs import JobKey

KEY = "sk-canary-5f2d9c"


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://h", "https://h/v1/completions"),
        ("https://h/", "https://h/v1/completions"),
        ("https://h/v1", "https://h/v1/completions"),
        ("https://h/v1/", "https://h/v1/completions"),
        ("https://h/v1/completions", "https://h/v1/completions"),
        ("https://h/v1/chat/completions", "https://h/v1/completions"),
        ("https://h/api/openai", "https://h/api/openai/completions"),
        ("https://h/api/?api-version=2", "https://h/api/completions?api-version=2"),
        ("http://[::1]:8000", "http://[::1]:8000/v1/completions"),
        ("http://user:pass@h:81/v1", "http://h:81/v1/completions"),
    ],
)
def test_base_urls(base: str, url: str) -> None:
    endpoints = Endpoints.of(base)
    assert endpoints.submit(Mode.COMPLETION) == url
    assert endpoints.submit(Mode.CHAT) == url.replace("/completions", "/chat/completions")


def test_a_job_id_cannot_change_the_path_of_its_url() -> None:
    endpoints = Endpoints.of("https://h/v1")
    assert endpoints.job("a-1") == "https://h/v1/completion-jobs/a-1"
    assert endpoints.job("../keys?x", "result") == "https://h/v1/completion-jobs/..%2Fkeys%3Fx/result"


def refusal(message: str, status: int | None = 400) -> Classification:
    return Classification(Kind.PERMANENT, cause=Cause.BAD_REQUEST, message=message, status=status)


LONG = "Write a long and detailed story about the lighthouse keeper of Skagen and her two dogs."


@pytest.mark.parametrize(
    ("message", "fields", "clean"),
    [
        (f"HTTP 401: bad key {KEY}", {"prompt": "x"}, "HTTP 401: bad key [key]"),
        ("HTTP 400: 'tell me more' is no good", {"prompt": "tell me more"}, "HTTP 400: '[prompt]' is no good"),
        (f"HTTP 400: {LONG[:40]}… is too long", {"prompt": LONG}, "HTTP 400: [prompt]… is too long"),
        (f"HTTP 400: …{LONG[10:60]}…", {"prompt": ["other", LONG]}, "HTTP 400: …[prompt]…"),
        (f"HTTP 400: {LONG}", {"messages": [{"role": "user", "content": LONG}]}, "HTTP 400: [prompt]"),
        ("HTTP 400: too long", {"prompt": "to"}, "HTTP 400: too long"),
        ("HTTP 400: no", {"prompt": [1, 2, 3]}, "HTTP 400: no"),
    ],
)
def test_neither_key_nor_prompt_is_quoted(message: str, fields: dict[str, Any], clean: str) -> None:
    request = Request.parse(fields, get_profile("acs"), max_tokens=1)
    assert redact(refusal(message), {KEY: "key"}, request).message == clean


@pytest.mark.parametrize("key", ["none", "x", "EMPTY", "content"])
def test_a_key_that_is_an_ordinary_word_leaves_messages_readable(key: str) -> None:
    """Local servers take any key, and people set ``none`` or ``x``."""
    request = Request.parse({"prompt": "a"}, get_profile("acs"), max_tokens=1)
    answer = replace(refusal("HTTP 200: none of 3 choices has content; next"), code="content_extra")
    assert redact(answer, {key: "key"}, request) == answer


def test_a_short_key_is_replaced_as_a_whole_word() -> None:
    request = Request.parse({"prompt": "a"}, get_profile("acs"), max_tokens=1)
    answer = redact(refusal("HTTP 400: abcd1234, abcd12345, x-abcd1234 (abcd1234)"), {"abcd1234": "key"}, request)
    assert answer.message == "HTTP 400: [key], abcd12345, x-abcd1234 ([key])"


@pytest.mark.parametrize(
    ("code", "kept"), [("queue_full", "queue_full"), (KEY, None), (f"key {KEY}", None), (LONG[:60], None)]
)
def test_a_code_that_may_quote_the_request_is_dropped(code: str, kept: str | None) -> None:
    request = Request.parse({"prompt": LONG}, get_profile("acs"), max_tokens=1)
    assert redact(replace(refusal("HTTP 429"), code=code), {KEY: "key"}, request).code == kept


def test_a_job_key_depends_on_caller_body_and_generation_only() -> None:
    keys = {
        str(JobKey("run\0 1", b"body")),
        str(JobKey("run\0 2", b"body")),
        str(JobKey("run\0 1", b"other")),
        str(JobKey("nur\0 1", b"body")),
    }
    assert len(keys) == 4
    again = JobKey("run\0 1", b"body")
    assert str(again) in keys
    again.generation += 1
    assert str(again) not in keys


# -- environment --------------------------------------------------------------------------------------------------

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_PROXIES, *map(str.upper, _PROXIES), *environment.CA_VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({}, "https://api.example/v1", None),
        ({"HTTPS_PROXY": "http://p:3128"}, "https://api.example/v1", "http://p:3128"),
        ({"HTTPS_PROXY": "p:3128"}, "https://api.example/v1", "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128"}, "https://api.example/v1", None),
        ({"ALL_PROXY": "http://p:3128"}, "http://api.example/v1", "http://p:3128"),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "other,.example"}, "https://api.example/v1", None),
        ({"https_proxy": "http://p:3128", "no_proxy": "*"}, "https://api.example/v1", None),
    ],
)
def test_proxies(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, proxy: str | None) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.proxy_for(url) == proxy


def test_a_socks_proxy_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://p:1080")
    with pytest.raises(SettingError, match="HTTPS_PROXY: a socks5:// proxy"):
        environment.proxy_for("https://api.example/v1")


def test_certificate_authorities(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment.tls_context() is True
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(SettingError, match=r"REQUESTS_CA_BUNDLE: .*none\.pem"):
        environment.tls_context()
    (tmp_path / "junk.pem").write_text("junk")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "junk.pem"))
    with pytest.raises(SettingError, match="SSL_CERT_FILE"):
        environment.tls_context()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path))
    assert isinstance(environment.tls_context(), ssl.SSLContext)


def test_the_limit_on_open_files_is_raised_or_explained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [256, 4096]
    assert environment.resource is not None
    monkeypatch.setattr(environment.resource, "getrlimit", lambda _: tuple(limits))

    def setrlimit(_: int, wanted: tuple[int, int]) -> None:
        limits[:] = wanted

    monkeypatch.setattr(environment.resource, "setrlimit", setrlimit)
    assert environment.raise_open_file_limit(2000) == 4096
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        environment.raise_open_file_limit(5000)
    assert "may open 4096 files, but 5000 concurrent requests" in caplog.text
