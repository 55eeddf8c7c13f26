"""Tables and JSON arrays: each row becomes the line of JSON that it equals."""

from __future__ import annotations

import datetime
import decimal
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import zstandard

from brimful.errors import BrimfulError, InputError
from brimful.packing.units import Unit
from brimful.run.input.formats import ColumnNames, InputFormat
from brimful.run.input.reader import BadLine, Reader, ReadOptions
from brimful.run.input.sources import Source
from brimful.run.input.survey import survey
from support.runs import PROFILE, write_lines


def options(*paths: Path, prompt: str | None = None, id: str | None = None, **more: Any) -> ReadOptions:
    asked = {"defaults": {"max_tokens": 8}, "names": ColumnNames(prompt, id), **more}
    read = ReadOptions(tuple(Source(str(path)) for path in paths), **asked)
    read.check()
    return read


def read(*paths: Path, **more: Any) -> list[Unit | BadLine]:
    return [entry.item for entry in Reader(options(*paths, **more), PROFILE).entries() if entry.item is not None]


def rows(*paths: Path, **more: Any) -> list[tuple[str, Any, dict[str, Any]]]:
    """Id, prompt and columns of each row, all of them good."""
    found = []
    for unit in read(*paths, **more):
        assert isinstance(unit, Unit), unit
        asked = unit.request.fields
        found.append((unit.id, asked.get("prompt", asked.get("messages")), dict(unit.columns)))
    return found


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def parquet(path: Path, columns: dict[str, Any], **more: Any) -> Path:
    pq.write_table(pa.table(columns), path, **more)
    return path


QUOTED = 'id,question,answer\r\n7,"a, ""b""\r\nand c",4\r\n8,é,\r\n'


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("in.csv", QUOTED.encode()),
        ("in.csv", b"\xef\xbb\xbf" + QUOTED.encode()),
        ("in.csv.gz", gzip.compress(QUOTED.encode())),
        ("in.csv.zst", zstandard.compress(QUOTED.encode())),
        ("in.csv", QUOTED.replace(",", ";").replace('"a; ', '"a, ').encode()),
        ("in.tsv", QUOTED.replace(",", "\t").replace('"a\t ', '"a, ').encode()),
    ],
    ids=["plain", "with a BOM", "gzip", "zstd", "semicolons", "tabs"],
)
def test_csv_cells_are_text_and_may_hold_anything(tmp_path: Path, name: str, data: bytes) -> None:
    assert rows(write(tmp_path / name, data), prompt="question") == [
        ("7", 'a, "b"\r\nand c', {"question": 'a, "b"\r\nand c', "answer": "4"}),
        ("8", "é", {"question": "é", "answer": ""}),
    ]


def test_csv_cells_set_the_fields_of_a_request(tmp_path: Path) -> None:
    path = write(
        tmp_path / "in.csv",
        'prompt,n,temperature,stop,seed,answer\na,2,0.5,"[""x""]",,1\nb,,,.,"",2\n',
    )
    first, second = read(path)
    assert isinstance(first, Unit)
    assert isinstance(second, Unit)
    assert dict(first.request.fields) == {"prompt": "a", "n": 2, "temperature": 0.5, "stop": ["x"], "max_tokens": 8}
    assert dict(second.request.fields) == {"prompt": "b", "stop": ".", "max_tokens": 8}
    assert dict(second.columns) == {"answer": "2"}


def test_csv_cells_hold_no_numbers_that_cannot_be_sent(tmp_path: Path) -> None:
    cells = ["temperature", "0", "NaN", "-Infinity", "1e999", '"{""5"": 1e999}"', "1" + "0" * 5000, str(2**64)]
    items = read(write(tmp_path / "in.csv", "".join(f"prompt,{cell}\n" for cell in cells)))
    told = [str(item).rpartition("in.csv:")[2].partition(";")[0] for item in items if isinstance(item, BadLine)]
    assert told == [
        "3: temperature: NaN is not a JSON number",
        *(f"{line}: temperature: infinity (any number above 1.8e308) is not a JSON number" for line in (4, 5, 6)),
        *(f"{line}: temperature: has a whole number of more than 64 bits" for line in (7, 8)),
    ]


def test_csv_faults_name_the_line_and_leave_the_other_rows(tmp_path: Path) -> None:
    data = b'q,a\n"x\ny",1\nshort\nlong,1,2\n\n\xff,1\n"a"b,1\n,1\nlast,1\n'
    items = read(write(tmp_path / "in.csv", data), prompt="q")
    assert [item.line for item in items] == [1, 2, 3, 5, 6, 7, 8]
    told = [str(item).rpartition("in.csv:")[2] for item in items if isinstance(item, BadLine)]
    assert told == [
        "4: has 1 cell, but the header names 2 cells: correct the row",
        "5: has 3 cells, but the header names 2 cells: correct the row",
        "7: column 'q' is not UTF-8; save the file as UTF-8, for instance: iconv -f latin1 -t utf-8 FILE > NEW",
        "8: is not CSV (',' expected after '\"'); write a quote inside a cell doubled, and the cell in quotes",
        "9: q: is empty; a prompt is text, a list of texts or a chat's messages",
    ]
    kept = [item.data for item in items if isinstance(item, BadLine)]
    assert kept[:4] == [b'["short"]', b'["long","1","2"]', b'{"q":"\xff","a":"1"}', b'["\\"a\\"b,1"]']


def test_csv_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", "a,1\nb,2\n")
    assert rows(path, prompt="column_1", header=False) == [
        ("1", "a", {"column_1": "a", "column_2": "1"}),
        ("2", "b", {"column_1": "b", "column_2": "2"}),
    ]
    path = write(tmp_path / "index.csv", ",prompt\n0,a\n")  # as pandas writes an index
    assert rows(path) == [("1", "a", {"column_1": "0"})]


ARRAY = '[\n  {"prompt": "a]}", "x": [1, {"y": "\\"]"}]},\n  {"prompt":\n "b"}\n, "c"]\n'


@pytest.mark.parametrize("name", ["in.json", "in.jsonl", "in", "in.json.gz"])
def test_a_json_array_is_read_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    data = gzip.compress(ARRAY.encode()) if name.endswith(".gz") else ARRAY
    assert rows(write(tmp_path / name, data)) == [
        ("1", "a]}", {"x": [1, {"y": '"]'}]}),
        ("2", "b", {}),
        ("3", "c", {}),
    ]


def test_pretty_printed_json_and_json_lines_called_json(tmp_path: Path) -> None:
    lines = [{"prompt": "a", "id": 7}, {"prompt": "b", "id": 8}]
    pretty = write(tmp_path / "a.json", "\n".join(json.dumps(line, indent=2) for line in lines))
    assert [row[0] for row in rows(pretty)] == ["7", "8"]
    assert [row[0] for row in rows(write_lines(tmp_path / "b.json", lines))] == ["7", "8"]


def test_a_bad_element_is_named_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "in.json", '[{"prompt": "a"},\n\n {"prompt": NaN},\n{"prompt":\n1}, 5,\n{"prompt": "b"}]')
    items = read(path)
    assert [str(item).partition(";")[0] for item in items if isinstance(item, BadLine)] == [
        f"{path}:3: is not JSON: NaN is not a JSON number",
        f"{path}:4: prompt: must be a string, a list of strings, a list of token ids or lists of those, not 1",
        f'{path}:5: is a number',
    ]  # fmt: skip
    assert items[-1].line == 5


COLUMNS: dict[str, tuple[pa.Array, Any]] = {
    "whole number": (pa.array([7]), 7),
    "fraction": (pa.array([0.5]), 0.5),
    "NaN": (pa.array([float("nan")]), None),
    "infinity": (pa.array([float("inf")], pa.float32()), None),
    "null": (pa.array([None], pa.string()), None),
    "decimal": (pa.array([decimal.Decimal("1.50")]), "1.50"),
    "time": (pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5)], pa.timestamp("s")), "2024-01-02T03:04:05"),
    "nanoseconds": (pa.array([1], pa.timestamp("ns", tz="UTC")), "1970-01-01T00:00:00.000000001Z"),
    "zone": (pa.array([0], pa.timestamp("s", tz="+05:30")), "1970-01-01T05:30:00+05:30"),
    "date": (pa.array([datetime.date(2024, 1, 2)]), "2024-01-02"),
    "duration": (pa.array([1500], pa.duration("ms")), 1.5),
    "bytes": (pa.array([b"\xff"]), "/w=="),
    "category": (pa.array(["a"]).dictionary_encode(), "a"),
    "category of dates": (pa.array([datetime.date(2024, 1, 2)]).dictionary_encode(), "2024-01-02"),
    "text and category inside": (
        pa.StructArray.from_arrays([pa.array(["a"]).dictionary_encode()], names=["b"]), {"b": "a"},
    ),
    "map": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())), {"a": 1}),
    "map of numbers": (pa.array([[(2, 1)]], pa.map_(pa.int8(), pa.int8())), [[2, 1]]),
    "nested": (pa.array([[{"a": datetime.date(2024, 1, 2), "b": None}]]), [{"a": "2024-01-02", "b": None}]),
    "large": (pa.array(["a"], pa.large_string()), "a"),
    "fixed list": (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), [1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("name", ["in.parquet", "in.feather", "stream.arrow", "in"])
def test_types_are_kept_or_have_a_form_in_json(tmp_path: Path, kind: str, name: str) -> None:
    values, expected = COLUMNS[kind]
    table = pa.table({"prompt": ["a"], "value": values})
    path = tmp_path / name
    if name == "in.feather":
        feather.write_feather(table, path)
    elif name == "stream.arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(table, path)
    assert rows(path) == [("1", "a", {"value": expected})]


def test_views_as_polars_writes_them(tmp_path: Path) -> None:
    views = pa.array(["a"], pa.string_view())
    table = pa.table({"prompt": views, "value": pa.DictionaryArray.from_arrays(pa.array([0], pa.uint32()), views)})
    with pa.ipc.new_file(tmp_path / "in.arrow", table.schema) as writer:
        writer.write_table(table)
    assert rows(tmp_path / "in.arrow") == [("1", "a", {"value": "a"})]


def test_prompts_ids_and_messages_of_columns(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi", "name": None}]
    path = parquet(
        tmp_path / "in.parquet", {"key": [7, None], "id": ["x", "y"], "chat": [chat, chat], "prompt": [1, 2]}
    )
    (first, second) = read(path, prompt="chat", id="key")
    assert isinstance(first, Unit)
    assert (first.id, first.given_id, second.id) == ("7", 7, "2")
    message = {"role": "user", "content": "hi"}
    assert first.request.fields["messages"] == [message]
    assert list(first.columns.items()) == [("key", 7), ("id", "x"), ("chat", [message]), ("prompt", 1)]
    several = parquet(tmp_path / "several.parquet", {"q": [["a", "b"]]})
    assert rows(several, prompt="q") == [("1", ["a", "b"], {"q": ["a", "b"]})]


def test_columns_of_json_lines_are_named_too(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [{"q": "a", "key": "k", "user": "u"}, {"Q": "b", "key": "l"}])
    good, bad = read(path, prompt="q", id="key")
    assert isinstance(good, Unit)
    assert (good.id, good.request.prompts, dict(good.columns)) == ("k", ["a"], {"q": "a", "key": "k"})
    assert str(bad) == f"{path}:2: has no column 'q'; its columns are 'Q' and 'key'; did you mean 'Q'?"


REFUSED: dict[str, tuple[str, bytes, dict[str, Any], str]] = {
    "no such column": ("a.csv", b"Question,b\nx,y\n", {"prompt": "question"}, "has no column 'question'; its "
                       "columns are 'Question' and 'b'; did you mean 'Question'?"),
    "no prompt": ("a.csv", b"question,b\nx,y\nx,y\n", {}, "which one holds it, --prompt-column question, or use a "
                  "--template (the same for all 2 lines)"),
    "two of a name": ("a.csv", b"prompt,prompt\nx,y\n", {}, "two columns named 'prompt'"),
    "open quote": ("a.csv", b'prompt\nx\n"y\nz\n', {}, "a.csv:3: a quote that opens in this row is never closed"),
    "header not UTF-8": ("a.csv", b"\xff,prompt\n1,b\n", {}, "a.csv:1: a column's name is not UTF-8"),
    "only a header": ("a.csv", b"prompt\n", {}, "is empty, or holds only blank lines"),
    "JSON called CSV": ("a.csv", b'{"prompt": "a"}\n', {}, "a.csv:1: holds JSON, not CSV"),
    "Parquet called JSON lines": ("a.jsonl", b"PAR1....", {}, "a.jsonl:1: is a Parquet file, not JSON: rename it"),
    "text called Parquet": ("a.parquet", b"prompt", {}, "is not a Parquet file (it begins with b'prompt')"),
    "a pointer": ("a.parquet", b"version https://git-lfs.github.com/spec/v1\n", {}, "git lfs pull"),
    "a cut table": ("a.parquet", b"PAR1....", {}, "cannot be read as Parquet"),
    "a packed table": ("a.parquet.gz", gzip.compress(b"PAR1...."), {}, "unpack it first"),
    "a spreadsheet": ("a.xlsx", b"PK\x03\x04", {}, "is a spreadsheet: save the sheet as CSV"),
    "a pickle": ("a.pkl", b"\x80\x04", {}, "is a pickle, which may run code"),
    "a database": ("a", b"SQLite format 3\0", {}, "is a database: write a table of it as CSV"),
    "text": ("a", b"hello\n", {"prompt": "q"}, "is read as text, one prompt a line, which has no column 'q'"),
    "a cut array": ("a.json", b'[{"prompt": "a"},\n{"prompt": "b', {}, "a.json:2: the value that begins here has no"),
    "an open array": ("a.json", b'\n[{"prompt": "a"},', {}, "a.json:2: the array that begins here is not closed"),
    "no comma": ("a.json", b'[{"prompt": "a"}\n{"prompt": "b"}]', {}, "a.json:2: must be separated"),
    "brackets": ("a.json", b'[{"prompt": ["a"}]', {}, "a.json:1: has a } that closes no bracket"),
    "two arrays": ("a.json", b'["a"]\n["b"]', {}, "a.json:2: more follows after the array's end"),
    "a web page": ("a.csv", b"<!DOCTYPE html>\n<html>\n", {}, "a.csv:1: is a web page, not CSV; download"),
    "columns of pandas": ("a.json", b'{"q": {"0": "a"}, "x": {"0": 1}}', {"prompt": "q"}, "with orient='records'"),
    "an object of lists, named": ("a.json", b'{"data": [{"q": "a"}]}', {"prompt": "q"}, "; its 'data' is a list of"),
    "an object of lists": ("a.json", b'{"data": [{"prompt": "a"}]}', {}, "jq -c '.data[]' FILE"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_with_the_way_out(tmp_path: Path, case: str) -> None:
    name, data, more, words = REFUSED[case]
    with pytest.raises(BrimfulError) as caught:
        survey(options(write(tmp_path / name, data), **more), PROFILE).check(strict=False)
    assert words in str(caught.value)
    assert name in str(caught.value) or case == "only a header"
    assert caught.value.exit_code == 2


def test_texts_of_a_table_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    texts = pa.Array.from_buffers(pa.string(), 2, pa.array([b"good", b"\xff"]).buffers())
    first, second = read(parquet(tmp_path / "in.parquet", {"prompt": texts}))
    assert isinstance(first, Unit)
    assert str(second).endswith("in.parquet:2: column 'prompt' is not UTF-8; write it again as text in UTF-8")


def test_several_inputs_of_different_kinds_are_one(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a.csv", "prompt\na\nb\n"),
        parquet(tmp_path / "b.parquet", {"prompt": ["c", "d"]}),
        write(tmp_path / "c.json", '[{"prompt": "e"}]'),
        write_lines(tmp_path / "d.txt", ["f"]),
    ]
    assert [row[:2] for row in rows(*paths)] == [(str(place), text) for place, text in enumerate("abcdef", 1)]
    assert len(read(*paths, limit=3)) == 3


def test_an_arrow_stream_that_was_not_finished_is_told(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a", "b"]})
    path = tmp_path / "in.arrow"
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    whole = path.read_bytes()
    assert survey(options(path), PROFILE).notes == []
    path.write_bytes(whole[:-8])
    assert "has no end-of-stream mark" in survey(options(path), PROFILE).notes[0]
    path.write_bytes(whole[:-20])
    with pytest.raises(InputError, match=r"in.arrow: cannot be read as Arrow: .*; create the file again"):
        survey(options(path), PROFILE)


def test_two_readers_of_csv_do_not_disturb_each_other(tmp_path: Path) -> None:
    long = "x" * 200_000  # more than the csv module takes by default
    path = write(tmp_path / "in.csv", f"prompt\na\n{long}\n")
    slow = Reader(options(path), PROFILE).entries()
    next(slow)
    assert len(read(path)) == 2
    assert isinstance(next(slow).item, Unit)


def test_the_separator_may_be_stated_as_for_excel(tmp_path: Path) -> None:
    assert rows(write(tmp_path / "in.csv", "sep=;\nprompt;a\nx, y;1\n")) == [("1", "x, y", {"a": "1"})]


def test_a_second_row_of_an_id_is_named(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", "id,prompt\nx,a\ny,b\n")
    second = parquet(tmp_path / "b.parquet", {"id": ["z", "x"], "prompt": ["c", "d"]})
    *_, bad = read(first, second)
    assert f"{second}:2: the id 'x' is already used by line 1" in str(bad)
    assert str(bad).endswith("(or --column id, if it is no id here)")


def test_an_overlong_value_is_bad_and_the_next_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("json_values", "csv_rows", "csv_split", "arrow_rows"):
        monkeypatch.setattr(f"brimful.run.input.files.{module}.MAX_ROW", 1 << 20)
    long = "x" * (3 << 19)
    array = write(tmp_path / "in.json", json.dumps([{"prompt": long}, {"prompt": "b"}]))
    table = parquet(tmp_path / "in.parquet", {"prompt": [long, "b"]})
    for path in (array, table):
        bad, good = read(path)
        assert "is longer than" in str(bad)
        assert isinstance(good, Unit)
    with pytest.raises(InputError, match=r"in.csv:2: is longer than 1 MiB"):
        read(write(tmp_path / "in.csv", f"prompt\n{long}\nb\n"))


def test_digests_follow_the_row_and_not_its_form(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "in.jsonl", ['{"prompt":"a","x":1}', '{"prompt":"b","x":null}'])
    table = parquet(tmp_path / "in.parquet", {"prompt": ["a", "b"], "x": [1, None]}, row_group_size=1)
    digests = [[entry.digest for entry in Reader(options(path), PROFILE).entries()] for path in (lines, table)]
    assert digests[0] == digests[1]


def test_a_file_of_an_unknown_kind_is_told(tmp_path: Path) -> None:
    found = survey(options(write(tmp_path / "in.prompts", "hello\n")), PROFILE)
    assert (found.good, len(found.notes)) == (1, 1)
    assert "is read as text, one prompt a line, since .prompts is no known kind" in found.notes[0]
    assert not survey(options(tmp_path / "in.prompts", form=InputFormat.TEXT), PROFILE).notes


def test_quotes_that_are_text_in_tab_separated_files(tmp_path: Path) -> None:
    path = write(tmp_path / "in.tsv", 'q\ta\n"Foo" bar\t1\n"open\t2\nx\t"open too\n"a ""b""\nc"\t3\ny\t"end"\n')
    assert [(row[1], row[2]["a"]) for row in rows(path, prompt="q")] == [
        ('"Foo" bar', "1"),
        ('"open', "2"),
        ("x", '"open too'),
        ('a "b"\nc', "3"),
        ("y", "end"),
    ]


def test_quotes_that_backslashes_escape(tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", 'q, a\n"say \\"hi, you\\"!", "x"\n"b", "y"\n')
    assert rows(path, prompt="q") == [
        ("1", 'say "hi, you"!', {"q": 'say "hi, you"!', "a": "x"}),
        ("2", "b", {"q": "b", "a": "y"}),
    ]


def test_columns_that_are_called_like_fields_of_a_request(tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", "q,mode,temperature,n\na,car,33.5,\nb,bus,1,2\n")
    (bad, _) = read(path, prompt="q")
    assert str(bad).endswith(
        ":2: mode: 'car' is not one of completion, chat, job (or --column mode, if it is not meant to be sent)"
    )
    more = {"prompt": "q", "columns": ("mode", "temperature")}
    found = survey(options(path, **more), PROFILE)
    told = f"{path}: 'n' sets a field of the requests; --column NAME carries it through instead"
    assert found.notes == [told]  # once a file, though the first row has none
    first, second = read(path, **more)
    assert isinstance(second, Unit)
    assert dict(second.request.fields) == {"prompt": "b", "n": 2, "max_tokens": 8}
    assert dict(first.columns) == {"q": "a", "mode": "car", "temperature": "33.5"}


def test_columns_that_are_sent_are_told(tmp_path: Path) -> None:
    path = parquet(tmp_path / "in.parquet", {"prompt": ["a"], "n": [2], "seed": [1], "answer": ["x"], "id": [1]})
    found = survey(options(path), PROFILE)
    assert found.notes == [
        f"{path}: 'n' and 'seed' set fields of the requests; --column NAME carries it through instead"
    ]
    ids = parquet(tmp_path / "ids.parquet", {"prompt": ["a", "b"], "id": [1, 1]})
    assert [(row[0], row[2]) for row in rows(ids, columns=("id",))] == [
        ("1", {"id": 1}),
        ("2", {"id": 1}),
    ]
