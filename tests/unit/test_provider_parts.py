"""The provider's URLs, redaction, idempotency keys, and an answer's own values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.names import Mode
from brimful.outcome import Cause
from brimful.profile import get_profile
from brimful.request import Request
from brimful_worker.provider.answers.answer import Answer, Classification, Kind, TransportError
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
        ("https://h/completions/chat/completions", "https://h/completions/completions"),
    ],
)
def test_base_urls(base: str, url: str) -> None:
    endpoints = Endpoints.of(base)
    assert endpoints.submit(Mode.COMPLETION) == url
    assert endpoints.submit(Mode.CHAT) == "/chat/completions".join(url.rsplit("/completions", 1))


def test_the_list_of_models() -> None:
    assert Endpoints.of("https://h/api/chat/completions?api-version=2").models == "https://h/api/models?api-version=2"


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
        (f"HTTP 401: 'Bearer_{KEY}_'", {"prompt": "x"}, "HTTP 401: 'Bearer_[key]_'"),
        ("HTTP 400: the poodle", {"prompt": "poodle"}, "HTTP 400: the [prompt]"),
        (
            f"HTTP 400: {LONG[:40]} and so on until",
            {"prompt": f"{LONG} [prompt] and so on until"},
            "HTTP 400: [prompt] and so on until",
        ),
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
    assert (str(again) in keys, again.body) == (True, b"body")
    again.generation += 1
    assert str(again) not in keys


@pytest.mark.parametrize(
    ("headers", "id"),
    [
        ({"x-request-id": "req-1", "request-id": "other"}, "req-1"),
        ({"request-id": "req-1"}, "req-1"),
        ({"apim-request-id": "req-1", "x-portkey-trace-id": "other"}, "req-1"),
        ({"x-request-id": "r" * 300}, "r" * 200),
        ({"x-request-id": "a\x1b[2J"}, ""),
        ({}, ""),
    ],
)
def test_the_providers_own_id_of_a_request(headers: dict[str, str], id: str) -> None:
    assert Answer(200, headers, b"").request_id == id


@pytest.mark.parametrize(
    ("completion", "tokens"),
    [
        ({"usage": {"total_tokens": 7}}, 7),
        ({"usage": {"total_tokens": 0}}, 0),
        ({"usage": {"total_tokens": True}}, None),
        ({"usage": {"total_tokens": "7"}}, None),
        ({"usage": [7]}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_tokens_that_a_completion_states(completion: dict[str, Any] | None, tokens: int | None) -> None:
    assert Classification(Kind.SUCCESS, completion).tokens_used == tokens


def test_what_is_not_stated_asks_for_nothing_special() -> None:
    error, found = TransportError(Cause.CONNECTION, "no"), Classification(Kind.TRANSIENT)
    assert not any((error.stale, error.permanent, error.abandoned, found.stale, found.abandoned, found.stated_starts))
