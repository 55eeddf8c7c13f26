"""Records of files and batches on disk, as JSON that can hold any text of a caller."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel

from brimful.runtime import json_bytes
from brimful.runtime.atomic import atomic_write


class Owned(BaseModel):
    """A record that belongs to one caller."""

    caller: str
    """The name of the caller who may see it."""
    caller_id: str = ""
    """The id of that caller's token. Empty for a caller without one, and in records of earlier versions."""


class Owner(NamedTuple):
    """A caller, as the owner of records."""

    name: str = ""
    id: str = ""
    """Of its token."""

    def owns(self, record: Owned) -> bool:
        """A caller of the same name with another token does not, unless the record names no token."""
        return record.caller == self.name and record.caller_id in ("", self.id)


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
