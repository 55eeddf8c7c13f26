"""Requests: the estimate of their tokens, and fields that are refused."""

from __future__ import annotations

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
    ],
)
def test_the_hold_is_the_prompts_and_all_that_may_be_generated(fields: dict[str, Any], hold: int) -> None:
    assert Request.parse(fields, ACS).hold == hold


@pytest.mark.parametrize("mode", ["job", "completion"])
def test_messages_are_refused_in_other_modes_than_chat(mode: str) -> None:
    with pytest.raises(BadRequest, match="messages: only the chat endpoint"):
        Request.parse({"messages": MESSAGES, "mode": mode}, ACS)


@pytest.mark.parametrize("model", ["", "  "])
def test_an_empty_model_is_refused(model: str) -> None:
    with pytest.raises(BadRequest, match="model: is empty"):
        Request.parse({"prompt": "a", "model": model}, ACS)
