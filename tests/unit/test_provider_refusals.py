"""What decides the meaning of a refusal where several signs of it stand side by side."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brimful.outcome import Cause
from brimful_worker.provider.answers.answer import Answer, Classification, Kind
from brimful_worker.provider.answers.choices import NIgnored, check_choices, has_text
from brimful_worker.provider.answers.classify import classify_answer, deeper_than, parse_json
from brimful_worker.provider.answers.limits import Limit
from brimful_worker.provider.answers.refusal import one_line, visible_text
from brimful_worker.provider.answers.retry_after import retry_after
from brimful_worker.provider.answers.stated import stated_starts

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


def classified(status: int, body: Any, **headers: str) -> Classification:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return classify_answer(Answer(status, sent, raw), expected=1, now=NOW)


class TestTimezone:
    """A date of the provider means the same wherever the worker runs."""

    @pytest.mark.parametrize(
        "date", ["Tue, 14 Nov 2023 22:13:50 GMT", "Tue, 14 Nov 2023 22:13:50 -0000", "Tue, 14 Nov 2023 22:13:50"]
    )
    def test_a_date_without_a_zone_is_utc(self, timezone: str, date: str) -> None:
        assert retry_after({"retry-after": date}, now=NOW) == 30.0
        assert retry_after({"retry-after": date, "date": "Tue, 14 Nov 2023 22:13:30"}, now=0.0) == 20.0

    def test_a_date_with_one_is_in_that(self, timezone: str) -> None:
        assert retry_after({"retry-after": "Wed, 15 Nov 2023 07:13:50 +0900"}, now=NOW) == 30.0

    def test_the_reset_of_a_stated_limit(self, timezone: str) -> None:
        headers = {"anthropic-ratelimit-requests-limit": "50"}
        for reset, stated in (
            ("2023-11-14T22:14:20Z", 50),
            ("2023-11-14T22:14:20", 50),
            ("2023-11-15T07:14:20+09:00", 50),
            ("2023-11-14T23:14:20Z", 0),
            ("2023-11-14T23:14:20", 0),
        ):
            given = {**headers, "anthropic-ratelimit-requests-reset": reset}
            assert stated_starts(given, now=NOW) == stated


class TestErrorAtTheTop:
    """Some gateways send the error's fields without an object around them."""

    @pytest.mark.parametrize(
        ("status", "body", "kind", "cause"),
        [
            (429, {"code": "insufficient_quota"}, Kind.BUDGET, Cause.BUDGET),
            (429, {"message": "wait", "code": "queue_full"}, Kind.THROTTLED, Cause.QUEUE_FULL),
            (400, {"title": "no", "type": "content_filter"}, Kind.FILTERED, Cause.CONTENT_FILTER),
            (400, {"detail": "no", "code": "invalid_api_key"}, Kind.KEY_REFUSED, Cause.KEY_REFUSED),
            (400, [{"error": {"code": "insufficient_quota"}}], Kind.BUDGET, Cause.BUDGET),
            (200, {"type": "error", "message": "m", "code": 429}, Kind.THROTTLED, Cause.RATE_LIMITED),
            (200, {"type": "error", "code": 429}, Kind.TRANSIENT, Cause.BAD_ANSWER),
        ],
    )
    def test_its_code_counts(self, status: int, body: Any, kind: Kind, cause: Cause) -> None:
        found = classified(status, body)
        assert (found.kind, found.cause) == (kind, cause)

    def test_its_message_is_quoted(self) -> None:
        for name in ("message", "detail", "title"):
            assert classified(400, {name: "too many"}).message == "HTTP 400: too many"

    def test_a_list_of_nothing_is_quoted_as_it_is(self) -> None:
        assert classified(400, []).message == "HTTP 400: []"

    def test_a_text_is_quoted(self) -> None:
        assert classified(500, "overloaded").message == "HTTP 500: overloaded"
        assert classified(500, {"error": "boom"}).message == "HTTP 500: boom"
        assert classified(200, {"error": "boom", "choices": []}).message == "HTTP 200: boom"
        assert classified(500, {"error": " "}).message != "HTTP 500: "

    def test_an_error_that_is_only_a_flag(self) -> None:
        assert classified(200, {"error": True, "message": "boom"}).message == "HTTP 200: boom"
        assert classified(200, {"error": [{"loc": "n"}]}).message == "HTTP 200: [{'loc': 'n'}]"

    def test_values_in_place_of_a_text_are_quoted_whole(self) -> None:
        long = "the number of choices must be at most eight for this model"
        assert long in classified(200, {"error": [{"msg": long}]}).message

    def test_one_that_is_no_error(self) -> None:
        assert classified(400, {"hello": "world"}).message.startswith("HTTP 400: {")
        found = classified(400, {"choices": [{"index": 0, "text": "a"}]})
        assert "a completion under an error status" in found.message


class TestPrecedence:
    @pytest.mark.parametrize(
        ("status", "error", "kind"),
        [
            (403, {"code": "quota"}, Kind.BUDGET),
            (400, {"code": "quota"}, Kind.PERMANENT),
            (500, {"code": "content_filter"}, Kind.TRANSIENT),
            (500, {"code": "rate_limited"}, Kind.TRANSIENT),
            (499, {"code": "content_filter"}, Kind.FILTERED),
            (499, {"code": "rate_limited"}, Kind.THROTTLED),
            (499, {"code": "invalid_api_key"}, Kind.KEY_REFUSED),
            (500, {"code": "insufficient_quota"}, Kind.BUDGET),
            (429, {"code": "x", "type": "content_filter"}, Kind.FILTERED),
            (421, {}, Kind.TRANSIENT),
            (410, {}, Kind.PERMANENT),
            (599, {}, Kind.TRANSIENT),
        ],
    )
    def test_code_and_status(self, status: int, error: dict[str, Any], kind: Kind) -> None:
        assert classified(status, {"error": {"message": "m", **error}}).kind is kind

    @pytest.mark.parametrize("code", [399, 600, "0429", "+429", "4.9", True, None, "429 "])
    def test_a_number_that_is_no_status_decides_nothing(self, code: Any) -> None:
        assert classified(200, {"error": {"code": code, "message": "m"}}).cause is Cause.BAD_ANSWER

    @pytest.mark.parametrize("name", ["status", "code", "status_code", "http_status"])
    def test_a_status_within_the_error(self, name: str) -> None:
        assert classified(200, {"error": {name: 400, "message": "m"}}).kind is Kind.PERMANENT
        assert classified(200, {"error": {name: 599, "message": "m"}}).cause is Cause.SERVER_ERROR

    @pytest.mark.parametrize(
        ("code", "kind", "cause"),
        [
            ("permission_denied", Kind.KEY_REFUSED, Cause.KEY_REFUSED),
            ("not_found", Kind.PERMANENT, Cause.BAD_REQUEST),
            ("context_length_exceeded", Kind.PERMANENT, Cause.BAD_REQUEST),
            ("timed_out", Kind.TRANSIENT, Cause.TIMEOUT),
            ("overloaded_error", Kind.TRANSIENT, Cause.SERVER_ERROR),
        ],
    )
    def test_a_code_that_implies_a_status(self, code: str, kind: Kind, cause: Cause) -> None:
        found = classified(200, {"error": {"code": code, "message": "m"}})
        assert (found.kind, found.cause) == (kind, cause)

    def test_a_wait_is_given_with_whatever_may_be_tried_again(self) -> None:
        assert classified(429, b"", retry_after="2").retry_after_s == 2
        assert classified(408, b"", retry_after="2").retry_after_s == 2
        assert classified(200, {"error": {"message": "m"}}, retry_after="2").retry_after_s == 2
        assert classified(400, b"", retry_after="2").retry_after_s is None

    @pytest.mark.parametrize(
        ("error", "headers", "limit"),
        [
            ({"code": "queue_full"}, {}, Limit.SLOTS),
            ({"code": "tokens", "type": "requests"}, {}, Limit.TOKENS),
            ({"type": "requests"}, {}, Limit.STARTS),
            ({}, {"x_ratelimit_remaining_requests": " 0 "}, Limit.STARTS),
            ({}, {"x_ratelimit_remaining_tokens": "0"}, Limit.TOKENS),
            ({}, {"x_ratelimit_remaining_tokens": "1"}, Limit.UNKNOWN),
            ({}, {}, Limit.UNKNOWN),
        ],
    )
    def test_the_limit_that_a_429_is_about(self, error: Any, headers: dict[str, str], limit: Limit) -> None:
        assert classified(429, {"error": {"message": "m", **error}}, **headers).limit is limit


class TestMessages:
    def test_the_code_is_added_once(self) -> None:
        assert classified(400, {"error": {"message": "bad_n is bad", "code": "bad_n"}}).message == (
            "HTTP 400: bad_n is bad"
        )
        assert classified(400, {"error": {"code": "bad_n"}}).message == "HTTP 400: bad_n"
        assert classified(400, {"error": {"message": "m", "type": "bad_n"}}).message == "HTTP 400: m (bad_n)"
        assert classified(400, {"error": {"message": "m", "code": 17, "type": "x"}}).code == "17"

    def test_an_empty_one(self) -> None:
        assert classified(503, b"").message == "HTTP 503 with an empty body"
        assert classified(503, b"  \n").message == "HTTP 503 with an empty body"

    def test_a_long_one_is_cut(self) -> None:
        message = classified(400, {"error": {"message": "x" * 5000}}).message
        assert 300 <= len(message) <= 320
        assert len(one_line("a " * 5000)) == 300
        assert one_line("a\x00b\u2028c\n d") == "a b c d"

    def test_a_page_s_title_or_its_text(self) -> None:
        page = "<html><style>p{}</style><script>x<1</script><!-- no --><p>Bad <b>gate</b></p></html>"
        assert visible_text(page) == "Bad gate"
        assert visible_text("<title> </title><p>a</p>") == "a"
        assert visible_text("<TITLE id=1>One\n two</TITLE><p>a</p>") == "One two"
        assert visible_text("1 < 2") == "1 < 2"

    def test_a_redirect_names_scheme_and_host(self) -> None:
        assert "redirects to https://a.example," in classified(302, b"", location="https://a.example/x").message
        assert "redirects to another path," in classified(302, b"", location="/x").message
        assert "redirects to a.example," in classified(302, b"", location="//a.example/x").message
        assert "redirects to another path," in classified(302, b"", location="https://[").message
        assert classified(300, b"").kind is Kind.PERMANENT
        assert classified(399, b"").kind is Kind.PERMANENT

    def test_why_it_is_not_json(self) -> None:
        assert classified(200, b"[1").message == "HTTP 200: JSON cut short or damaged (2 bytes)"
        assert classified(200, b" ").message == "HTTP 200: an empty body"
        assert classified(200, b"hello").message == "HTTP 200: not JSON: hello"


class TestDepth:
    def test_lists_and_objects_count(self) -> None:
        assert not deeper_than(2, [{}])
        assert deeper_than(2, [{"a": []}])
        assert not deeper_than(1, [1, "a"])

    @pytest.mark.parametrize(("depth", "kind"), [(96, Kind.SUCCESS), (99, Kind.PERMANENT)])
    def test_a_completion_that_cannot_be_stored_is_permanent(self, depth: int, kind: Kind) -> None:
        """The completion, its choices and the choice are three levels more."""
        nested: Any = 1
        for _ in range(depth):
            nested = [nested]
        body = {"choices": [{"index": 0, "text": "a", "logprobs": nested}]}
        assert classified(200, body).kind is kind

    def test_many_brackets_side_by_side_are_not_deep(self) -> None:
        body = {"choices": [{"index": 0, "text": "a", "logprobs": [[] for _ in range(200)]}]}
        assert classified(200, body).kind is Kind.SUCCESS


class TestEncodings:
    def test_a_body_that_ends_in_nuls_or_spaces(self) -> None:
        assert parse_json(Answer(200, {}, b'{"a": NaN}\0\0 \r\n\t')) is None
        assert parse_json(Answer(200, {}, b'\xef\xbb\xbf{"a": 1} \r\n\t')) == {"a": 1}

    def test_slow_and_unknown_charsets(self) -> None:
        for charset in ("punycode", "IDNA", "no-such"):
            headers = {"content-type": f"application/json; charset={charset}"}
            assert parse_json(Answer(200, headers, b'\xef\xbb\xbf{"a": 1}')) is None


@pytest.mark.parametrize(
    ("choice", "there"),
    [
        ({"text": ""}, True),
        ({"text": None}, False),
        ({"text": None, "finish_reason": "content_filter"}, True),
        ({"text": None, "finish_reason": "length"}, False),
        ({"message": {"content": ""}}, True),
        ({"message": {"content": None}}, False),
        ({"message": {"content": None}, "finish_reason": "length"}, True),
        ({"message": {"content": None}, "finish_reason": "content_filter"}, True),
        ({"message": {"content": None, "tool_calls": []}, "finish_reason": "stop"}, False),
        ({"message": {"content": None, "audio": {"id": "a"}}}, True),
        ({"message": {"content": 5}, "text": "x"}, False),
    ],
)
def test_whether_a_choice_holds_a_continuation(choice: dict[str, Any], there: bool) -> None:
    assert has_text(choice) is there


def test_the_provider_s_own_number_of_starts() -> None:
    def stated(limit: str, reset: str = "") -> int:
        headers = {"x-ratelimit-limit-requests": limit, "x-ratelimit-reset-requests": reset}
        return stated_starts(headers, now=NOW)

    assert stated("100") == 100
    assert stated("0") == 0
    assert stated("999999999") == 999_999_999
    assert stated("1000000000") == 0
    assert stated("٣") == 0
    assert stated("100", "1m6s") == 100
    assert stated("100", "1m6.1s") == 0
    assert stated("100", "66") == 100
    assert stated("100", "67") == 0
    assert stated("100", "66000ms") == 100
    assert stated("100", "67000ms") == 0
    assert stated("100", "1h") == 0
    assert stated("100", "1d") == 0
    assert stated("100", "soon") == 100


def test_choices_without_indexes_count_by_their_place() -> None:
    found = check_choices({"choices": [None, {"text": "b"}, {"text": "c"}]}, 4)
    assert ([choice["index"] for choice in found.choices], found.missing) == ([1, 2], (0, 3))
    found = check_choices({"choices": [{"text": "a"}, {"text": "b"}]}, 2, prompts=2)
    assert [choice["index"] for choice in found.choices] == [0, 1]


def test_one_choice_for_each_of_several_prompts_is_n_ignored() -> None:
    two = {"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]}
    with pytest.raises(NIgnored, match="2 choices for 2 prompts, 4 requested"):
        check_choices(two, 4, prompts=2)
    assert check_choices(two, 4, prompts=1).missing == (2, 3)
    body = json.dumps(two).encode()
    found = classify_answer(Answer(200, {}, body), expected=4, prompts=2, now=NOW)
    assert (found.kind, found.cause) == (Kind.PERMANENT, Cause.BAD_ANSWER)
    assert classify_answer(Answer(200, {}, body), expected=4, now=NOW).kind is Kind.SHORT
