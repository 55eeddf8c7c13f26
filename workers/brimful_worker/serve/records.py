"""Records of files and batches on disk; apart, as both stores write the texts of callers, whatever those hold."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from brimful.runtime import json_bytes
from brimful.runtime.atomic import atomic_write

Record = TypeVar("Record", bound=BaseModel)


def write_record(path: Path, record: BaseModel) -> None:
    """Raises OSError and FleetError."""
    with atomic_write(path) as file:
        file.write(json_bytes.encode(record.model_dump()))  # pydantic's own JSON has no lone surrogates


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """None without a file, or if it is no such record. Raises OSError."""
    try:
        return kind.model_validate(json_bytes.decode(path.read_bytes()))
    except (FileNotFoundError, ValueError):
        return None
