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


def test_the_ids_of_a_failed_request_are_in_its_exception() -> None:
    failure = Failure(Cause.SERVER_ERROR, "HTTP 500", 500)
    error = failure.error(2, "task-1", ["req_a", "req_b"])
    assert (error.request_id, error.provider_request_ids) == ("task-1", ["req_a", "req_b"])
    raised_again = type(error)(*error.args)  # as Celery's result backend makes it
    assert raised_again.provider_request_ids == ["req_a", "req_b"]
    bare = failure.error()
    assert (bare.request_id, bare.provider_request_ids) == ("", [])
