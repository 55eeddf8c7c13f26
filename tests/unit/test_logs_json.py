"""Log records as JSON: their fields, what joins them, and what they never hold."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from brimful.config import Settings
from brimful.names import LogFormat
from brimful.outcome import Cause, Failure, Outcome
from brimful_worker.logs.fields import describe, described, log_failure
from brimful_worker.logs.json_format import RecordFormatter, use_log_format

SECRET = "a prompt that is nobody's business"


class Kept(logging.Handler):
    """Formats each record as a handler of a worker would."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(RecordFormatter("worker-1@host", "evals"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("brimful.test_logs_json")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger
    logger.handlers.clear()


@pytest.fixture
def kept(log: logging.Logger) -> Kept:
    handler = Kept()
    log.addHandler(handler)
    return handler


def test_a_record_is_one_line_with_time_level_logger_message_and_process(log: logging.Logger, kept: Kept) -> None:
    log.warning("%d outcomes\nwait", 3)
    [line] = kept.lines
    assert "\n" not in line
    [record] = kept.records
    assert record.pop("time").endswith("+00:00")
    assert record == {
        "level": "WARNING",
        "logger": "brimful.test_logs_json",
        "message": "3 outcomes\nwait",
        "process": "worker-1@host",
        "fleet": "evals",
    }


def test_a_record_of_any_text_is_written_as_utf_8() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "half a pair: %s", ("\ud800",), None)
    line = RecordFormatter("w").format(record)
    assert json.loads(line.encode())["message"] == "half a pair: \ud800"


def test_of_what_a_library_attaches_only_the_task_s_id_and_name_are_shown(log: logging.Logger, kept: Kept) -> None:
    data = {"id": "t-1", "name": "brimful.sample", "args": f"({SECRET!r},)", "kwargs": "{}", "return_value": SECRET}
    log.info("Task %(name)s[%(id)s] succeeded", data, extra={"data": data, "body": SECRET, "status": 200})
    [record] = kept.records
    assert (record["task_id"], record["task"], record["status"]) == ("t-1", "brimful.sample", 200)
    assert record["message"] == "Task brimful.sample[t-1] succeeded"
    assert SECRET not in kept.lines[0]


def test_a_traceback_is_a_field(log: logging.Logger, kept: Kept) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("it failed")
    [record] = kept.records
    assert record["message"] == "it failed"
    assert record["traceback"].startswith("Traceback")
    assert record["traceback"].endswith("ValueError: no")


async def test_what_is_described_holds_for_the_coroutines_that_are_started_from_there(
    log: logging.Logger, kept: Kept
) -> None:
    async def attempt() -> None:
        log.debug("an attempt")

    async def request(id: str) -> None:
        describe(request_id=id, run="r", units=[[1, f"line-{id}", 0, [0]], [1, f"line-{id}", 1, [0]]])
        await asyncio.create_task(attempt())

    await asyncio.gather(request("a"), request("b"))
    log.debug("none of them")
    first, second, other = kept.records
    assert [(one["request_id"], one["run"], one["line_id"]) for one in (first, second)] == [
        ("a", "r", "line-a"),
        ("b", "r", "line-b"),
    ]
    assert "request_id" not in other


@pytest.mark.parametrize(
    ("units", "shown"),
    [
        ([[n, f"p{n}", 0, [0]] for n in range(100)], {"line_ids": [f"p{n}" for n in range(16)], "lines": 100}),
        ([[1, 7, 0, [0]]], {"line_id": "7"}),
        (None, {}),
        ([[1]], {}),
    ],
)
async def test_a_packed_request_names_its_first_lines(units: Any, shown: dict[str, Any]) -> None:
    async def request() -> dict[str, Any]:
        describe(units=units)
        return described()

    assert await asyncio.create_task(request()) == shown


def test_a_request_that_failed_is_one_record_with_its_provider_s_ids(log: logging.Logger, kept: Kept) -> None:
    failure = Failure(Cause.SERVER_ERROR, "HTTP 500: overloaded", 500)
    outcome = Outcome("q-1", failure=failure, attempts=2, provider_request_ids=["req_1", "req_2"])
    log_failure(log, outcome, failure)
    [record] = kept.records
    assert record["level"] == "INFO"
    assert record["message"] == "request q-1 failed after 2 attempts: server_error: HTTP 500: overloaded"
    assert (record["attempt"], record["cause"], record["status"]) == (2, "server_error", 500)
    assert record["provider_request_ids"] == ["req_1", "req_2"]


@pytest.mark.parametrize(("format", "changed"), [("json", True), ("text", False)])
def test_the_setting_changes_the_handlers_that_are_there(
    monkeypatch: pytest.MonkeyPatch, format: str, changed: bool
) -> None:
    handler, plain = logging.StreamHandler(), logging.Formatter()
    handler.setFormatter(plain)
    task_log = logging.getLogger("celery.task")
    monkeypatch.setattr(task_log, "handlers", [handler])
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setenv("BRIMFUL_LOG_FORMAT", format)
    use_log_format(Settings.load(), "w")
    assert (handler.formatter is not plain) is changed
    assert Settings.load().log_format is (LogFormat.JSON if changed else LogFormat.TEXT)
