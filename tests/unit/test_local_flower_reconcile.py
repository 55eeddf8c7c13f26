"""Flower's look-ups of tasks whose ends it missed: which are asked for, how many at once, and what a result says."""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from flower.events import Events, EventsState

from brimful_worker.local.flower.reconcile import End, Reconciler, read_end
from support import upstream


def stored(status: str, result: Any = None, **more: Any) -> bytes:
    """As Celery's backend writes it."""
    meta = {"status": status, "result": result, "traceback": None, "children": []}
    return json.dumps({**meta, "date_done": "2026-01-02T03:04:05+00:00", **more, "task_id": "t"}).encode()


def end(value: bytes) -> End | None:
    return read_end(value[:2048], value[-512:])


def test_a_stored_result_says_how_a_task_ended() -> None:
    at = 1767323045.0
    assert end(stored("STARTED", {"pid": 1})) is None
    assert end(stored("RETRY")) is None
    assert end(stored("SUCCESS", {"choices": [{"text": "x" * 10_000}]})) == End("SUCCESS", at)
    assert end(stored("SUCCESS", {"choices": [{"text": '"date_done": "1999-01-01"'}]})) == End("SUCCESS", at)
    failure = {"exc_type": "PermanentFailure", "exc_message": ["no", 400], "exc_module": "brimful.errors"}
    assert end(stored("FAILURE", failure, traceback="x" * 9000)) == End("FAILURE", at, "PermanentFailure('no', 400)")
    assert end(stored("FAILURE", {**failure, "exc_message": "x" * 9000})) == End("FAILURE", at, "(see the result)")
    revoked = {"exc_type": "TaskRevokedError", "exc_message": ["terminated"]}
    assert end(stored("REVOKED", revoked)) == End("REVOKED", at)


@pytest.mark.parametrize("value", [b"", b"{}", b"not JSON", b'{"status": "ODD", "result": null}', b"\xff" * 3000])
def test_other_values_say_nothing(value: bytes) -> None:
    assert end(value) is None


def test_all_tasks_that_have_not_ended_have_their_turn_a_bounded_number_at_once() -> None:
    tasks = {str(n): SimpleNamespace(state="SUCCESS" if n % 2 else "STARTED") for n in range(4000)}
    reconciler = Reconciler(Celery("x"))
    rounds = [reconciler.next_tasks(tasks) for _ in range(4)]
    assert [len(wanted) for wanted in rounds] == [500] * 4
    assert {id for wanted in rounds for id in wanted} == {id for id, task in tasks.items() if task.state == "STARTED"}
    tasks["1000"].state = "REVOKED"
    del tasks["0"]
    for task in tasks.values():
        task.state = "SUCCESS"
    tasks["2"].state = "RECEIVED"
    assert [reconciler.next_tasks(tasks) for _ in range(5)] == [{"2": "RECEIVED"}] * 5


def test_an_end_changes_only_tasks_that_flower_still_takes_for_running() -> None:
    state = EventsState(max_tasks_in_memory=100)
    common = {"hostname": "w", "clock": 1, "local_received": 0.0, "pid": 1, "utcoffset": 0}
    for id in ("running", "ended"):
        state.event({"type": "task-started", "uuid": id, "timestamp": 1.0, **common})
    state.event({"type": "task-failed", "uuid": "ended", "timestamp": 2.0, "exception": "E()", **common})
    events = dict(state.counter["w"])
    Reconciler(Celery("x")).apply(state, {id: End("SUCCESS", 3.0) for id in ("running", "ended", "forgotten")})
    shown = {id: (task.state, task.succeeded, task.failed) for id, task in state.tasks.items()}
    assert shown == {"running": ("SUCCESS", 3.0, None), "ended": ("FAILURE", None, 2.0)}
    assert dict(state.counter["w"]) == events
    assert not state.workers["w"].heartbeats, "the worker may be gone"
    found = state.search_engine.search(
        state.tasks, "", task_type=None, worker=None, state="SUCCESS", received_start=None, received_end=None,
        sort_by=None, descending=False, offset=0, limit=None,
    )  # fmt: skip
    assert list(found.task_ids) == ["running"]


def test_the_private_parts_of_flower_are_unchanged() -> None:
    """``flower/reconcile.py`` uses them as they are in Flower 2.2: look there if this fails."""
    upstream.check(
        "flower.events:EventsState._index_task",
        "0c0116a05edb",
        read_in="flower 2.2.0",
        used_by="brimful_worker.local.flower.reconcile",
    )
    assert list(inspect.signature(Events.start).parameters) == ["self"]
    assert list(inspect.signature(Events.stop).parameters) == ["self"]
