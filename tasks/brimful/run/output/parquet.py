"""An output whose name ends in ``.parquet``: the ledger's records as a table, a row a rollout, in the input's order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from brimful.errors import UsageError
from brimful.runtime.atomic import atomic_write

_ROWS = 20_000  # of a row group, what is in memory at a time


def check_parquet() -> None:
    """Raises UsageError when pyarrow is not there."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UsageError("a .parquet output needs pyarrow: pip install 'brimful[parquet]'") from None


def write_parquet(records: Iterable[tuple[bytes, dict[str, Any]]], path: Path) -> None:
    """Atomic. A text with lone surrogates, which Parquet's UTF-8 can't hold, has U+FFFD there; the ledger is exact.

    Raises FleetError.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("id", pa.string()),
            ("line", pa.int64()),
            ("prompt_index", pa.int32()),
            ("choice_index", pa.int32()),
            ("text", pa.string()),
            ("finish_reason", pa.string()),
            ("model", pa.string()),
            ("attempts", pa.int32()),
            ("prompt_tokens", pa.int64()),
            ("completion_tokens", pa.int64()),
            ("request_id", pa.string()),
            ("packed", pa.int32()),
            ("started_at", pa.float64()),
            ("ended_at", pa.float64()),
            ("waited_s", pa.float64()),
            ("provider_s", pa.float64()),
            ("retrying_s", pa.float64()),
            ("message", pa.string()),
            ("logprobs", pa.string()),
        ]
    )
    rows = (_row(record, schema.names) for _, record in records)
    with atomic_write(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := list(islice(rows, _ROWS)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))


def _row(record: dict[str, Any], names: list[str]) -> dict[str, Any]:
    usage = record.get("usage") or {}
    row = {name: record.get(name) for name in names}
    row["prompt_tokens"], row["completion_tokens"] = usage.get("prompt_tokens"), usage.get("completion_tokens")
    for name in ("message", "logprobs"):
        if row[name] is not None:
            row[name] = json.dumps(row[name])
    for name in ("id", "text", "finish_reason", "model", "request_id"):
        if isinstance(text := row[name], str):
            row[name] = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return row
