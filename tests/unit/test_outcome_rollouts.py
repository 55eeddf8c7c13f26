from __future__ import annotations

from typing import Any

import pytest

from brimful.outcome import rollouts


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"text": " blue"}, " blue"),
        ({"text": None}, ""),
        ({"message": {"content": "Blue."}}, "Blue."),
        ({"message": {"content": None, "tool_calls": [{}]}}, ""),
        ({"message": {"content": [{"type": "text", "text": "Bl"}, {"type": "text", "text": "ue."}, None]}}, "Blue."),
    ],
)
def test_the_text_of_a_choice(choice: dict[str, Any], text: str) -> None:
    (rollout,) = rollouts({"choices": [{"index": 5, "finish_reason": "stop", **choice}]}, 2)
    assert (rollout.prompt_index, rollout.choice_index, rollout.text, rollout.finish_reason) == (2, 1, text, "stop")
