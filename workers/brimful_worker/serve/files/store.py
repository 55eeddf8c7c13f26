"""The files of all callers in one folder: the data, and beside it a JSON record that says whose it is.

The record is written last and removed first, so that a file which has one is whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from pathlib import Path
from typing import Any

from brimful.runtime.atomic import sync_directory
from brimful_worker.serve.records import Owned, Owner, read_record, write_record

_ID = re.compile(r"file-[0-9a-f]{32}")
_UNFINISHED_S = 24 * 3600.0
"""An upload that has not grown for so long is a dead process's."""


def new_id() -> str:
    return f"file-{uuid.uuid4().hex}"


class StoredFile(Owned):
    """The record of one file."""

    id: str
    bytes: int
    created: float
    """Unix time."""
    expires: float
    """Unix time, from which on it is gone."""
    filename: str
    purpose: str

    def document(self) -> dict[str, Any]:
        """OpenAI's File object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created),
            "expires_at": int(self.expires),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class Files:
    """The files on this machine's disk. All methods block, and raise OSError or FleetError when the disk fails."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is made with mode 0700."""
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def unfinished(self) -> Path:
        """A name for data on its way, to be added or removed."""
        return self.folder / f"{uuid.uuid4().hex}.part"

    def data(self, id: str) -> Path:
        return self.folder / f"{id}.data"

    def add(self, data: Path, stored: StoredFile) -> None:
        """Take ``data`` over, which is a file of the same disk. A file that is there already stays."""
        os.replace(data, self.data(stored.id))
        sync_directory(self.folder)
        try:
            write_record(self._record(stored.id), stored)
        except BaseException:
            if not self._record(stored.id).exists():
                self.data(stored.id).unlink(missing_ok=True)  # a full disk needs the room
            raise

    def get(self, id: str, owner: Owner) -> StoredFile | None:
        """None: there is no such file, or it is another caller's, or it has expired."""
        stored = self._load(id) if _ID.fullmatch(id) else None
        return stored if stored is not None and owner.owns(stored) and stored.expires > time.time() else None

    def of(self, owner: Owner) -> list[StoredFile]:
        """A caller's files, the newest first."""
        now = time.time()
        found = (self._load(path.stem) for path in self.folder.glob("file-*.json"))
        mine = [each for each in found if each is not None and owner.owns(each) and each.expires > now]
        return sorted(mine, key=lambda each: (each.created, each.id), reverse=True)

    def delete(self, id: str) -> None:
        """Idempotent. Whoever reads the data at the moment reads on."""
        self._record(id).unlink(missing_ok=True)
        self.data(id).unlink(missing_ok=True)

    def delete_expired(self, now: float) -> int:
        """Delete what has expired, and what dead processes left; returns the number of expired files."""
        expired = 0
        for path in self.folder.glob("file-*.json"):
            if (stored := self._load(path.stem)) is not None and stored.expires <= now:
                self.delete(stored.id)
                expired += 1
        for path in self.folder.iterdir():
            lost = path.suffix in (".part", ".new") or (path.suffix == ".data" and not self._record(path.stem).exists())
            with contextlib.suppress(FileNotFoundError):
                if lost and path.stat().st_mtime < now - _UNFINISHED_S:
                    path.unlink()
        return expired

    def _record(self, id: str) -> Path:
        return self.folder / f"{id}.json"

    def _load(self, id: str) -> StoredFile | None:
        return read_record(self._record(id), StoredFile)
