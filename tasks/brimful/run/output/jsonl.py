"""JSONL files that a run appends to and resumes from, and standard output.

Each batch is one write, and :meth:`RecordFile.sync` makes it durable. What a crash leaves of a batch, :func:`mend`
removes before the run goes on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.errors import FleetError, InputError
from brimful.run.output.records import dump_line, load_line
from brimful.runtime.atomic import sync_directory

_HEAD = b'{"id":'  # of every record


class RecordFile:
    """A JSONL file, created by the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._synced = False

    def write(self, records: list[dict[str, Any]]) -> None:
        """Append all of them, or none. Raises FleetError."""
        if not records:
            return
        data = b"".join(map(dump_line, records))
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._synced = False
            end = os.lseek(self._fd, 0, os.SEEK_END)
            try:
                _write_all(self._fd, data)
            except OSError:
                os.ftruncate(self._fd, end)  # a full disk takes half a line
                raise
        except OSError as error:
            raise self._error(error) from None

    def sync(self) -> None:
        """Make the file's records survive a power loss, those of an earlier process too.

        Blocks: call it in a thread, at any time. Does nothing for a pipe or a device. Raises FleetError.
        """
        if self._synced or not self.path.is_file():
            return
        self._synced = True
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)  # the writer's own may be closed meanwhile
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._error(error) from None
        sync_directory(self.path.parent)

    def _error(self, error: OSError) -> FleetError:
        return FleetError(f"cannot write {self.path}: {error.strerror or error}; the same command resumes the run")

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class StandardOutput:
    """``-o -``: records as they come. A run cannot resume from it."""

    def write(self, records: list[dict[str, Any]]) -> None:
        try:
            sys.stdout.buffer.write(b"".join(map(dump_line, records)))
            sys.stdout.buffer.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter reports the same error at exit
            if isinstance(error, BrokenPipeError):
                raise FleetError("standard output was closed") from None
            raise FleetError(f"cannot write standard output: {error.strerror or error}") from None

    def close(self) -> None: ...


Sink = RecordFile | StandardOutput
"""Where rollouts go."""


def scan(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Every record with the offset of its line. Raises InputError naming a line that is not a record."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield load_line(line, f"{path}:{number}"), offset
            offset += len(line)


def mend(path: Path) -> int:
    """Remove what a crash left behind the last whole record: a torn line, or blocks of NULs that were never written.

    Returns how many bytes were removed. A record that only lacks its line ending is completed. A file that does not
    begin like a record is left alone.
    """
    if not path.exists() or not path.stat().st_size:
        return 0
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            size, nul = len(view), view.find(b"\0")  # in a record, JSON escapes it
            end = size if nul < 0 else nul
            keep = view.rfind(b"\n", 0, end) + 1
            head, tail = view[: len(_HEAD)].rstrip(b"\0"), view[keep:end]
        if keep == size or not _HEAD.startswith(head):
            return 0
        if nul < 0:
            with contextlib.suppress(InputError):
                load_line(tail, str(path))
                file.seek(size)
                file.write(b"\n")
                return 0
        file.truncate(keep)
        return size - keep


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
