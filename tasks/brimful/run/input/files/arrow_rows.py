"""Rows of Parquet and Arrow files. pyarrow, an optional package, is imported when the first one is read."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from brimful.errors import InputError, UsageError
from brimful.run.input.files.columns import check_columns
from brimful.run.input.files.row import MAX_ROW, Row, to_json

_ROWS = 500  # in memory as Python objects at a time
_BUFFER = 1 << 20  # bytes of each column of a Parquet file


def parquet_rows(path: str, name: str, wanted: tuple[str, ...]) -> Iterator[Row]:
    """Raises UsageError without pyarrow, InputError for a file that cannot be read or lacks a column."""
    with _named_errors(name, "Parquet"):
        import pyarrow.parquet as pq

        # Without pre-buffering, and with a stream of pages, memory does not grow with the size of a row group.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
            yield from _rows(file.schema_arrow, file.iter_batches(_ROWS), name, wanted)


def arrow_rows(path: str, name: str, wanted: tuple[str, ...]) -> Iterator[Row]:
    """A file in Arrow's file format, which Feather is. Raises as :func:`parquet_rows` does."""
    with _named_errors(name, "Arrow"):
        import pyarrow as pa

        with pa.memory_map(path) as file, pa.ipc.open_file(file) as reader:
            batches = map(reader.get_batch, range(reader.num_record_batches))
            yield from _rows(reader.schema, batches, name, wanted)


def arrow_stream_rows(stream: io.BufferedReader, name: str, wanted: tuple[str, ...]) -> Iterator[Row]:
    """Arrow's stream format, in which Hugging Face's datasets are stored. Raises as :func:`parquet_rows` does."""
    with _named_errors(name, "Arrow"):
        import pyarrow as pa

        with pa.ipc.open_stream(stream) as batches:
            yield from _rows(batches.schema, iter(batches), name, wanted)


@contextmanager
def _named_errors(name: str, kind: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise UsageError(f"{name}: {kind} files need pyarrow: pip install 'brimful[parquet]'") from None
    except (InputError, UsageError):
        raise
    except (ValueError, OSError, NotImplementedError, KeyError) as error:  # pyarrow's own errors derive from these
        first = str(error).partition("\n")[0]
        raise InputError(f"{name}: cannot be read as {kind}: {first}; create the file again") from None


def _rows(schema: Any, batches: Iterator[Any], name: str, wanted: tuple[str, ...]) -> Iterator[Row]:
    from brimful.run.input.files.arrow_values import finisher, text_form

    names: list[str] = schema.names
    check_columns(name, names, wanted)
    kinds = [text_form(field.type) for field in schema]
    finishers = [finisher(field.type) for field in schema]
    place = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            part = batch.slice(start, _ROWS)
            columns = []
            for column, kind, finish in zip(part.columns, kinds, finishers, strict=True):
                values = _values(column, kind)
                columns.append(values if finish is None else [_finished(value, finish) for value in values])
            for cells in zip(*columns, strict=True):
                place += 1
                bad = next((n for n, cell in zip(names, cells, strict=True) if isinstance(cell, UnicodeError)), None)
                if bad is not None:
                    yield Row(
                        place, b"{}", table=True, fault=f"column {bad!r} is not UTF-8; write it again as text in UTF-8"
                    )
                    continue
                data = to_json(dict(zip(names, cells, strict=True))).encode()
                yield Row(place, data[:MAX_ROW], overlong=len(data) > MAX_ROW, table=True)


def _values(column: Any, kind: Any) -> list[Any]:
    """Python values of a column; a UnicodeError in place of a text that is not UTF-8."""
    if column.type != kind:
        column = column.cast(kind)
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_one(value) for value in column]


def _one(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return error


def _finished(value: Any, finish: Callable[[Any], Any]) -> Any:
    return value if value is None or isinstance(value, UnicodeError) else finish(value)
