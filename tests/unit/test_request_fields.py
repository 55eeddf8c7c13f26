"""Requests: the estimate of their tokens, and fields that are refused."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import pytest

from brimful.errors import BadRequest
from brimful.profile import get_profile
from brimful.request import Request

ACS = get_profile("acs")
MESSAGES = [{"role": "user", "content": "Hello there"}]


@pytest.mark.parametrize(
    ("fields", "hold"),
    [
        ({"prompt": "12345678", "max_tokens": 10}, 3 + 10),
        ({"prompt": "12345678", "max_tokens": 10, "n": 4}, 3 + 40),
        ({"prompt": ["12345678", "1234"], "max_tokens": 10, "n": 4}, 3 + 2 + 80),
        ({"prompt": [1, 2, 3], "max_tokens": 10}, 3 + 10),
        ({"prompt": [[1, 2, 3], [4]], "max_tokens": 10}, 4 + 20),
        ({"prompt": "12345678"}, 3 + 16),
        ({"messages": MESSAGES}, 3 + 512),
        ({"messages": MESSAGES, "max_completion_tokens": 7}, 3 + 7),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello there!"}]}]}, 1 + 16 // 4 + 512),
        ({"messages": [{"role": "user", "content": [[1, 2.5], [], {"a": None, "b": True, "c": ["1234"]}]}]}, 2 + 512),
        ({"messages": [{"role": "user", "content": [{"a": None, "b": True}]}]}, 1 + 512),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, 1 + 512),
    ],
)
def test_the_hold_is_the_prompts_and_all_that_may_be_generated(fields: dict[str, Any], hold: int) -> None:
    request = Request.parse(fields, ACS)
    assert request.hold == hold
    assert replace(request, fields={"prompt": "1", "max_tokens": 2}).hold == 1 + 2
    assert request == Request.parse(fields, ACS), "what was computed of one is no part of it"


def test_the_hold_of_a_large_request_is_computed_once() -> None:
    request = Request.parse({"prompt": "12345678"}, ACS)
    assert (request.hold, pickle.loads(pickle.dumps(request)).hold) == (3 + 16, 3 + 16)
    assert isinstance(request.fields, dict)
    request.fields["prompt"] = "1234"
    assert request.hold == 3 + 16


@pytest.mark.parametrize("mode", ["job", "completion"])
def test_messages_are_refused_in_other_modes_than_chat(mode: str) -> None:
    with pytest.raises(BadRequest, match="messages: only the chat endpoint"):
        Request.parse({"messages": MESSAGES, "mode": mode}, ACS)


@pytest.mark.parametrize("model", ["", "  "])
def test_an_empty_model_is_refused(model: str) -> None:
    with pytest.raises(BadRequest, match="model: is empty"):
        Request.parse({"prompt": "a", "model": model}, ACS)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("field", ["messages", "metadata"])
def test_what_is_nested_too_deeply_to_be_written_is_refused(field: str) -> None:
    """Else it fails when it is sent, which costs a start."""

    def fields(levels: int) -> dict[str, Any]:
        content: Any = nested(levels) if field == "messages" else "a"
        return {"messages": [{"role": "user", "content": content}], "metadata": nested(levels)}

    Request.parse(fields(390), ACS)
    with pytest.raises(BadRequest, match=f"^{field}: nests lists and objects more than 400 levels deep"):
        Request.parse(fields(600) | ({"metadata": None} if field == "messages" else {}), ACS)


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value += [value, value]
    with pytest.raises(BadRequest, match="metadata: nests lists and objects"):
        Request.parse({"prompt": "a", "metadata": value}, ACS)


UNSENDABLE = {
    "temperature": [math.nan, math.inf, -math.inf, 2**64, -(2**63) - 1],
    "logit_bias": [{"5": math.nan}, {"5": {"x": [1, math.inf]}}, [2**64]],
    "n": [2**64, math.nan],
    "seed": [2**63, -(2**63) - 1, 2.0**63, math.inf],
    "of_a_provider": [(1, math.nan)],
}


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in UNSENDABLE.items() for value in values])
def test_numbers_that_no_provider_can_get_are_refused(field: str, value: Any) -> None:
    """As null, as Infinity or as a float with other digits they would fail, or change, after they were queued."""
    with pytest.raises(BadRequest, match=f"^{field}: .*(is not a JSON number|64 bits)"):
        Request.parse({"prompt": "a", "max_tokens": 2, field: value}, ACS)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.7976931348623157e308, "top_p": -0.0},
        {"seed": 2**63 - 1, "top_k": 2**64 - 1, "min_p": -(2**63)},
        {"logit_bias": {"5": -100, "6": 1e300}, "stop": ["a"], "ignore_eos": True},
        {"seed": 1.0},
    ],
)
def test_other_numbers_are_sent_as_they_are(fields: dict[str, Any]) -> None:
    assert Request.parse({"prompt": "a", **fields}, ACS).fields == {"prompt": "a", **fields}


@pytest.mark.parametrize("prompt", [2**64, [2**64], [[1, 2**64]], [math.nan], [10**5000]])
def test_prompts_that_are_odd_numbers_are_refused(prompt: Any) -> None:
    with pytest.raises(BadRequest, match=r"^prompt: "):
        Request.parse({"prompt": prompt}, ACS)


@pytest.mark.parametrize("fields", [{"max_tokens": 2**63}, {"n": 2**40}, {"n": 2**32, "max_tokens": 2**32}])
def test_more_tokens_than_redis_can_count_are_refused(fields: dict[str, int]) -> None:
    unbounded = ACS.model_copy(update={"max_request_tokens": None, "max_n": None, "max_tokens_required": False})
    with pytest.raises(BadRequest, match=r"^n, max_tokens: ask for [\d,]+ tokens; at most 1,000,000,000,000"):
        Request.parse({"prompt": "a", **fields}, unbounded)
    Request.parse({"prompt": "a", "max_tokens": 10**6, "n": 1000}, unbounded)
