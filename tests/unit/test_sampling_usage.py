"""Usage that is missing or cannot be true."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.profile import get_profile
from brimful.request import Request
from brimful_worker.gateway import GatewayOptions
from brimful_worker.gateway.model.completion import complete
from brimful_worker.gateway.sample_request import parse_request
from brimful_worker.sampling.usage_check import UsageCheck

PROMPTS = [f"{number}: tell me of the harbour in winter, and of the boats that lie there" for number in range(50)]


def sampled(usage: str = "true", reasoning: str = "none", **fields: Any) -> tuple[dict[str, Any], Request, int]:
    """A completion with such a usage, its request, and the tokens that it really cost."""
    options = GatewayOptions(usage=usage, reasoning=reasoning)
    chat = "messages" in fields
    completion = complete(parse_request({"model": "llama-8b", **fields}, options, chat=chat), options)
    request = Request.parse(fields, get_profile("acs"))
    return completion.body, request, completion.prompt_tokens + completion.completion_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "a", "max_tokens": 1},
        {"prompt": PROMPTS, "max_tokens": 64},
        {"prompt": PROMPTS[0], "n": 8, "max_tokens": 400},
        {"prompt": [[1, 2, 3], [4]], "max_tokens": 5},
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
    ],
)
def test_a_true_usage_is_left_as_it_is(fields: dict[str, Any]) -> None:
    check = UsageCheck()
    for number in range(5):
        taught, request, _ = sampled(prompt=PROMPTS[number], max_tokens=400)
        check.check(taught, request)
    body, request, _ = sampled(**fields)
    usage = dict(body["usage"])
    assert check.check(body, request) == 0
    assert body["usage"] == usage


@pytest.mark.parametrize("usage", ["missing", "zero", "one_choice"])
def test_choices_that_were_cut_prove_their_tokens(usage: str, caplog: pytest.LogCaptureFixture) -> None:
    check = UsageCheck()
    for _ in range(2):
        body, request, true = sampled(usage, prompt=PROMPTS, max_tokens=20)
        beyond = check.check(body, request)
        assert body["usage"]["completion_tokens"] == 50 * 20
        assert body["usage"]["estimated"] is True
        total = body["usage"]["total_tokens"]
        assert total == body["usage"]["prompt_tokens"] + 1000
        assert 0.6 * true <= total
        assert total + beyond >= request.hold
    assert len(caplog.messages) == 1
    assert "usage" in caplog.messages[0]


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_more_tokens_than_redis_can_count_are_not_believed(name: str) -> None:
    """A counter of the provider's that ran below zero would end all counting of callers' usage."""
    body, request, _ = sampled(prompt=PROMPTS[0], max_tokens=20)
    body["usage"][name] = 2**64 - 1
    UsageCheck().check(body, request)
    assert body["usage"]["estimated"] is True
    assert body["usage"]["total_tokens"] < 1000


@pytest.mark.parametrize("n", [2, 3, 8])
def test_one_choice_s_usage_is_not_believed_once_others_were_seen(n: int) -> None:
    check = UsageCheck()
    for number in range(8):
        taught, request, _ = sampled(prompt=PROMPTS[number], max_tokens=400)
        assert check.check(taught, request) == 0
    for number in range(8, 20):
        body, request, true = sampled("one_choice", prompt=PROMPTS[number], n=n, max_tokens=400)
        check.check(body, request)
        told = body["usage"]
        if told.get("estimated"):
            assert 0.8 * true <= told["total_tokens"] <= 1.3 * true
        else:  # its one choice was much longer than the others
            assert told["total_tokens"] >= 0.6 * true


def test_hidden_reasoning_teaches_nothing() -> None:
    """A provider may count tokens that it does not show; others show none and count few."""
    check = UsageCheck()
    for number in range(8):
        body, request, _ = sampled(prompt=PROMPTS[number], max_tokens=400)
        body["usage"]["completion_tokens"] += 5000
        assert check.check(body, request) == 0
    body, request, _ = sampled(prompt=PROMPTS[9], n=4, max_tokens=400)
    assert check.check(body, request) == 0


def test_images_do_not_count_as_text() -> None:
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:" + "A" * 9**6}},
    ]
    body, request, _ = sampled(messages=[{"role": "user", "content": content}], max_tokens=9)
    body["usage"]["prompt_tokens"] = 800
    assert UsageCheck().check(body, request) == 0


def answered(
    usage: Any, *texts: str, prompt: Any = "p" * 24, max_tokens: int = 100, finish: str = "stop", **fields: Any
) -> tuple[dict[str, Any], Request]:
    """A completion with such texts and usage ``(prompt_tokens, completion_tokens)``, and its request."""
    if isinstance(usage, tuple):
        usage = dict(zip(("prompt_tokens", "completion_tokens"), usage, strict=True))
    choices = [{"index": index, "text": text, "finish_reason": finish} for index, text in enumerate(texts)]
    request = Request.parse({"prompt": prompt, "n": len(texts), "max_tokens": max_tokens, **fields}, get_profile("acs"))
    return {"choices": choices, "usage": usage}, request


def believes(check: UsageCheck, completion: dict[str, Any], request: Request) -> bool:
    check.check(completion, request)
    return "estimated" not in completion["usage"]


@pytest.mark.parametrize(
    ("usage", "prompt", "text", "believed"),
    [
        ((1, 1), "p" * 24, "t" * 24, True),
        ((2, 2), "p" * 48, "t" * 48, True),
        ((1, 2), "p" * 48, "t" * 48, False),
        ((2, 1), "p" * 48, "t" * 48, False),
        ((0, 1), "p", "t", False),
        ((1, 0), "p", "t", False),
        ((1, 0), "p", "", True),
        ((3, 1), [1, 2, 3], "t", True),
        ((2, 1), [1, 2, 3], "t", False),
        ((True, 1), "p", "t", False),
        ((1, True), "p", "t", False),
        ((-1, 1), "p", "t", False),
        ((1, 1.0), "p", "t", False),
        (None, "p", "t", False),
        ([1, 1], "p", "t", False),
    ],
)
def test_a_choice_has_a_token_for_24_bytes_at_least(usage: Any, prompt: Any, text: str, believed: bool) -> None:
    assert believes(UsageCheck(), *answered(usage, text, prompt=prompt)) is believed


@pytest.mark.parametrize(("completion_tokens", "believed"), [(12, True), (11, False)])
def test_choices_cut_at_max_tokens_have_most_of_them(completion_tokens: int, believed: bool) -> None:
    cut = answered((9, completion_tokens), "a", "b", max_tokens=10, finish="length")
    assert believes(UsageCheck(), *cut) is believed


def test_what_is_not_cut_has_no_least_tokens_but_those_of_its_text() -> None:
    assert believes(UsageCheck(), *answered((9, 2), "a", "b", max_tokens=10))


@pytest.mark.parametrize(("taught", "believed"), [(2, True), (3, False)])
def test_three_answers_of_one_choice_are_enough_to_doubt_others(taught: int, believed: bool) -> None:
    check = UsageCheck()
    for _ in range(taught):
        assert believes(check, *answered((80, 80), "t" * 320, prompt="p" * 320))
    assert believes(check, *answered((80, 80), "t" * 320, "t" * 320, prompt="p" * 320)) is believed


@pytest.mark.parametrize(
    ("usage", "length", "believed"),
    [
        ((80, 160), 320, True),
        ((64, 128), 320, True),  # four fifths
        ((63, 160), 320, False),
        ((80, 127), 320, False),
        ((63, 127), 120, True),  # too short to judge
    ],
)
def test_usage_below_four_fifths_of_the_fewest_tokens_seen_is_doubted(
    usage: tuple[int, int], length: int, believed: bool
) -> None:
    check = UsageCheck()
    for _ in range(3):
        assert believes(check, *answered((80, 80), "t" * 320, prompt="p" * 320))
    text = "t" * length
    assert believes(check, *answered(usage, text, text, prompt="p" * (320 if length == 320 else 255))) is believed


def test_a_server_that_is_wrong_half_of_the_time_is_not_believed() -> None:
    check = UsageCheck()
    right, wrong = ((9, 20), "a", "b"), ((9, 1), "t" * 48, "t" * 48)
    for usage, believed in ((right, True), (wrong, False), (right, True), (wrong, False), (right, True)):
        assert believes(check, *answered(usage[0], *usage[1:])) is believed
    assert not believes(check, *answered(wrong[0], *wrong[1:]))
    assert not believes(check, *answered(wrong[0], *wrong[1:]))
    assert not believes(check, *answered(right[0], *right[1:])), "four of eight could not be true"
    assert believes(check, *answered((9, 1), "a")), "one choice is judged alone"


def test_an_estimate_is_made_of_texts_and_of_choices_that_were_cut() -> None:
    check = UsageCheck()
    body, request = answered(None, "t" * 40, "", prompt=["p" * 40, "q" * 80], max_tokens=100)
    body["choices"] = [*body["choices"], {"index": 2, "text": "x", "finish_reason": "length"}]
    beyond = check.check(body, request)
    asked, sampled = 30, 10 + 0 + 100
    assert body["usage"] == {
        "prompt_tokens": asked,
        "completion_tokens": sampled,
        "total_tokens": asked + sampled,
        "estimated": True,
    }
    assert beyond == request.hold - asked - sampled > 0


def test_an_estimate_is_no_more_than_max_tokens_and_no_less_than_what_was_reported() -> None:
    body, request = answered((50, 0), "t" * 400, max_tokens=20)
    assert UsageCheck().check(body, request) == max(0, request.hold - 70)
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (50, 20)
    body, request = answered((0, 70), "t" * 40, max_tokens=100)
    UsageCheck().check(body, request)
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (6, 70)


def test_all_texts_of_a_chat_count(caplog: pytest.LogCaptureFixture) -> None:
    message = {"content": "a" * 40, "reasoning": "b" * 40, "tool_calls": [{"name": "f" * 20}], "refusal": None}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {}}
    chat = [{"role": "user", "content": "Hi"}]
    UsageCheck().check(body, Request.parse({"messages": chat, "max_tokens": 90}, get_profile("acs")))
    assert body["usage"]["completion_tokens"] == round((80 + len(str(message["tool_calls"]))) / 4)  # type: ignore[call-overload]
    assert "the provider reports no usage" in caplog.text


def test_what_cannot_be_right_is_reported_once_with_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    check = UsageCheck()
    for _ in range(2):
        assert not believes(check, *answered((0, 3), "a", "b", prompt=["p", "q"]))
    [message] = caplog.messages
    assert "(0 prompt and 3 completion tokens for 2 prompts and 2 choices)" in message
