"""A file as rows: opens it, finds out its kind, and hands it to the reader of that kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from brimful.errors import InputError
from brimful.run.input.files import kinds
from brimful.run.input.files.csv_rows import csv_rows
from brimful.run.input.files.json_values import json_values
from brimful.run.input.files.lines import read_head, text_lines
from brimful.run.input.files.row import Row
from brimful.run.input.files.unpack import STDIN, Unpacked, named_errors, unpacked
from brimful.run.input.formats import InputFormat

_END_MARK = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True)
class TableOptions:
    """How files become rows."""

    form: InputFormat = InputFormat.AUTO
    header: bool = True
    """The first row of CSV names the columns."""
    columns: tuple[str, ...] = ()
    """Columns that a table must have."""
    carried: frozenset[str] = frozenset()
    """Columns that are data, though fields of requests are called so."""


def read_rows(path: str, name: str, suffix: str, options: TableOptions, note: Callable[[str], None]) -> Iterator[Row]:
    """All rows of a file. ``name``: for messages. ``note``: takes what the user may want to know about the file.

    Raises UsageError and InputError for a file that cannot be read, or is truncated.
    """
    place = 0
    with named_errors(name, lambda: place + 1), unpacked(path, name) as opened:
        for row in _rows(opened, path, name, suffix, options, note):
            place = row.place
            yield row


def _rows(
    opened: Unpacked, path: str, name: str, suffix: str, options: TableOptions, note: Callable[[str], None]
) -> Iterator[Row]:
    stream = opened.stream
    form = kinds.kind(name, suffix, stream.peek(kinds.HEAD)[: kinds.HEAD], options.form)
    if form in (InputFormat.CSV, InputFormat.TSV):
        return csv_rows(
            stream,
            name,
            tabs=form is InputFormat.TSV,
            header=options.header,
            wanted=options.columns,
            carried=options.carried,
        )
    if form in (InputFormat.PARQUET, InputFormat.ARROW):
        return _columnar(opened, path, name, form, options.columns, note)
    head = read_head(stream)
    form = options.form if options.form is not InputFormat.AUTO else kinds.line_kind(suffix, head)
    if form is InputFormat.JSON:
        return json_values(stream, head, name)
    if form is InputFormat.TEXT and options.columns:
        raise InputError(
            f"{name}: is read as text, one prompt a line, which has no column {options.columns[0]!r}; name its kind, "
            "for instance --input-format csv"
        )
    if form is InputFormat.TEXT and options.form is InputFormat.AUTO and suffix and suffix not in kinds.BY_SUFFIX:
        note(f"{name} is read as text, one prompt a line, since {suffix} is no known kind of file (--input-format)")
    return text_lines(stream, head, text=form is InputFormat.TEXT)


def _has_end_mark(path: Path) -> bool:
    """Whether a file in Arrow's stream format ends as writers end it. A pipe is not looked at."""
    if not path.is_file():
        return True
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(_END_MARK)))
        return file.read() == _END_MARK


def _columnar(
    opened: Unpacked, path: str, name: str, form: InputFormat, columns: tuple[str, ...], note: Callable[[str], None]
) -> Iterator[Row]:
    from brimful.run.input.files.arrow_rows import arrow_rows, arrow_stream_rows, parquet_rows

    if form is InputFormat.ARROW and not opened.stream.peek(6).startswith(b"ARROW1"):
        if not (opened.packed or path == STDIN) and not _has_end_mark(Path(path)):
            note(f"{name}: has no end-of-stream mark, so it may have been cut off between two batches of rows")
        return arrow_stream_rows(opened.stream, name, columns)
    if opened.packed or not Path(path).is_file():
        way = "unpack it first (such files are compressed inside)" if opened.packed else "name a file, not a pipe"
        raise InputError(f"{name}: cannot be read in one go, since files of this kind are indexed at their end; {way}")
    return parquet_rows(path, name, columns) if form is InputFormat.PARQUET else arrow_rows(path, name, columns)
