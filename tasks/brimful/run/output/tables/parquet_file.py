"""An output whose name ends in ``.parquet``: one row per rollout, in the input's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from brimful.errors import UsageError
from brimful.run.output.tables.layout import Column, Kind
from brimful.runtime.atomic import atomic_write

_ROWS = 20_000  # of a row group, in memory at a time
CHARACTERS = 64 << 20
"""Of the texts of a row group, about."""
_TYPES = {Kind.BOOL: "bool", Kind.INT: "int64", Kind.LONG: "int64", Kind.FLOAT: "float64"}  # all else is text
_NARROW = {"prompt_index", "choice_index", "attempts", "packed"}


def check_parquet() -> None:
    """Raises UsageError when pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UsageError("a .parquet output needs pyarrow: pip install 'brimful[parquet]'") from None


def write_parquet(records: Iterable[dict[str, Any]], columns: list[Column], path: Path) -> None:
    """Atomic. Raises FleetError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(column.name, pa.type_for_alias(_type(column))) for column in columns])
    with atomic_write(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in _row_groups(records, columns):
            values = zip(*rows, strict=True)
            arrays = [pa.array(list(column), field.type) for column, field in zip(values, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _type(column: Column) -> str:
    if column.inner is None and column.name in _NARROW:
        return "int32"
    return _TYPES.get(column.kind, "string")


def _row_groups(records: Iterable[dict[str, Any]], columns: list[Column]) -> Iterator[list[list[Any]]]:
    rows: list[list[Any]] = []
    size = 0
    for record in records:
        row = [column.value(record) for column in columns]
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, str))
        if len(rows) >= _ROWS or size > CHARACTERS:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows
