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
