"""What the records of a rollouts file and of an errors file say, field by field."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from brimful.errors import FleetError, InputError, UsageError
from brimful.outcome import Cause, Failure, Outcome, Rollout
from brimful.packing.units import Delivered, Failed, Unit
from brimful.request import Request
from brimful.run.input.columns import Keep
from brimful.run.input.reader import BadLine
from brimful.run.input.sweep.sweep import Sweep
from brimful.run.output.done_index import DoneIndex
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.output.jsonl import RecordFile, StandardOutput, mend
from brimful.run.output.records import dump_line, load_line, rollout_records
from support.fake_driver import FakeDriver
from support.runs import PROFILE, options, records, run, write_lines


def unit(line: int = 1, **fields: Any) -> Unit:
    return Unit(line, str(line), Request.parse({"prompt": "a", "max_tokens": 8, **fields}, PROFILE))


def delivered(*rollouts: Rollout, line: int = 1, **more: Any) -> Delivered:
    given: dict[str, Any] = {"model": "m", "usage": None, "outcome": Outcome("r"), "packed": 1, **more}
    return Delivered(line, str(line), list(rollouts), **given)


class TestRollouts:
    def test_every_field(self) -> None:
        outcome = Outcome(
            "r1", attempts=3, retries={"rate_limited": 1, "queue_full": 1}, waited_s=1.00004, provider_s=2.00006,
            retrying_s=0.5, started_at=10.12345678, ended_at=12.5, provider_request_ids=["p1"],
        )  # fmt: skip
        usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
        made = delivered(Rollout(1, 0, "x", "stop"), usage=usage, outcome=outcome, packed=7, asked_model="other")
        (record,) = rollout_records(made, unit(n=3, prompt=["a", "b"]))
        assert record == {
            "id": "1", "line": 1, "prompt_index": 1, "choice_index": 0, "of": 6, "text": "x", "finish_reason": "stop",
            "usage": usage, "model": "m", "attempts": 3, "request_id": "r1", "packed": 7, "started_at": 10.1235,
            "ended_at": 12.5, "waited_s": 1.0, "provider_s": 2.0001, "retrying_s": 0.5, "asked_model": "other",
            "rate_limited": 2, "provider_request_ids": ["p1"],
        }  # fmt: skip

    @pytest.mark.parametrize("seconds", [0.0, 4.9e-5, 0.12344, 0.12346, 59.99996, 1764639000.12344, 1764639000.12346])
    def test_durations_and_times_have_four_places(self, seconds: float) -> None:
        outcome = Outcome("r", waited_s=seconds, started_at=seconds)
        (record,) = rollout_records(delivered(Rollout(0, 0, "x", None), outcome=outcome), None)
        assert record["waited_s"] == record["started_at"] == round(seconds, 4)

    def test_what_is_not_known_is_null_or_left_out(self) -> None:
        (record,) = rollout_records(delivered(Rollout(0, 0, "x", None)), None)
        for name in ("of", "usage", "started_at", "ended_at", "finish_reason"):
            assert record[name] is None
        for name in ("asked_model", "rate_limited", "provider_request_ids", "logprobs", "message", "input"):
            assert name not in record

    def test_the_model_that_was_asked_for_is_there_where_it_is_another(self) -> None:
        for asked, there in (("", False), ("m", False), ("n", True)):
            (record,) = rollout_records(delivered(Rollout(0, 0, "x", None), asked_model=asked), None)
            assert ("asked_model" in record) is there

    def test_log_probabilities_are_written(self) -> None:
        choice = {"index": 0, "text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [-0.5]}}
        (record,) = rollout_records(delivered(Rollout(0, 0, "x", "stop", choice)), unit())
        assert record["logprobs"] == choice["logprobs"]
        assert "message" not in record

    def test_a_chat_s_message_without_its_content_and_nulls(self) -> None:
        message = {"role": "assistant", "content": "x", "tool_calls": [{"id": "t"}], "refusal": None}
        (record,) = rollout_records(delivered(Rollout(0, 0, "x", "stop", {"message": message})), unit())
        assert record["message"] == {"role": "assistant", "tool_calls": [{"id": "t"}]}
        assert "logprobs" not in record

    def test_usage_is_shared_by_the_length_of_the_texts(self) -> None:
        usage = {"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22}
        texts = ("xxxx", "x", "x", "")
        made = delivered(*[Rollout(0, place, text, "stop") for place, text in enumerate(texts)], usage=usage)
        shares = [record["usage"] for record in rollout_records(made, unit(n=4))]
        assert [share["completion_tokens"] for share in shares] == [7, 2, 2, 1], "an empty one counts as one character"
        assert [share["prompt_tokens"] for share in shares] == [10, 0, 0, 0]

    def test_ids_keep_their_type(self) -> None:
        numbered = Unit(1, "7", unit().request, given_id=7)
        (record,) = rollout_records(delivered(Rollout(0, 0, "x", "stop")), numbered)
        assert record["id"] == 7
        (record,) = rollout_records(delivered(Rollout(0, 0, "x", "stop")), unit())
        assert record["id"] == "1"

    def test_a_line_is_one_line_to_every_reader(self) -> None:
        texts = {"a": "\u2028\u2029\x85\n\r é"}
        data = dump_line(texts)
        assert data.endswith(b"}\n")
        assert len(data.decode().splitlines()) == 1
        assert json.loads(data) == texts
        assert "é" in data.decode()
        assert json.loads(dump_line({"a": "\ud800 \u2028"})) == {"a": "\ud800 \u2028"}

    @pytest.mark.parametrize("data", [b"[1]", b"1", b"{", b"\xff", b"[" * 100_000, b""])
    def test_a_line_that_is_no_record(self, data: bytes) -> None:
        with pytest.raises(InputError, match=r"out.jsonl:3: is not a record of a run"):
            load_line(data, "out.jsonl:3")


@pytest.fixture
def errors(tmp_path: Path) -> ErrorsFile:
    return ErrorsFile(tmp_path / "errors.jsonl")


def failure(cause: Cause = Cause.TIMEOUT, message: str = "late", *, permanent: bool = False) -> Failure:
    return Failure(cause, message, 504, permanent=permanent)


def failed(line: int, why: Failure | None = None, wanted: tuple[tuple[int, int], ...] = (), **more: Any) -> Failed:
    given: dict[str, Any] = {"outcome": Outcome("r", attempts=2, retries={"timeout": 2}, ended_at=5.00049), **more}
    return Failed(line, str(line), unit(line, n=2).request, wanted, why or failure(), **given)


class TestErrors:
    def test_every_field(self, errors: ErrorsFile) -> None:
        line = Unit(3, "3", unit().request, columns={"answer": 4}, given_id=3)
        outcome = Outcome("r", attempts=2, retries={"timeout": 2}, ended_at=5.00049, provider_request_ids=["p1", "p2"])
        errors.write_failed(failed(3, wanted=((0, 1),), details={"checks": 1}, outcome=outcome), line)
        (record,) = records(errors.path)
        assert record == {
            "id": 3, "line": 3, "cause": "timeout", "message": "late", "attempts": 2,
            "request": {"prompt": "a", "max_tokens": 8, "n": 2, **_defaults(record)}, "status": 504,
            "permanent": False, "wanted": [[0, 1]], "of": 2, "retries": {"timeout": 2}, "request_id": "r",
            "at": 5.0, "input": {"answer": 4}, "checks": 1, "provider_request_ids": ["p1", "p2"],
        }  # fmt: skip

    def test_all_of_a_line_is_wanted_where_nothing_else_is_said(self, errors: ErrorsFile) -> None:
        errors.write_failed(failed(1))
        assert records(errors.path)[0]["wanted"] == [[0, 0], [0, 1]]

    def test_a_failure_of_an_earlier_submitter_takes_its_request_from_the_line(self, errors: ErrorsFile) -> None:
        lost = Failed(2, "2", None, (), failure(), Outcome("r"))
        errors.write_failed(lost)
        errors.write_failed(lost, unit(2, n=3))
        first, second = records(errors.path)
        assert (first["request"], first["of"], first["wanted"]) == (None, None, [])
        assert (second["request"]["prompt"], second["of"]) == ("a", 3)
        assert first["at"] > 1_600_000_000

    def test_a_bad_line(self, errors: ErrorsFile) -> None:
        errors.write_bad(BadLine(2, "x", "in.jsonl:2", "is wrong", b'{"a": 1}', columns={"b": 2}))
        errors.write_bad(BadLine(3, 3, "in.jsonl:3", "is wrong", b"\xff" + b"x" * 20_000), Keep(columns=False))
        first, second = records(errors.path)
        assert {name: first[name] for name in first if name != "at"} == {
            "id": "x", "line": 2, "cause": "bad_input", "message": "in.jsonl:2: is wrong", "attempts": 0,
            "request": {"a": 1}, "input": {"b": 2},
        }  # fmt: skip
        assert second["request"] == "\ufffd" + "x" * 9_999
        assert "input" not in second

    def test_the_counts(self, errors: ErrorsFile) -> None:
        errors.write_failed(failed(1))
        errors.write_failed(failed(1, failure(Cause.SERVER_ERROR)))
        errors.write_failed(failed(2, failure(permanent=True)))
        errors.write_bad(BadLine(3, 3, "in.jsonl:3", "is wrong", b""))
        assert errors.causes == {"timeout": 2, "bad_input": 1}
        assert errors.transient == 1
        assert errors.failed == 3
        assert [line in errors.bad for line in (1, 2, 3)] == [False, False, True]
        assert errors.commonest() == {"timeout": "late", "bad_input": "is wrong"}

    def test_a_line_that_has_succeeded_is_no_failure_any_more(self, errors: ErrorsFile) -> None:
        errors.write_failed(failed(1))
        errors.write_failed(failed(2))
        assert errors.make_good(1)
        assert errors.failed == 1
        assert not errors.make_good(7)
        assert errors.failed == 1
        errors.close()
        again, done = ErrorsFile(errors.path), DoneIndex()
        done.add(1, 0, 0, 1)
        again.load(done)
        assert again.failed == 1
        assert [record["line"] for record in records(errors.path)] == [2]

    def test_the_count_of_the_made_good_begins_again(self, errors: ErrorsFile) -> None:
        errors.write_failed(failed(1))
        errors.make_good(1)
        errors.load(DoneIndex())
        assert errors.failed == 1

    def test_without_failures_there_is_no_file(self, errors: ErrorsFile) -> None:
        errors.write_failed(failed(1))
        errors.write_failed(failed(2))
        done = DoneIndex()
        for line in (1, 2):
            done.add(line, 0, 0, 1)
        errors.load(done)
        assert not errors.path.exists()
        assert errors.failed == 0
        errors.write_failed(failed(3))
        errors.discard()
        assert not errors.path.exists()

    def test_of_several_records_the_newest_for_each_rollout_stays(self, errors: ErrorsFile) -> None:
        for wanted, message in ((((0, 0), (0, 1)), "all"), (((0, 0),), "first"), (((0, 0),), "first again")):
            errors.write_failed(failed(1, failure(message=message), wanted))
        errors.load(DoneIndex())
        assert [record["message"] for record in records(errors.path)] == ["all", "first again"]
        done = DoneIndex()
        done.add(1, 0, 1, 2)
        errors.load(done)
        assert [record["message"] for record in records(errors.path)] == ["first again"]

    def test_a_record_that_names_no_rollouts_stands_for_all(self, errors: ErrorsFile) -> None:
        whole = {"id": "1", "line": 1, "cause": "bad_input", "message": "a"}
        part = {**whole, "of": 2, "wanted": [[0, 0]]}
        for written, left in (
            ([whole, whole], [whole]),
            ([part, whole], [whole]),
            ([whole, part], [part]),
            ([part, {**part, "wanted": [[0, 1]]}], 2),
        ):
            write_lines(errors.path, written)
            errors.load(DoneIndex())
            errors.close()
            found = records(errors.path)
            assert found == left if isinstance(left, list) else len(found) == left

    @pytest.mark.parametrize(
        "record",
        [
            '{"line": "x"}',
            '{"line": null}',
            '{"line": 1, "of": 2, "wanted": [[0]]}',
            '{"line": 1, "of": 2, "wanted": 3}',
        ],
    )
    def test_a_line_that_is_no_record_of_a_failure(self, errors: ErrorsFile, record: str) -> None:
        write_lines(errors.path, ['{"id": 1, "line": 1, "cause": "timeout"}', record])
        with pytest.raises(InputError, match=r"errors.jsonl:2: is not a record of a failure"):
            errors.load(DoneIndex())

    def test_what_an_earlier_try_kept_is_added(self, errors: ErrorsFile) -> None:
        write_lines(errors.path, [{"id": "1", "line": 1, "cause": "timeout"}])
        kept = write_lines(errors.path.with_name("errors.jsonl.kept"), [{"id": "2", "line": 2, "cause": "budget"}])
        with kept.open("ab") as file:
            file.write(b'{"id": "3", "li')
        errors.load(DoneIndex())
        assert not kept.exists()
        assert [record["line"] for record in records(errors.path)] == [1, 2]
        assert errors.causes == {"timeout": 1, "budget": 1}

    def test_the_requests_of_a_sweep_are_counted_by_combination(self, tmp_path: Path) -> None:
        sweep = Sweep([{"model": "a"}, {"model": "b"}])
        errors = ErrorsFile(tmp_path / "errors.jsonl", sweep)
        for place in (1, 2, 4):  # line 1 with both, line 2 with the second
            errors.write_failed(failed(place))
        errors.write_bad(BadLine(5, "x", "in.jsonl:3", "is wrong", b"{}"))
        errors.write_bad(BadLine(8, "y", "in.jsonl:4", "is wrong", b"{}", combination=True))
        assert errors.by_combination == {0: 1, 1: 3}
        assert [record.get("sweep") for record in records(errors.path)] == [
            {"model": "a"}, {"model": "b"}, {"model": "b"}, None, {"model": "b"}
        ]  # fmt: skip
        assert [record["line"] for record in records(errors.path)] == [1, 1, 2, 3, 4]
        errors.close()
        again = ErrorsFile(errors.path, sweep)
        again.load(DoneIndex())
        assert (again.by_combination, again.failed) == ({0: 1, 1: 3}, 5)

    def test_a_torn_line_is_removed(self, errors: ErrorsFile) -> None:
        errors.path.write_bytes(b'{"id":"1","line":1,"cause":"timeout"}\n{"id":"2","li')
        errors.load(DoneIndex())
        assert errors.failed == 1

    def test_messages_are_one_line_and_cut(self, errors: ErrorsFile) -> None:
        for _ in range(2):
            errors.write_failed(failed(1, failure(message="a\n  b " + "x" * 300)))
        errors.write_failed(failed(2, failure(message="a\n  b " + "x" * 300)))
        errors.write_failed(failed(3, failure(message="c:3: d")))
        errors.write_bad(BadLine(4, 4, "in.jsonl:4", "d", b""))
        found = errors.commonest()
        assert found["timeout"].startswith("a b xxx")
        assert len(found["timeout"]) <= 160
        assert found["bad_input"] == "d"

    def test_a_message_that_came_late_still_counts(self, errors: ErrorsFile) -> None:
        for line in range(1, 64):
            errors.write_failed(failed(line, failure(message=f"m{line}")))
        for line in (64, 65):
            errors.write_failed(failed(line, failure(message="the last one that is counted")))
        assert errors.commonest() == {"timeout": "the last one that is counted"}


def _defaults(record: dict[str, Any]) -> dict[str, Any]:
    """What a request says of itself beside what the line said."""
    return {name: value for name, value in record["request"].items() if name not in ("prompt", "max_tokens", "n")}


def test_a_bad_line_is_recorded_once_however_often_the_run_is_resumed(tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", ['{"prompt": "a"}', "{no", '{"prompt": "b"}']), tmp_path / "out"
    for _ in range(3):
        summary = run(options(source, out=out), FakeDriver())
        assert summary is not None
        assert (summary.succeeded, summary.failed) == (2, 1)
        assert len(records(tmp_path / "out.errors.jsonl")) == 1


class TestFile:
    def test_how_much_of_a_torn_end_was_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "out.jsonl"
        for data, left in ((b'{"id":1}\n{"i', 9), (b"\0" * 500 + b'{"id":3}\n', 0), (b'{"id":1}', 9), (b"", 0)):
            path.write_bytes(data)
            assert mend(path) == max(0, len(data) - left)
            assert path.stat().st_size == left
        assert mend(tmp_path / "none") == 0

    def test_a_file_that_was_removed_is_let_go(self, tmp_path: Path) -> None:
        file = RecordFile(tmp_path / "out.jsonl")
        file.write([{"id": 1}])
        assert file.check() is None
        file.path.unlink()
        assert file.check() == f"{file.path} was removed"
        file.write([{"id": 2}])
        assert [record["id"] for record in records(file.kept)] == [1, 2]
        opened = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        assert not [name for name in opened if name.startswith(f"{file.path} ")]
        file.close()

    def test_another_process_s_file_is_not_written(self, tmp_path: Path) -> None:
        first, second = RecordFile(tmp_path / "out.jsonl"), RecordFile(tmp_path / "out.jsonl")
        second.lock()  # without a file there is nothing to lock
        first.write([{"id": 1}])
        with pytest.raises(UsageError, match="another run is writing"):
            second.lock()
        with pytest.raises(FleetError, match="another run is writing"):
            second.write([{"id": 2}])
        first.close()
        second.lock()
        second.write([{"id": 2}])
        second.close()
        assert [record["id"] for record in records(first.path)] == [1, 2]

    def test_standard_output(self, monkeypatch: pytest.MonkeyPatch) -> None:
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
        output = StandardOutput()
        output.write([{"id": 1}, {"id": 2}])
        assert written.getvalue() == b'{"id":1}\n{"id":2}\n'

    def test_many_large_records_are_written_whole(self, tmp_path: Path) -> None:
        file = RecordFile(tmp_path / "out.jsonl")
        file.write([{"id": place, "text": "x" * (1 << 20)} for place in range(9)])
        assert file.check() is None, "its size is known"
        file.close()
        assert [record["id"] for record in records(file.path)] == list(range(9))
