"""Whatever a table holds is read back as it was written, wherever a chunk of the file ends."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import InputError
from brimful.run.input.files.csv_rows import csv_rows
from brimful.run.input.files.json_values import json_values
from brimful.run.input.files.lines import read_head

TEXT = st.text(st.sampled_from('abé"\\\n\r\t,;|{}[]: \u2028😀'), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


class Trickle(io.RawIOBase):
    """Gives at most ``size`` bytes at a time, as a pipe may."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = io.BytesIO(data), size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._data.read(min(self._size, len(buffer)))
        buffer[: len(data)] = data
        return len(data)


def stream(data: bytes, size: int) -> io.BufferedReader:
    return io.BufferedReader(Trickle(data, size), 16)


def values(data: bytes, size: int) -> list[Any]:
    source = stream(data, size)
    return [json.loads(row.data) for row in json_values(source, read_head(source), "in")]


@given(
    objects=st.lists(st.dictionaries(TEXT, JSON, max_size=4), max_size=5),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    array=st.booleans(),
    size=st.integers(1, 40),
)
@settings(max_examples=150, deadline=None)
def test_json_values_are_cut_where_they_end(
    objects: list[dict[str, Any]], indent: int | None, ascii_only: bool, array: bool, size: int
) -> None:
    texts = [json.dumps(each, indent=indent, ensure_ascii=ascii_only) for each in objects]
    text = json.dumps(objects, indent=indent, ensure_ascii=ascii_only) if array else "\n".join(texts)
    data = text.encode()
    expected = json.loads(json.dumps(objects))
    assert values(data, size) == expected
    if array:
        for end in range(1, len(data), 7):  # cut off anywhere, it is never taken for whole
            with pytest.raises(InputError):
                values(data[:end], size)


@given(
    table=st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(TEXT, min_size=width, max_size=width), max_size=6)),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
    tabs=st.booleans(),
    size=st.integers(1, 40),
)
@settings(max_examples=300, deadline=None)
def test_csv_cells_are_read_as_they_were_written(
    table: list[list[str]], quoting: Any, end: str, tabs: bool, size: int
) -> None:
    if tabs:  # a row of several lines that each look like a row would be taken for several
        table = [
            [cell.replace("\t", " ") for cell in row] if any("\n" in cell for cell in row) else row for row in table
        ]
    if end == "\n":  # a cell's last \r would be taken for a part of the line's end
        table = [[*row[:-1], row[-1].rstrip("\r")] for row in table]
    names = [f"c{number}" for number in range(len(table[0]) if table else 1)]
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if tabs else ",", quoting=quoting, lineterminator=end)
    writer.writerows([names, *table])
    data = text.getvalue().encode()
    rows = list(csv_rows(stream(data, size), "in", tabs=tabs, header=True, wanted=(), carried=frozenset()))
    found = [json.loads(row.data) for row in rows if row.fault is None and row.data]
    assert [row.fault for row in rows if row.fault is not None] == []
    assert found == [dict(zip(names, row, strict=True)) for row in table]
