"""Runs over tables: they resume, notice changes and join their columns as runs over JSON lines do."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.errors import InputError, UsageError
from brimful.run.display.display import Display
from brimful.run.input.formats import ColumnNames, InputFormat
from brimful.run.prepare import prepare
from brimful.run.session import Session
from support.fake_driver import FakeDriver
from support.runs import PROFILE, options, records, run

Write = Callable[[Path, list[tuple[int, str, str]]], Path]
ROWS = [(line, f"say {line}", f'answer "{line}",\nof two lines') for line in range(40)]
NAMES = {"names": ColumnNames(prompt="question", id="key")}


def write_csv(folder: Path, rows: list[tuple[int, str, str]]) -> Path:
    with (folder / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("key", "question", "answer"), *rows])
    return folder / "in.csv"


def write_parquet(folder: Path, rows: list[tuple[int, str, str]]) -> Path:
    columns = dict(zip(("key", "question", "answer"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), folder / "in.parquet", row_group_size=7)
    return folder / "in.parquet"


def write_json(folder: Path, rows: list[tuple[int, str, str]]) -> Path:
    objects = [dict(zip(("key", "question", "answer"), row, strict=True)) for row in rows]
    (folder / "in.json").write_text(json.dumps(objects, indent=2))
    return folder / "in.json"


every_kind = pytest.mark.parametrize("write", [write_csv, write_parquet, write_json])


@every_kind
def test_a_run_that_died_resumes_and_joins_every_row(tmp_path: Path, write: Write) -> None:
    path, out = write(tmp_path, ROWS), tmp_path / "out.jsonl"
    assert run(options(path, out=out, read=NAMES), FakeDriver(die_after=10)) is None
    before = len(records(out))
    driver = FakeDriver()
    summary = run(options(path, out=out, read=NAMES), driver)
    assert summary is not None
    assert (summary.succeeded, summary.resumed, len(driver.asked)) == (40, before, 40 - before)
    kind = str if write is write_csv else int  # CSV has no numbers
    joined = {record["line"]: (record["id"], record["input"]) for record in records(out)}
    assert joined == {
        line: (kind(key), {"key": kind(key), "question": question, "answer": answer})
        for line, (key, question, answer) in enumerate(ROWS, 1)
    }


@every_kind
def test_a_changed_row_is_refused_and_added_rows_are_sampled(tmp_path: Path, write: Write) -> None:
    path, out = write(tmp_path, ROWS[:4]), tmp_path / "out.jsonl"
    assert run(options(path, out=out, read=NAMES)) is not None
    write(tmp_path, [*ROWS[:2], (2, "other", ""), ROWS[3]])
    with pytest.raises(InputError, match="line 3 of the input changed"):
        run(options(path, out=out, read=NAMES))
    write(tmp_path, ROWS[:6])
    driver = FakeDriver()
    assert run(options(path, out=out, read=NAMES), driver) is not None
    assert [unit.line for unit in driver.asked] == [5, 6]


def test_a_row_with_a_fault_is_recorded_and_sampled_once_corrected(tmp_path: Path) -> None:
    path, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    path.write_text("key,question,answer\n1,a,x\n2,b\n3,c,z\n")
    first = run(options(path, out=out, read=NAMES))
    assert first is not None
    assert (first.exit_code, first.succeeded, first.failed) == (3, 2, 1)
    (error,) = records(tmp_path / "out.jsonl.errors.jsonl")
    assert (error["line"], error["request"]) == (2, ["2", "b"])
    assert f"{path}:3: has 2 cells, but the header names 3 cells" in error["message"]
    path.write_text("key,question,answer\n1,a,x\n2,b,y\n3,c,z\n")
    driver = FakeDriver()
    second = run(options(path, out=out, read=NAMES), driver)
    assert second is not None
    assert (second.exit_code, [unit.id for unit in driver.asked]) == (0, ["2"])


def test_other_columns_are_other_parameters(tmp_path: Path) -> None:
    path, out = write_csv(tmp_path, ROWS[:2]), tmp_path / "out.jsonl"
    assert run(options(path, out=out, read=NAMES)) is not None
    with pytest.raises(UsageError, match='prompt-column was "question" and is "answer"'):
        run(options(path, out=out, read={"names": ColumnNames(prompt="answer", id="key")}))


def test_a_limit_leaves_rows_for_the_next_try(tmp_path: Path) -> None:
    path, out = write_parquet(tmp_path, ROWS), tmp_path / "out.jsonl"
    assert run(options(path, out=out, read={**NAMES, "limit": 3})) is not None
    driver = FakeDriver()
    assert run(options(path, out=out, read=NAMES), driver) is not None
    assert [unit.line for unit in driver.asked] == list(range(4, 41))


def test_kinds_in_a_row_resume_as_one_input(tmp_path: Path) -> None:
    paths = write_csv(tmp_path, ROWS[:10]), write_parquet(tmp_path, ROWS[10:20]), write_json(tmp_path, ROWS[20:])
    out = tmp_path / "out.jsonl"
    assert run(options(*paths, out=out, read=NAMES), FakeDriver(die_after=15)) is None
    summary = run(options(*paths, out=out, read=NAMES))
    assert summary is not None
    assert sorted(int(record["input"]["key"]) for record in records(out)) == list(range(40))


def test_a_form_that_is_named_beats_the_suffix(tmp_path: Path) -> None:
    path = write_csv(tmp_path, ROWS[:2]).rename(tmp_path / "in.txt")
    summary = run(options(path, out=tmp_path / "out.jsonl", read={**NAMES, "form": InputFormat.CSV}))
    assert summary is not None
    assert summary.succeeded == 2


def test_a_table_from_a_pipe_is_sampled_and_its_sent_columns_are_told(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("question,seed,answer\na,1,x\n",))
    writer.start()
    told: list[str] = []
    asked = options(path, out=tmp_path / "out.jsonl", read={"names": ColumnNames("question"), "form": InputFormat.CSV})
    prepared = prepare(asked, PROFILE)
    try:
        display = Display(table=False)
        display.say = told.append  # type: ignore[method-assign]
        asyncio.run(Session(prepared, display).run(FakeDriver()))
    finally:
        prepared.close()
        writer.join(60)
    assert [record["input"] for record in records(tmp_path / "out.jsonl")] == [{"question": "a", "answer": "x"}]
    assert f"{path}: 'seed' sets a field of the requests; --column NAME carries it through instead" in told
