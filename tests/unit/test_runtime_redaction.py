"""What logs, events and Flower show of a task's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.celery import app
from brimful.names import TASK_SAMPLE, TASK_SHARD
from brimful.runtime.redaction import describe

SECRET = "my secret prompt"


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ((SECRET,), {"max_tokens": 8}, ("(<1 request, 1 prompt>,)", "{'max_tokens': 8}")),
        (([SECRET, SECRET],), {}, ("(<1 request, 2 prompts>,)", "{}")),
        (([1, 2, 3],), {}, ("(<1 request, 1 prompt>,)", "{}")),
        ((), {"prompt": SECRET, "n": SECRET}, ("(<1 request, 1 prompt>,)", "{}")),
        (({"messages": [{"content": SECRET}], "n": 2},), None, ("(<1 request, 1 prompt>,)", "{'n': 2}")),
        (SECRET, SECRET, ("(<1 request, 1 prompt>,)", "{}")),
    ],
)
def test_a_sample_shows_how_much_was_asked_for_and_not_what(args: Any, kwargs: Any, shown: tuple[str, str]) -> None:
    assert describe(TASK_SAMPLE, args, kwargs) == shown


def test_a_shard_shows_its_names_and_its_size() -> None:
    shown = describe(TASK_SHARD, ("run", "s1", [{"request": {"prompt": SECRET}}] * 3), {})
    assert shown == ("(run, s1, <3 requests>)", "{}")


def test_a_message_s_headers_hold_no_prompt() -> None:
    headers = app.amqp.as_task_v2("id", TASK_SAMPLE, (SECRET,), {"n": 2}).headers
    assert (headers["argsrepr"], headers["kwargsrepr"]) == ("(<1 request, 1 prompt>,)", "{'n': 2}"), (
        "celery no longer passes argsrepr and kwargsrepr through AMQP.as_task_v2: adapt brimful.runtime.redaction"
    )
    assert SECRET not in str(headers)


def test_arguments_of_other_tasks_are_left_alone() -> None:
    assert describe("their.task", (1,), {}) is None
