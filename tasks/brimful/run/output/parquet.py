"""An output whose name ends in ``.parquet``: one row per rollout, in the input's order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from brimful.errors import UsageError
from brimful.runtime.atomic import atomic_write

_ROWS = 20_000  # of a row group, in memory at a time
_COLUMNS = {
    "id": "string", "line": "int64", "prompt_index": "int32", "choice_index": "int32", "text": "string",
    "finish_reason": "string", "model": "string", "attempts": "int32", "prompt_tokens": "int64",
    "completion_tokens": "int64", "request_id": "string", "packed": "int32", "started_at": "float64",
    "ended_at": "float64", "waited_s": "float64", "provider_s": "float64", "retrying_s": "float64",
    "message": "string", "logprobs": "string",
}  # fmt: skip
_AS_JSON = ("message", "logprobs")


def check_parquet() -> None:
    """Raises UsageError when pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UsageError("a .parquet output needs pyarrow: pip install 'brimful[parquet]'") from None


def write_parquet(records: Iterable[dict[str, Any]], path: Path) -> None:
    """Atomic. Lone surrogates, which Parquet's UTF-8 cannot hold, become U+FFFD; the rollouts file keeps them.

    Raises FleetError.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in _COLUMNS.items()])
    rows = map(_row, records)
    with atomic_write(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := list(islice(rows, _ROWS)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))


def _row(record: dict[str, Any]) -> dict[str, Any]:
    usage = record.get("usage") or {}
    row = {name: record.get(name) for name in _COLUMNS}
    row["prompt_tokens"], row["completion_tokens"] = usage.get("prompt_tokens"), usage.get("completion_tokens")
    for name, kind in _COLUMNS.items():
        value = row[name]
        if name in _AS_JSON and value is not None:
            row[name] = json.dumps(value)
        elif kind == "string" and isinstance(value, str):
            row[name] = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return row
