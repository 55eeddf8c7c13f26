"""An output whose name ends in ``.csv`` or ``.tsv``: one row per rollout, in the input's order, after a header.

RFC 4180: fields with separators, quotes or line breaks are quoted, and rows end in CRLF. Null is an empty field.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from brimful.run.output.tables.layout import Column
from brimful.runtime.atomic import atomic_write


def write_csv(records: Iterable[dict[str, Any]], columns: list[Column], path: Path) -> None:
    """Atomic. Raises FleetError."""
    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        rows = csv.writer(text, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        rows.writerow([column.name for column in columns])
        for record in records:
            rows.writerow([_shown(column.value(record)) for column in columns])
        text.detach()  # writes the rest to the file, and leaves it open


def _shown(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
