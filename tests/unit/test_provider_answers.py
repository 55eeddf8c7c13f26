"""The classification of answers, case by case."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.outcome import Cause
from brimful_worker.provider.answers.answer import Answer, Kind, TransportError
from brimful_worker.provider.answers.classify import classify_answer

NOW = 1_700_000_000.0
HTML = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502</h1></body></html>"


def choice(index: Any, text: Any = " blue", **more: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": "length", **more}


def chat_choice(index: int, content: Any = "Blue.", reason: str = "stop", **message: Any) -> dict[str, Any]:
    return {"index": index, "message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}


def completion(*choices: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c", "choices": list(choices), "usage": {"total_tokens": 8}, **more}


def error(message: str = "no", **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


def answer(status: int, body: Any, **headers: str) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, raw)


GOOD = [
    ("one", completion(choice(0)), 1),
    ("several", completion(choice(0), choice(1)), 2),
    ("out of order", completion(choice(1), choice(0)), 2),
    ("an empty text", completion(choice(0, "")), 1),
    ("index as a string", completion(choice("0")), 1),
    ("index as a float", completion(choice(0.0), choice(1.0)), 2),
    ("no indexes, but all there", completion({"text": "a"}, {"text": "b"}), 2),
    ("null text taken by the filter", completion(choice(0, None) | {"finish_reason": "content_filter"}), 1),
    ("null error", completion(choice(0), error=None), 1),
    ("empty error", completion(choice(0), error={}), 1),
    ("chat", completion(chat_choice(0), chat_choice(1)), 2),
    ("chat, a tool call", completion(chat_choice(0, None, "tool_calls", tool_calls=[{"id": "t"}])), 1),
    ("chat, a refusal", completion(chat_choice(0, None, refusal="I cannot")), 1),
    ("chat, thoughts used the tokens up", completion(chat_choice(0, None, "length")), 1),
    ("chat, reasoning only", completion(chat_choice(0, None, "stop", reasoning="so")), 1),
    ("chat, reasoning_content only", completion(chat_choice(0, None, "stop", reasoning_content="so")), 1),
    ("chat, content in parts", completion(chat_choice(0, [{"type": "text", "text": "a"}])), 1),
]


@pytest.mark.parametrize(("document", "expected"), [case[1:] for case in GOOD], ids=[case[0] for case in GOOD])
def test_success(document: Any, expected: int) -> None:
    result = classify_answer(answer(200, document), expected=expected, now=NOW)
    assert result.kind is Kind.SUCCESS, result
    assert result.completion is not None
    assert [item["index"] for item in result.completion["choices"]] == list(range(expected))
    assert all(type(item["index"]) is int for item in result.completion["choices"])
    assert result.tokens_used == 8


UNUSUAL_BYTES = [
    ("byte order mark", b"\xef\xbb\xbf" + json.dumps(completion(choice(0))).encode(), {}),
    ("white space", b"\r\n  " + json.dumps(completion(choice(0)), indent=3).encode() + b"\n\n", {}),
    ("a lone surrogate", json.dumps(completion(choice(0, "\ud800x"))).encode(), {}),
    ("NaN among the logprobs", json.dumps(completion(choice(0, logprobs={"a": float("nan")}))).encode(), {}),
    ("UTF-16", json.dumps(completion(choice(0))).encode("utf-16"), {}),
    (
        "Latin-1, declared",
        json.dumps(completion(choice(0, "é")), ensure_ascii=False).encode("latin-1"),
        {"content_type": 'application/json; charset="ISO-8859-1"'},
    ),
    (
        "UTF-8, declared",
        json.dumps(completion(choice(0, "é")), ensure_ascii=False).encode(),
        {"content_type": "application/json; charset=utf8"},
    ),
]


@pytest.mark.parametrize(("body", "headers"), [case[1:] for case in UNUSUAL_BYTES], ids=[c[0] for c in UNUSUAL_BYTES])
def test_unusual_encodings_are_read(body: bytes, headers: dict[str, str]) -> None:
    assert classify_answer(answer(200, body, **headers), expected=1, now=NOW).kind is Kind.SUCCESS


SHORT: list[tuple[str, Any, int, int, tuple[int, ...]]] = [
    ("the last is missing", completion(choice(0), choice(1)), 3, 1, (2,)),
    ("one in the middle", completion(choice(0), choice(2)), 3, 1, (1,)),
    ("a null text", completion(choice(0, None), choice(1)), 2, 1, (0,)),
    ("a text that is a number", completion(choice(0, 5), choice(1)), 2, 1, (0,)),
    ("a null choice", completion(choice(0), None), 2, 1, (1,)),
    ("chat, null content without a reason", completion(chat_choice(0, None), chat_choice(1)), 2, 1, (0,)),
    ("no index, one prompt", completion({"text": "a"}), 3, 1, (1, 2)),
    ("of the second prompt", completion(choice(0), choice(1), choice(3)), 4, 2, (2,)),
]


@pytest.mark.parametrize(
    ("document", "expected", "prompts", "missing"), [case[1:] for case in SHORT], ids=[case[0] for case in SHORT]
)
def test_missing_choices(document: Any, expected: int, prompts: int, missing: tuple[int, ...]) -> None:
    result = classify_answer(answer(200, document), expected=expected, prompts=prompts, now=NOW)
    assert result.kind is Kind.SHORT
    assert result.missing == missing
    assert result.cause is Cause.BAD_ANSWER
    assert result.completion is not None
    got = {item["index"] for item in result.completion["choices"]}
    assert got == set(range(expected)) - set(missing)


BAD_ANSWERS: list[tuple[str, Any, int, int, str]] = [
    ("choices null", completion() | {"choices": None}, 1, 1, "no text among 1 choice"),
    ("choices empty", completion(), 2, 1, "no text among 2 choices"),
    ("choices an object", completion() | {"choices": {}}, 1, 1, "not a list"),
    ("too many", completion(choice(0), choice(1)), 1, 1, "2 choices returned, 1 requested"),
    ("an index too high", completion(choice(0), choice(7)), 2, 1, "index 7"),
    ("a negative index", completion(choice(-1)), 1, 1, "index -1"),
    ("an index twice", completion(choice(0), choice(0)), 2, 1, "two choices"),
    ("short, no index, two prompts", completion({"text": "a"}), 4, 2, "no index"),
    ("all texts null", completion(choice(0, None), choice(1, None)), 2, 1, "no text among 2 choices"),
    ("not a completion", {"hello": 1}, 1, 1, "without choices"),
    ("an array", [completion(choice(0))], 1, 1, "without choices"),
    ("a string", "ok", 1, 1, "without choices"),
    ("null", None, 1, 1, "not JSON"),
    ("empty", b"", 1, 1, "empty body"),
    ("blank", b" \n ", 1, 1, "empty body"),
    ("HTML", HTML, 1, 1, "not JSON: 502 Bad Gateway"),
    ("cut short", json.dumps(completion(choice(0))).encode()[:40], 1, 1, "cut short"),
    ("not UTF-8", json.dumps(completion(choice(0, "X"))).encode().replace(b"X", b"\xff\xfe"), 1, 1, "damaged"),
    ("deeper than anybody nests", b"[" * 200_000, 1, 1, "cut short"),
    ("binary", bytes(range(256)), 1, 1, "not JSON"),
]


@pytest.mark.parametrize(
    ("document", "expected", "prompts", "reason"),
    [case[1:] for case in BAD_ANSWERS],
    ids=[case[0] for case in BAD_ANSWERS],
)
def test_an_answer_without_a_usable_completion_is_transient(
    document: Any, expected: int, prompts: int, reason: str
) -> None:
    found = classify_answer(answer(200, document), expected=expected, prompts=prompts, now=NOW)
    assert (found.kind, found.cause) == (Kind.TRANSIENT, Cause.BAD_ANSWER), found
    assert reason in found.message


REFUSALS: list[tuple[str, int, Any, Kind, Cause]] = [
    # by status
    ("400", 400, error(code="invalid_value"), Kind.PERMANENT, Cause.BAD_REQUEST),
    ("400 HTML", 400, HTML, Kind.PERMANENT, Cause.BAD_REQUEST),
    ("400 with a completion", 400, completion(choice(0)), Kind.PERMANENT, Cause.BAD_REQUEST),
    ("400, detail", 400, {"detail": "no such field"}, Kind.PERMANENT, Cause.BAD_REQUEST),
    ("404", 404, error(code="model_not_found"), Kind.PERMANENT, Cause.BAD_REQUEST),
    ("405", 405, b"", Kind.PERMANENT, Cause.BAD_REQUEST),
    ("413", 413, HTML, Kind.PERMANENT, Cause.BAD_REQUEST),
    ("422", 422, {"detail": [{"loc": ["n"], "msg": "too many"}]}, Kind.PERMANENT, Cause.BAD_REQUEST),
    ("401", 401, error(code="invalid_api_key"), Kind.KEY_REFUSED, Cause.KEY_REFUSED),
    ("401 empty", 401, b"", Kind.KEY_REFUSED, Cause.KEY_REFUSED),
    ("403", 403, error(type="permission_error"), Kind.KEY_REFUSED, Cause.KEY_REFUSED),
    ("403 HTML", 403, HTML, Kind.KEY_REFUSED, Cause.KEY_REFUSED),
    ("402", 402, b"", Kind.BUDGET, Cause.BUDGET),
    ("408", 408, b"", Kind.TRANSIENT, Cause.TIMEOUT),
    ("409", 409, b"", Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("425", 425, b"", Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("429", 429, error(code="rate_limited"), Kind.THROTTLED, Cause.RATE_LIMITED),
    ("429 bare", 429, b"", Kind.THROTTLED, Cause.RATE_LIMITED),
    ("429 HTML", 429, HTML, Kind.THROTTLED, Cause.RATE_LIMITED),
    ("429 queue_full", 429, error(code="queue_full"), Kind.THROTTLED, Cause.QUEUE_FULL),
    ("429 type queue_full", 429, error(type="queue_full", code=None), Kind.THROTTLED, Cause.QUEUE_FULL),
    ("500", 500, error(code=None), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("500 numeric code", 500, error(code=500), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("500 code missing", 500, error(), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("500 error as text", 500, {"error": "boom"}, Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("500 with a completion", 500, completion(choice(0)), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("500 with a code about the request", 500, error(type="invalid_request_error"), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("500 with a code about keys", 500, error(code="authentication_error"), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("502 HTML", 502, HTML, Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("502 not UTF-8", 502, b"\xff\xfe\x00", Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("503", 503, error(code="overloaded"), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("504", 504, b"", Kind.TRANSIENT, Cause.TIMEOUT),
    ("520", 520, b"", Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("524", 524, b"", Kind.TRANSIENT, Cause.TIMEOUT),
    # by code, which takes precedence over the status
    ("429 insufficient_quota", 429, error(code="insufficient_quota"), Kind.BUDGET, Cause.BUDGET),
    ("403 budget_exceeded", 403, error(code="budget_exceeded"), Kind.BUDGET, Cause.BUDGET),
    ("400 Billing Hard-Limit", 400, error(code="Billing Hard-Limit"), Kind.BUDGET, Cause.BUDGET),
    ("429 quota without a time", 429, error(code="quota_exceeded"), Kind.BUDGET, Cause.BUDGET),
    ("400 thinking budget", 400, error(code="invalid_thinking_budget"), Kind.PERMANENT, Cause.BAD_REQUEST),
    ("400 content_filter", 400, error(code="content_filter"), Kind.FILTERED, Cause.CONTENT_FILTER),
    ("400 content policy", 400, error(code="content_policy_violation"), Kind.FILTERED, Cause.CONTENT_FILTER),
    ("403 moderation", 403, error(code=403, type="moderation_blocked"), Kind.FILTERED, Cause.CONTENT_FILTER),
    (
        "400 filter within",
        400,
        error(code="bad", innererror={"code": "ResponsibleAIPolicyViolation"}),
        Kind.FILTERED,
        Cause.CONTENT_FILTER,
    ),
    (
        "400 with filtered choices",
        400,
        completion(choice(0) | {"finish_reason": "content_filter"}),
        Kind.FILTERED,
        Cause.CONTENT_FILTER,
    ),
    ("400 API_KEY_INVALID", 400, error(status="API_KEY_INVALID"), Kind.KEY_REFUSED, Cause.KEY_REFUSED),
    ("400 a JSON key is missing", 400, error(code="missing_key"), Kind.PERMANENT, Cause.BAD_REQUEST),
    ("400 rate_limit_exceeded", 400, error(code="rate_limit_exceeded"), Kind.THROTTLED, Cause.RATE_LIMITED),
    # an error object under a success status
    ("200, 500 within", 200, error(code=500), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("200, '503' within", 200, error(code="503"), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("200, status 429 within", 200, error(status=429), Kind.THROTTLED, Cause.RATE_LIMITED),
    ("200, 400 within", 200, error(code=400), Kind.PERMANENT, Cause.BAD_REQUEST),
    ("200, 401 within", 200, error(code=401), Kind.KEY_REFUSED, Cause.KEY_REFUSED),
    ("200, 402 within", 200, error(code=402), Kind.BUDGET, Cause.BUDGET),
    ("200, server_error", 200, error(type="server_error"), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("200, internal", 200, error(code="internal"), Kind.TRANSIENT, Cause.SERVER_ERROR),
    (
        "200, the code takes precedence over the type",
        200,
        error(code="internal", type="invalid_request_error"),
        Kind.TRANSIENT,
        Cause.SERVER_ERROR,
    ),
    ("200, timeout", 200, error(code="timeout"), Kind.TRANSIENT, Cause.TIMEOUT),
    ("200, rate_limited", 200, error(code="rate_limited"), Kind.THROTTLED, Cause.RATE_LIMITED),
    ("200, queue_full", 200, error(code="queue_full"), Kind.THROTTLED, Cause.QUEUE_FULL),
    ("200, invalid_request_error", 200, error(type="invalid_request_error"), Kind.PERMANENT, Cause.BAD_REQUEST),
    ("200, not found", 200, error(code="model_not_found"), Kind.PERMANENT, Cause.BAD_REQUEST),
    ("200, no code", 200, error(), Kind.TRANSIENT, Cause.BAD_ANSWER),
    ("200, an unknown code", 200, error(code="E_17"), Kind.TRANSIENT, Cause.BAD_ANSWER),
    ("200, error as text", 200, {"error": "boom"}, Kind.TRANSIENT, Cause.BAD_ANSWER),
    ("200, object error", 200, {"object": "error", "message": "m", "code": 404}, Kind.PERMANENT, Cause.BAD_REQUEST),
    ("200, error beside choices", 200, completion(choice(0)) | error(code=500), Kind.TRANSIENT, Cause.SERVER_ERROR),
    ("200, the error in a choice", 200, completion({"error": {"code": 502}}), Kind.TRANSIENT, Cause.SERVER_ERROR),
]


@pytest.mark.parametrize(
    ("status", "body", "kind", "cause"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS]
)
def test_refusal(status: int, body: Any, kind: Kind, cause: Cause) -> None:
    result = classify_answer(answer(status, body), expected=1, now=NOW)
    assert (result.kind, result.cause) == (kind, cause), result
    assert result.status == status
    assert result.completion is None
    assert result.message.startswith(f"HTTP {status}")
    assert len(result.message) < 350
    assert "\n" not in result.message
    assert "<" not in result.message


def test_a_quota_with_a_time_is_throttling() -> None:
    result = classify_answer(answer(429, error(code="quota_exceeded"), retry_after="5"), expected=1, now=NOW)
    assert (result.kind, result.retry_after_s) == (Kind.THROTTLED, 5.0)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_retry_after_is_returned(status: int) -> None:
    assert classify_answer(answer(status, b"", retry_after="2.5"), expected=1, now=NOW).retry_after_s == 2.5


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 304])
def test_redirects_are_not_followed_and_name_the_host_only(status: int) -> None:
    result = classify_answer(
        answer(status, b"", location="https://u:p@other.example:8443/v2?k=secret"), expected=1, now=NOW
    )
    assert result.kind is Kind.PERMANENT
    assert "other.example:8443" in result.message
    assert "secret" not in result.message
    assert "u:p" not in result.message


def test_a_redirect_without_a_location() -> None:
    assert classify_answer(answer(302, b""), expected=1, now=NOW).kind is Kind.PERMANENT


def test_transport_errors() -> None:
    result = classify_answer(TransportError(Cause.CONNECTION, "reset", stale=True), expected=1, now=NOW)
    assert (result.kind, result.cause, result.stale) == (Kind.TRANSIENT, Cause.CONNECTION, True)
    result = classify_answer(TransportError(Cause.CONNECTION, "certificate", permanent=True), expected=1, now=NOW)
    assert result.kind is Kind.PERMANENT


def test_the_message_quotes_the_provider_with_its_code() -> None:
    result = classify_answer(answer(400, error("n must be\n at most 8", code="invalid_value")), expected=1, now=NOW)
    assert result.message == "HTTP 400: n must be at most 8 (invalid_value)"


def test_sampled_text_is_never_quoted_from_a_damaged_body() -> None:
    body = json.dumps(completion(choice(0, "a private continuation"))).encode()[:-5]
    assert "private" not in classify_answer(answer(200, body), expected=1, now=NOW).message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["error", "choices", "index", "text", "message", "content", "code", "status", "type", "usage", "detail"]
    ) | st.text(max_size=3), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@given(document=JSON, status=st.sampled_from([200, 202, 204, 302, 400, 401, 404, 429, 500, 503]))
def test_any_json_is_classified(document: Any, status: int) -> None:
    result = classify_answer(answer(status, json.dumps(document).encode()), expected=2, prompts=2, now=NOW)
    assert (result.kind is Kind.SUCCESS) == (result.cause is None)
    assert result.kind is Kind.SUCCESS or result.message


@given(body=st.binary(max_size=200), status=st.integers(100, 599))
def test_any_bytes_are_classified(body: bytes, status: int) -> None:
    result = classify_answer(Answer(status, {}, body), expected=1, now=NOW)
    assert result.kind is Kind.SUCCESS or result.message


@pytest.mark.parametrize(
    ("headers", "id"),
    [
        ({"x_request_id": "req_1", "request_id": "other"}, "req_1"),
        ({"request_id": "req_anthropic"}, "req_anthropic"),
        ({"apim_request_id": "b7c1-azure"}, "b7c1-azure"),
        ({"x_portkey_trace_id": "trace"}, "trace"),
        ({"x_request_id": "i" * 300}, "i" * 200),
        ({"x_request_id": "req\x1b[31m"}, ""),
        ({"date": "today"}, ""),
    ],
)
def test_the_provider_s_own_id_of_a_request(headers: dict[str, str], id: str) -> None:
    assert answer(200, {}, **headers).request_id == id
