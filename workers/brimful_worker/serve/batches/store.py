"""The batches of all callers, each in a folder of its own: its record, its lock, and while it runs the run's files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import uuid
from pathlib import Path

from brimful.runtime.atomic import sync_directory
from brimful_worker.local.server.keeper import try_lock
from brimful_worker.serve.batches.record import Batch
from brimful_worker.serve.records import Owner, read_record, write_record

_ID = re.compile(r"batch_[0-9a-f]{32}")
_RECORD, _LOCK, _CANCEL = "batch.json", "lock", "cancel"
_NEW = ".new-"
_UNFINISHED_S = 3600.0
UPLOAD = "upload.jsonl"
"""The caller's file, as it was when the batch was created."""


def new_id() -> str:
    return f"batch_{uuid.uuid4().hex}"


class Batches:
    """The batches on this machine's disk. All methods block, and raise OSError or FleetError when the disk fails."""

    def __init__(self, folder: Path, keep_s: float) -> None:
        """``folder`` is made with mode 0700. ``keep_s``: seconds for which a batch that has ended is kept."""
        self.folder = folder
        self._keep_s = keep_s
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def of_batch(self, id: str) -> Path:
        return self.folder / id

    def create(self, batch: Batch, upload: Path) -> Batch:
        """Returns the batch, or the one that has its id already. ``upload``: a file of the same disk."""
        new = self.folder / f"{_NEW}{uuid.uuid4().hex}"
        new.mkdir(mode=0o700)
        try:
            os.link(upload, new / UPLOAD)
            write_record(new / _RECORD, batch)
            os.rename(new, self.of_batch(batch.id))
            sync_directory(self.folder)
        except OSError:
            if (there := self.load(batch.id)) is None:
                raise
            return there
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return batch

    def get(self, id: str, owner: Owner) -> Batch | None:
        """None: there is no such batch, or it is another caller's."""
        batch = self.load(id) if _ID.fullmatch(id) else None
        return batch if batch is not None and owner.owns(batch) else None

    def of(self, owner: Owner) -> list[Batch]:
        """A caller's batches, the newest first."""
        mine = [batch for batch in map(self.load, self.ids()) if batch is not None and owner.owns(batch)]
        return sorted(mine, key=lambda batch: (batch.created, batch.id), reverse=True)

    def ids(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if _ID.fullmatch(name)]

    def load(self, id: str) -> Batch | None:
        """With the time at which it was cancelled, which any front door may have noted."""
        batch = read_record(self.of_batch(id) / _RECORD, Batch)
        if batch is not None and batch.cancelling_at is None and not batch.over:
            batch.cancelling_at = self.cancelling_at(id)
        return batch

    def store(self, batch: Batch) -> None:
        """For whoever holds its lock."""
        write_record(self.of_batch(batch.id) / _RECORD, batch)

    def cancel(self, id: str) -> None:
        """Idempotent. Whoever drives the batch notices."""
        (self.of_batch(id) / _CANCEL).touch(mode=0o600)

    def cancelling_at(self, id: str) -> int | None:
        try:
            return int((self.of_batch(id) / _CANCEL).stat().st_mtime)
        except FileNotFoundError:
            return None

    def lock(self, id: str) -> int | None:
        """A descriptor that holds the batch's lock; None if another process, or a run that it left, has it."""
        descriptor = os.open(self.of_batch(id) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if try_lock(descriptor, fcntl.LOCK_EX):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def tidy(self, id: str) -> None:
        """Remove what a batch that is over needs no longer."""
        for path in self.of_batch(id).iterdir():
            if path.name not in (_RECORD, _LOCK):
                path.unlink(missing_ok=True)

    def delete_expired(self, now: float) -> int:
        """Delete batches whose time is over, and what dead processes left; returns the number of those batches."""
        deleted = 0
        for id in self.ids():
            batch = self.load(id)
            if batch is not None and batch.over and batch.created + self._keep_s <= now:
                shutil.rmtree(self.of_batch(id), ignore_errors=True)
                deleted += 1
        for path in self.folder.glob(f"{_NEW}*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < now - _UNFINISHED_S:
                    shutil.rmtree(path, ignore_errors=True)
        return deleted
