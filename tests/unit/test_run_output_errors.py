"""``OUT.errors.jsonl``: failures are recorded until their line succeeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brimful.outcome import Cause, Failure
from brimful.packing.units import DriveStatus, Unit
from brimful.run import session
from brimful.run.output.done_index import DoneIndex
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.totals import Totals
from support.fake_driver import FakeDriver
from support.runs import options, prompts, records, run, write_lines


@pytest.mark.parametrize(("others", "counted"), [(63, True), (64, False)])
def test_counted_messages_are_bounded(tmp_path: Path, others: int, counted: bool) -> None:
    errors = ErrorsFile(tmp_path / "errors.jsonl")
    messages = [f"once {line} " + "x" * 500 for line in range(others)] + ["often"] * 500
    write_lines(
        errors.path,
        [{"line": line, "cause": "timeout", "message": message} for line, message in enumerate(messages, 1)],
    )
    errors.load(DoneIndex())
    assert errors.transient == len(messages)
    commonest = errors.commonest()["timeout"]
    assert (commonest == "often") is counted
    assert counted or (commonest.startswith("once 0 x") and len(commonest) <= 160)


def test_failures_are_recorded_and_asked_again_only_with_retry_errors(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", prompts(tmp_path, 6)
    errors = tmp_path / "out.jsonl.errors.jsonl"
    fault = Failure(Cause.CONTENT_FILTER, "400: no", 400, permanent=True)
    failing = FakeDriver(lambda unit, *_: fault if unit.line in (2, 5) else "ok")
    summary = run(options(source, out=out), failing)
    assert summary is not None
    assert (summary.exit_code, summary.failed, summary.failed_by_cause) == (3, 2, {"content_filter": 2})
    assert [(record["id"], record["line"], record["cause"]) for record in records(errors)] == [
        ("p1", 2, "content_filter"), ("p4", 5, "content_filter"),
    ]  # fmt: skip
    assert records(errors)[0]["request"]["prompt"] == "Say 1"
    again = FakeDriver()
    summary = run(options(source, out=out), again)
    assert summary is not None
    assert (again.asked, summary.exit_code) == ([], 3)
    retried = FakeDriver(lambda unit, *_: fault if unit.line == 5 else "ok")
    summary = run(options(source, out=out, retry_errors=True), retried)
    assert summary is not None
    assert [unit.line for unit in retried.asked] == [2, 5]
    assert [record["line"] for record in records(errors)] == [5]
    summary = run(options(source, out=out, retry_errors=True), FakeDriver())
    assert summary is not None
    assert (summary.exit_code, summary.failed, errors.exists()) == (0, 0, False)
    assert len(records(out)) == 6


def test_what_is_asked_again_counts_once_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, source = tmp_path / "out.jsonl", write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}] * 8 + ["{no json"])
    fault = Failure(Cause.TIMEOUT, "late", None, permanent=False)
    asked = options(source, out=out, read={"defaults": {"max_tokens": 8, "n": 2}})
    run(asked, FakeDriver(lambda unit, *_: fault if unit.line > 2 else "ok"))
    made: list[Totals] = []
    monkeypatch.setattr(session, "Totals", lambda *given, **named: made.append(Totals(*given, **named)) or made[-1])
    seen: list[tuple[int, int, int]] = []

    def again(unit: Unit, *_: int) -> str | Failure:
        now = made[0].progress(DriveStatus(), stopping=False)
        seen.append((now.succeeded, now.failed, now.done))
        return fault if unit.line == 3 else "ok"

    summary = run(replace(asked, retry_errors=True), FakeDriver(again, batch=1, ahead=1))
    assert summary is not None
    assert (summary.succeeded, summary.failed, summary.requests) == (7, 2, 9)
    assert seen[0] == (2, 7, 3)  # done: those sampled, and the bad line
    assert all(sampled + failed == 9 for sampled, failed, _ in seen)
    assert [done for *_, done in seen] == sorted(done for *_, done in seen)
    assert seen[-1] == (6, 3, 8)


def test_bad_lines_are_recorded_and_can_be_corrected(tmp_path: Path) -> None:
    out, source = tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    lines = ['{"prompt": "a"}', "{not json", '{"prompt": "c"}']
    write_lines(source, lines)
    summary = run(options(source, out=out))
    assert summary is not None
    assert (summary.exit_code, summary.succeeded, summary.failed, summary.requests) == (3, 2, 1, 3)
    (error,) = records(tmp_path / "out.jsonl.errors.jsonl")
    assert (error["line"], error["cause"], error["request"]) == (2, "bad_input", "{not json")
    assert error["message"].startswith(f"{source}:2: is not JSON")
    write_lines(source, [lines[0], '{"prompt": "b"}', lines[2]])
    driver = FakeDriver()
    summary = run(options(source, out=out), driver)
    assert summary is not None
    assert [unit.line for unit in driver.asked] == [2]
    assert (summary.exit_code, summary.succeeded, summary.failed) == (0, 3, 0)
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()
