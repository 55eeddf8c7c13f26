"""Outputs that are tables: CSV, TSV and Parquet, with the columns of the input."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.errors import UsageError
from brimful.run.output.tables.layout import MOST_COLUMNS, Column, Kind, layout
from brimful.run.output.tables.parquet_file import check_parquet, write_parquet
from brimful.run.prepare import prepare
from support.fake_driver import FakeDriver
from support.runs import PROFILE, options, run, write_lines

ODD = 'a "quoted", text;\r\nwith\ttabs\u2028and 🙂'


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_a_parquet_output_has_a_row_per_rollout(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.txt", [f"prompt {line}" for line in range(30)])
    out = tmp_path / "out.parquet"
    texts = {1: "\ud800x", 2: "a\u2028b", 3: "🙂"}
    asked = options(source, out=out)
    run(asked, FakeDriver(lambda unit, *_: texts.get(unit.line, "t"), die_after=10, reverse=True))
    assert not out.exists()
    summary = run(asked, FakeDriver(lambda unit, *_: texts.get(unit.line, "t"), reverse=True))
    assert summary is not None
    table = pq.read_table(out).to_pylist()
    assert [row["line"] for row in table] == list(range(1, 31))
    assert [row["text"] for row in table[:4]] == ["\ufffdx", "a\u2028b", "🙂", "t"]
    assert sum(row["prompt_tokens"] + row["completion_tokens"] for row in table) == summary.tokens
    assert run(asked).resumed == 30  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.CSV"])
def test_a_csv_output_is_resumed_and_read_again_as_it_was(tmp_path: Path, name: str) -> None:
    lines = [{"id": n, "prompt": "a", "q": ODD, "right": n % 2 == 0, "tags": [n, {"é": None}]} for n in range(30)]
    source, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / name
    asked = options(source, out=out, read={"defaults": {"max_tokens": 8, "n": 2}})
    run(asked, FakeDriver(lambda *_: ODD, die_after=10, reverse=True))
    assert not out.exists()
    run(asked, FakeDriver(lambda *_: "\ud800" + ODD, reverse=True))
    rows = rows_of(out)
    assert [(int(row["id"]), int(row["choice_index"])) for row in rows] == [(n, c) for n in range(30) for c in (0, 1)]
    assert {row["text"] for row in rows} == {ODD, "\ufffd" + ODD}
    assert {row["q"] for row in rows} == {ODD}
    assert [row["right"] for row in rows[:4]] == ["true", "true", "false", "false"]
    assert json.loads(rows[2]["tags"]) == [1, {"é": None}]
    head = out.read_bytes().splitlines()[0]
    assert head.replace(b"\t", b",").startswith(b"id,line,prompt_index,choice_index,q,right,tags,text,finish_reason,")
    assert run(asked).resumed == 60  # type: ignore[union-attr]


def test_a_csv_name_under_which_an_earlier_release_wrote_json_lines_is_refused(tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "in.txt", ["a", "b"]), tmp_path / "out.csv"
    run(options(source, out=tmp_path / "x.jsonl"))
    for suffix in ("", ".run.json", ".run.lines"):
        (tmp_path / f"x.jsonl{suffix}").rename(f"{out}{suffix}")
    with pytest.raises(UsageError, match='format was "rollouts" and is "csv"'):
        prepare(options(source, out=out), PROFILE)


def test_columns_of_the_input_are_typed_columns_of_a_parquet_output(tmp_path: Path) -> None:
    columns: list[dict[str, Any]] = [
        {"whole": 1, "some": 1.5, "flag": True, "name": "x", "mixed": "4", "nested": {"a": [1]}, "none": None},
        {"whole": None, "some": 2, "flag": None, "name": "\ud800", "mixed": 4, "nested": "[", "huge": 1 << 70},
    ]
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "a", "id": n, **each} for n, each in enumerate(columns)])
    out = tmp_path / "out.parquet"
    run(options(source, out=out), FakeDriver(model="other", asked_model="mine"))
    table = pq.read_table(out)
    assert {name: table.schema.field(name).type for name in ("id", "whole", "some", "flag")} == {
        "id": pa.int64(), "whole": pa.int64(), "some": pa.float64(), "flag": pa.bool_(),
    }  # fmt: skip
    first, second = table.to_pylist()
    assert (first["whole"], first["some"], first["flag"], first["name"]) == (1, 1.5, True, "x")
    assert (first["mixed"], first["nested"], first["none"], first["huge"]) == ("4", '{"a":[1]}', None, None)
    assert (second["whole"], second["some"], second["name"], second["mixed"]) == (None, 2.0, "\ufffd", "4")
    assert (second["nested"], second["huge"], second["asked_model"]) == ("[", str(1 << 70), "mine")


def test_whole_numbers_that_no_float_holds_stay_exact(tmp_path: Path) -> None:
    long = (1 << 62) + 1
    lines = [{"id": long, "a": long, "b": long, "c": 1}, {"id": 2, "a": 1, "b": 0.5, "c": 0.5}]
    source, out = (
        write_lines(tmp_path / "in.jsonl", [{"prompt": "a", **line} for line in lines]),
        tmp_path / "o.parquet",
    )
    run(options(source, out=out))
    found = pq.read_table(out).select(["id", "a", "b", "c"]).to_pylist()
    assert found == [{"id": long, "a": long, "b": str(long), "c": 1.0}, {"id": 2, "a": 1, "b": "0.5", "c": 0.5}]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_named_as_ours_are_renamed(tmp_path: Path, suffix: str) -> None:
    line = {"prompt": "a", "text": "theirs", "line": 9, "usage": {"x": 1}, "input": "i", "input.text": 5, "of": 3}
    out = tmp_path / f"out{suffix}"
    run(options(write_lines(tmp_path / "in.jsonl", [line]), out=out), FakeDriver(lambda *_: "ours"))
    (row,) = rows_of(out) if suffix == ".csv" else pq.read_table(out).to_pylist()
    assert (row["text"], str(row["line"]), row["input"], str(row["of"])) == ("ours", "1", "i", "3")
    assert (str(row["input.line"]), row["usage"]) == ("9", '{"x":1}')
    assert {str(row["input.text"]), str(row["input.input.text"])} == {"theirs", "5"}


def test_sweeps_hooks_and_later_fields_are_columns_too() -> None:
    record = {"id": "a", "input": {"hook.score": 1}, "sweep": {"model": "m"}, "hook": {"score": 0.5}, "tries": 2}
    named = {column.name: column.value(record) for column in layout([record])}
    assert (named["hook.score"], named["input.hook.score"], named["sweep.model"], named["tries"]) == (0.5, 1, "m", 2)


def test_very_many_columns_are_one_of_json() -> None:
    records = [{"id": place, "input": {f"x{place}": place}} for place in range(MOST_COLUMNS + 5)]
    columns = layout(records)
    assert len(columns) < 40
    (column,) = (column for column in columns if column.field == "input")
    assert column.value(records[7]) == '{"x7":7}'


def test_a_table_without_records_has_the_columns_of_every_rollout() -> None:
    names = "id line prompt_index choice_index text finish_reason model asked_model attempts prompt_tokens"
    names += " completion_tokens request_id packed started_at ended_at waited_s provider_s retrying_s message logprobs"
    assert [column.name for column in layout([])] == names.split()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1 << 53, Kind.INT),
        (-(1 << 53), Kind.INT),
        ((1 << 53) + 1, Kind.LONG),
        (-(1 << 53) - 1, Kind.LONG),
        ((1 << 63) - 1, Kind.LONG),
        (-(1 << 63), Kind.LONG),
        (1 << 63, Kind.MIXED),
        (-(1 << 63) - 1, Kind.MIXED),
    ],
)
def test_whole_numbers_of_more_than_64_bits_are_text(value: int, kind: Kind) -> None:
    assert Kind.of(value) is kind


def test_small_numbers_of_ours_are_narrow_columns_of_a_parquet_output(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    write_parquet([], layout([]), out)
    schema = pq.read_schema(out)
    narrow = {name for name in schema.names if schema.field(name).type == pa.int32()}
    assert narrow == {"prompt_index", "choice_index", "attempts", "packed"}
    assert {schema.field(name).type for name in ("line", "prompt_tokens")} == {pa.int64()}


def row_groups(path: Path) -> list[int]:
    file = pq.ParquetFile(path)
    return [file.metadata.row_group(place).num_rows for place in range(file.num_row_groups)]


def test_a_row_group_of_a_parquet_output_has_at_most_20_000_rows(tmp_path: Path) -> None:
    out, count = tmp_path / "out.parquet", 40_001
    write_parquet(({"line": line} for line in range(count)), [Column("line", Kind.INT, "line")], out)
    assert row_groups(out) == [20_000, 20_000, 1]
    assert pq.read_table(out)["line"].to_pylist() == list(range(count))


def test_a_row_group_of_long_texts_has_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.run.output.tables.parquet_file.CHARACTERS", 100)
    out, columns = tmp_path / "out.parquet", [Column("line", Kind.INT, "line"), Column("text", Kind.TEXT, "text")]
    texts = ["x" * 100, "y"] * 2
    write_parquet(({"line": line, "text": text} for line, text in enumerate(texts)), columns, out)
    assert row_groups(out) == [2, 2]
    assert pq.read_table(out)["text"].to_pylist() == texts


def test_a_parquet_output_without_pyarrow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_parquet()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"pip install 'brimful\[parquet\]'"):
        check_parquet()


@pytest.mark.parametrize(("count", "columns"), [(1000, 1000), (1001, 1)])
def test_up_to_a_thousand_columns_stay_columns(count: int, columns: int) -> None:
    record = {"input": {f"x{place}": place for place in range(count)}}
    assert len([column for column in layout([record]) if column.field == "input"]) == columns
