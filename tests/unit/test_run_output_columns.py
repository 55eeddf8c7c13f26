"""Columns of the input in the records of a run, whatever became of their lines."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from brimful.errors import UsageError
from brimful.outcome import Cause, Failure, Outcome, Rollout
from brimful.packing.units import Delivered, Failed, Recovered, Unit
from brimful.run.display.display import Display
from brimful.run.input.columns import Keep
from brimful.run.prepare import prepare
from brimful.run.session import Session
from support.fake_driver import FakeDriver
from support.runs import PROFILE, options, records, run, write_lines
from support.waiting import wait_until_async

if TYPE_CHECKING:
    from brimful.dispatch.driver import Driver

LINES = [
    {"id": place, "prompt": f"say {place}", "answer": str(place), "meta": {"place": [place, None]}}
    for place in range(20)
]


def _answers(path: Path) -> dict[Any, Any]:
    return {record["id"]: record.get("input", {}).get("answer") for record in records(path)}


def _delivered(line: int) -> Delivered:
    """As an earlier submitter's request is delivered: with the id as text."""
    return Delivered(line, str(line - 1), [Rollout(0, 0, "x", "stop")], "m", None, Outcome(f"r{line}"), 1)


def test_each_record_repeats_its_line_s_columns_and_id(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(options(write_lines(tmp_path / "in.jsonl", LINES), out=out))
    assert {record["id"]: record["input"] for record in records(out)} == {
        line["id"]: {"answer": line["answer"], "meta": line["meta"]} for line in LINES
    }


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("none", {}),
        ("all", {"input": {"a": 1, "b": None}}),
        ("b", {"input": {"b": None}}),
        ("all,prompt", {"input": {"a": 1, "b": None}, "prompt": "x"}),
        ("seed, prompt", {"input": {"seed": 5}, "prompt": "x"}),
        ("missing", {}),
    ],
)
def test_what_is_kept_can_be_chosen(tmp_path: Path, keep: str, kept: dict[str, Any]) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "x", "seed": 5, "a": 1, "b": None}])
    asked = options(source, out=tmp_path / "out.jsonl", keep=Keep.parse(keep))
    prepared = prepare(asked, PROFILE)
    prepared.close()
    assert ("--keep: no line has 'missing'" in prepared.notes) is (keep == "missing")
    run(asked)
    (record,) = records(tmp_path / "out.jsonl")
    assert {name: record[name] for name in ("input", "prompt") if name in record} == kept
    assert Keep.parse(str(asked.keep)) == asked.keep


@pytest.mark.parametrize("text", ["", "a,,b", "none,a"])
def test_a_wrong_choice_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--keep"):
        Keep.parse(text)


def test_a_prompt_of_several_is_kept_beside_its_own_rollouts(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "in.jsonl", [{"prompt": ["x", "y"], "n": 2}, {"messages": [{"role": "user", "content": "z"}]}]
    )
    run(options(source, out=tmp_path / "out.jsonl", keep=Keep.parse("prompt")))
    found = [record.get("prompt", record.get("messages")) for record in records(tmp_path / "out.jsonl")]
    assert found == ["x", "x", "y", "y", [{"role": "user", "content": "z"}]]


def test_a_resumed_run_must_keep_and_pass_the_same(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", LINES)
    run(options(source, out=tmp_path / "out.jsonl"), FakeDriver(die_after=3))
    with pytest.raises(UsageError, match='keep was not set and is "none"'):
        prepare(options(source, out=tmp_path / "out.jsonl", keep=Keep.parse("none")), PROFILE)
    with pytest.raises(UsageError, match=r'pass was not set and is \["answer"\]'):
        prepare(options(source, out=tmp_path / "out.jsonl", read={"passed": ("answer",)}), PROFILE)


def test_an_output_of_an_earlier_release_resumes(tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", LINES), tmp_path / "out.jsonl"
    run(options(source, out=out), FakeDriver(die_after=3))
    sidecar = tmp_path / "out.jsonl.run.json"
    stored = json.loads(sidecar.read_text())
    stored["parameters"] = {name: value for name, value in stored["parameters"].items() if name not in ("keep", "pass")}
    sidecar.write_text(json.dumps(stored))
    old = [{**record, "id": str(record["id"])} for record in records(out)]
    for record in old:
        del record["input"]
    write_lines(out, old)
    run(options(source, out=out))
    assert {str(id) for id in _answers(out)} == {str(line["id"]) for line in LINES}
    assert len(records(out)) == 20


@pytest.mark.parametrize("stream", [False, True])
def test_what_an_earlier_try_left_gets_its_columns(tmp_path: Path, stream: bool) -> None:
    out, source = tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    write_lines(source, LINES)
    run(options(source, out=out), FakeDriver(die_after=6))
    there = len(records(out))
    failure = Failure(Cause.BAD_REQUEST, "no", permanent=True)
    driver = FakeDriver(
        recovered=Recovered([_delivered(9)], frozenset({(12, 0, 0), (15, 0, 0)})),
        finish_outstanding=[
            _delivered(12),
            Failed(15, "14", None, ((0, 0),), failure, Outcome("r15", failure=failure)),
        ],
    )
    if stream:  # of the same file, which is then read once
        os.mkfifo(tmp_path / "pipe")
        writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(source.read_bytes()))
        writer.start()
        run(options(tmp_path / "pipe", out=out), driver)
        writer.join()
    else:
        run(options(source, out=out), driver)
    assert len(driver.asked) == 20 - there - 3
    assert _answers(out) == {line["id"]: line["answer"] for line in LINES if line["id"] != 14}
    assert all(record["of"] == 1 for record in records(out))
    (failed,) = records(tmp_path / "out.jsonl.errors.jsonl")
    assert (failed["id"], failed["input"]["answer"], failed["request"]["prompt"]) == (14, "14", "say 14")


def test_an_interrupt_while_a_stream_stalls_leaves_what_was_recovered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def drive() -> None:
        prepared = prepare(options(pipe, out=tmp_path / "out.jsonl"), PROFILE)
        writer = os.open(pipe, os.O_RDWR)
        os.write(writer, b'{"prompt": "a", "answer": 1}\n')
        session = Session(prepared, Display(table=False))
        running = asyncio.create_task(session.run(FakeDriver(recovered=Recovered([_delivered(2)], frozenset()))))  # type: ignore[arg-type]
        await wait_until_async(lambda: "carried through" in capsys.readouterr().err, "the first line to be read")
        session.interrupt()
        assert (await running).ended == "interrupted"
        os.close(writer)
        prepared.close()

    asyncio.run(drive())
    assert not (tmp_path / "out.jsonl").exists()


def test_a_line_that_fails_in_part_has_its_columns_in_every_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Halves(FakeDriver):
        def _ended(self, unit: Unit) -> list[Delivered | Failed]:
            (whole,) = super()._ended(unit)
            assert isinstance(whole, Delivered)
            failure = Failure(Cause.TIMEOUT, "late")
            failed = Failed(unit.line, unit.id, unit.request, ((0, 1),), failure, Outcome("f", failure=failure))
            rest = [rollout for rollout in whole.rollouts if rollout.choice_index != 1]
            singly = [
                Delivered(unit.line, unit.id, [one], "m", None, Outcome(f"{unit.line}-{one.choice_index}"), 1)
                for one in rest
            ]
            return [singly[0], failed, *singly[1:]]

    out = tmp_path / "out.jsonl"
    prepared = prepare(
        options(write_lines(tmp_path / "in.jsonl", LINES), out=out, read={"defaults": {"n": 4, "max_tokens": 8}}),
        PROFILE,
    )
    feed = prepared.feed(pytest.fail)  # no line is bad
    monkeypatch.setattr(prepared, "feed", lambda *_: feed)
    session = Session(prepared, Display(table=False))
    asyncio.run(session.run(Halves(split=random.Random(1))))  # type: ignore[arg-type]
    prepared.close()
    assert len(records(out)) == 60
    assert all(record["input"]["answer"] == str(record["id"]) and record["of"] == 4 for record in records(out))
    errors = records(tmp_path / "out.jsonl.errors.jsonl")
    assert all(record["input"]["answer"] == str(record["id"]) for record in errors)
    assert len(errors) == 20
    assert not feed.lines


def test_a_bad_line_s_record_repeats_its_columns(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [LINES[0], {"id": 7, "prompt": "a", "n": 0, "answer": 5}, "{"])
    run(options(source, out=tmp_path / "out.jsonl", keep=Keep.parse("answer")))
    first, second = records(tmp_path / "out.jsonl.errors.jsonl")
    assert (first["id"], first["input"]) == (7, {"answer": 5})
    assert "input" not in second


def test_a_stream_s_columns_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, b"".join(json.dumps({"prompt": "a", "answer": place}).encode() + b"\n" for place in range(50)))

    async def drive() -> None:
        prepared = prepare(options(pipe, out=tmp_path / "out.jsonl"), PROFILE)
        session = Session(prepared, Display(table=False))
        driver = FakeDriver()
        running = asyncio.create_task(session.run(cast("Driver", driver)))
        await wait_until_async(lambda: len(driver.asked) == 50, "the lines to be read")
        os.close(writer)
        await running
        prepared.close()

    asyncio.run(drive())
    assert capsys.readouterr().err.count("`answer` is carried through, not sent") == 1
