"""Outcomes: the text of a choice, and messages between versions."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.outcome import Cause, Failure, Outcome, rollouts


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


def test_an_outcome_survives_its_message() -> None:
    outcome = Outcome("r", failure=Failure(Cause.TIMEOUT, "slow", 504), attempts=2, retries={"timeout": 2}, worker="w")
    assert Outcome.from_message(outcome.as_message()) == outcome


def test_an_outcome_of_a_newer_worker_is_read() -> None:
    failure = {"cause": "too_hot", "message": "cool down", "status": 418, "permanent": True, "since": 3}
    read = Outcome.from_message({"id": "r", "attempts": 1, "region": "eu", "failure": failure})
    assert read == Outcome("r", failure=Failure(Cause.INTERNAL, "too_hot: cool down", 418, True), attempts=1)


def test_an_outcome_of_an_older_worker_gets_defaults() -> None:
    assert Outcome.from_message({"id": "r", "failure": {"cause": "timeout"}}) == Outcome(
        "r", failure=Failure(Cause.TIMEOUT, "")
    )
