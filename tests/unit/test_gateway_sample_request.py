"""Which request bodies the mock gateway accepts, and with which error it refuses the others."""

from __future__ import annotations

from typing import Any

import pytest

from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.responses import Refusal
from brimful_worker.gateway.sample_request import parse_request, read_json

GOOD: dict[str, Any] = {"model": "llama-8b", "prompt": "The sky is", "max_tokens": 2}


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a", 1), ("", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2), (["\ud800"], 1)],
)
def test_every_form_of_prompt_is_accepted(prompt: Any, count: int) -> None:
    request = parse_request({**GOOD, "prompt": prompt, "n": 3}, GatewayOptions(), chat=False)
    assert (len(request.prompts), request.choices) == (count, 3 * count)
    assert request.hold == request.prompt_tokens + 6 * count


@pytest.mark.parametrize(
    ("change", "status", "code", "param"),
    [
        ({"model": None}, 400, "missing_model", "model"),
        ({"model": 3}, 400, "invalid_type", "model"),
        ({"model": "gpt-2"}, 404, "model_not_found", "model"),
        ({"prompt": None}, 400, "missing_prompt", "prompt"),
        ({"prompt": []}, 400, "invalid_type", "prompt"),
        ({"prompt": ["a", 1]}, 400, "invalid_type", "prompt"),
        ({"prompt": [True]}, 400, "invalid_type", "prompt"),
        ({"prompt": [[]]}, 400, "invalid_type", "prompt"),
        ({"prompt": {"a": 1}}, 400, "invalid_type", "prompt"),
        ({"n": 0}, 400, "invalid_value", "n"),
        ({"n": True}, 400, "invalid_type", "n"),
        ({"max_tokens": "2"}, 400, "invalid_type", "max_tokens"),
        ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
        ({"max_tokens": 32_001}, 400, "request_too_large", "max_tokens"),
        ({"max_tokens": 16_001, "n": 2}, 400, "request_too_large", "max_tokens"),
        ({"max_tokens": None, "n": 2}, 400, "missing_max_tokens", "max_tokens"),
        ({"max_tokens": None, "prompt": ["a", "b"]}, 400, "missing_max_tokens", "max_tokens"),
        ({"temperature": 3}, 400, "invalid_value", "temperature"),
        ({"temperature": "hot"}, 400, "invalid_type", "temperature"),
        ({"seed": 1.5}, 400, "invalid_type", "seed"),
        ({"stop": [1]}, 400, "invalid_type", "stop"),
        ({"stream": 1}, 400, "invalid_type", "stream"),
        ({"stream_options": {"include_usage": True}}, 400, "invalid_value", "stream_options"),
        ({"n": 3, "best_of": 2, "max_tokens": 5}, 400, "invalid_value", "best_of"),
        ({"best_of": 2000, "max_tokens": 32}, 400, "request_too_large", "max_tokens"),
        ({"logprobs": 6}, 400, "invalid_value", "logprobs"),
        ({"echo": "yes"}, 400, "invalid_type", "echo"),
    ],
)
def test_an_invalid_field_is_refused_by_name(change: dict[str, Any], status: int, code: str, param: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_request({**GOOD, **change}, GatewayOptions(), chat=False)
    error = refused.value.body["error"]
    assert (refused.value.status, error["code"], error["param"]) == (status, code, param)
    assert set(error) == {"message", "type", "code", "param"}


def test_a_request_at_the_limit_is_accepted() -> None:
    request = parse_request({**GOOD, "prompt": ["a"] * 100, "n": 10, "max_tokens": 32}, GatewayOptions(), chat=False)
    assert request.choices * request.max_tokens == 32_000


def test_chat_messages() -> None:
    fields = {"model": "gpt-5.5", "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 7, "n": 2}
    request = parse_request(fields, GatewayOptions(), chat=True)
    assert (request.max_tokens, request.choices) == (7, 2)
    for messages in (None, [], "Hi", [{"content": "Hi"}], [{"role": "user", "content": 1}]):
        with pytest.raises(Refusal):
            parse_request({**fields, "messages": messages}, GatewayOptions(), chat=True)


def test_the_body_is_a_json_object() -> None:
    assert read_json(b'{"a": "\\ud800"}') == {"a": "\ud800"}
    for body in (b"", b"{", b"[1]", b'"a"', b"\xff"):
        with pytest.raises(Refusal) as refused:
            read_json(body)
        assert refused.value.code == "invalid_json"
