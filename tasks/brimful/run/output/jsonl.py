"""JSONL files that a run appends to and resumes from, and standard output.

A batch is one write, or several if it is large, and :meth:`RecordFile.sync` makes it durable. :func:`mend` removes the
torn line that a crash leaves, before the run goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.errors import FleetError, InputError, UsageError
from brimful.run.output.records import dump_line, load_line
from brimful.runtime.atomic import sync_directory

_CHUNK = 4 << 20  # bytes
_HEAD = b'{"id":'  # of every record


class RecordFile:
    """A JSONL file, created by the first write, and locked while it is open: one process at a time writes it.

    A file that is removed, replaced or cut short by somebody else is not written to any more: what its inode still
    holds, and all later records, go to :attr:`kept`. Safe to sync in a thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = path.with_name(path.name + ".kept")
        self.lost: str | None = None
        """What became of the file, for instance ``was removed``; None while it is in its place."""
        self._fd: int | None = None
        self._end = 0
        """The size when it was opened, and after each write."""
        self._synced = False
        self._sync_fault: FleetError | None = None
        self._mutex = threading.Lock()

    def lock(self) -> None:
        """Open and lock the file if it exists. Raises UsageError when another process has locked it."""
        try:
            self._open(0)
        except FileNotFoundError:
            pass
        except BlockingIOError:
            raise UsageError(
                f"another run is writing {self.path}, perhaps under another name (a link): wait for it, or name "
                "another output"
            ) from None
        except OSError as error:
            raise self._error(error) from None

    def mend(self) -> int:
        """As :func:`mend`, before anything is written."""
        removed = mend(self.path)
        if self._fd is not None:
            self._end = os.fstat(self._fd).st_size
        return removed

    def write(self, records: list[dict[str, Any]]) -> None:
        """Append all of them, or none. Raises FleetError."""
        if not records:
            return
        with self._mutex:
            try:
                if self._fd is None:
                    self._open(os.O_CREAT)
                self._check()
                assert self._fd is not None
                self._synced = False
                end = os.lseek(self._fd, 0, os.SEEK_END)
                try:
                    self._end = end + _write_records(self._fd, records)
                except OSError:
                    os.ftruncate(self._fd, end)  # a full disk takes half a line
                    raise
            except OSError as error:
                raise self._error(error) from None

    def check(self) -> str | None:
        """``PATH was removed``, or replaced, or cut short; None while it is in its place. Takes two system calls.

        Raises FleetError when the file is lost and ``kept`` cannot be written.
        """
        with self._mutex:
            try:
                self._check()
            except OSError as error:
                raise self._error(error) from None
        return self.lost and f"{self.path} {self.lost}"

    def sync(self) -> None:
        """Make the file's records survive a power loss, those of an earlier process too.

        Blocks: call it in a thread, at any time. Does nothing for a pipe or a device. Raises FleetError; so does every
        later call then, since the kernel reports a lost write only once.
        """
        try:
            with self._mutex:
                if self._sync_fault is not None:
                    raise self._sync_fault
                self._check()
                path = self.kept if self.lost else self.path
                if self._synced or not path.is_file():
                    return
                self._synced = True
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # the writer's own may be closed meanwhile
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            self._sync_fault = self._error(error)
            raise self._sync_fault from None
        sync_directory(path.parent)

    def close(self) -> None:
        with self._mutex:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _open(self, flags: int) -> None:
        """Raises BlockingIOError when another process has locked the file."""
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise
        except OSError:  # a file system without locks: OUT.run.lines is all there is to go by
            pass
        self._fd, self._end = fd, os.fstat(fd).st_size

    def _check(self) -> None:
        if self._fd is None or self.lost is not None or (lost := self._what_became(os.fstat(self._fd))) is None:
            return
        try:
            self._divert(self._fd)
        except OSError as error:
            raise FleetError(
                f"{self.path} {lost} while the run was writing it, and what came cannot be kept in {self.kept}: "
                f"{error.strerror or error}"
            ) from None
        self.lost = lost

    def _what_became(self, mine: os.stat_result) -> str | None:
        try:
            there = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return "was moved" if mine.st_nlink else "was removed"
        if not os.path.samestat(mine, there):
            return "was replaced by another file"
        return "was cut short" if mine.st_size < self._end else None

    def _divert(self, fd: int) -> None:
        kept = os.open(self.kept, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            offset = 0
            while data := os.pread(fd, 1 << 20, offset):
                _write_all(kept, data)
                offset += len(data)
        except OSError:
            os.close(kept)
            raise
        self._fd, self._synced = kept, False
        os.close(fd)

    def _error(self, error: OSError) -> FleetError:
        if isinstance(error, BlockingIOError):
            return FleetError(f"another run is writing {self.path}: wait for it, or name another output")
        path = self.kept if self.lost else self.path
        return FleetError(f"cannot write {path}: {error.strerror or error}; the same command resumes the run")


class StandardOutput:
    """``-o -``: records as they come. A run cannot resume from it."""

    def __init__(self) -> None:
        self._file = sys.stdout.buffer  # sys.stdout may be another one while a user's hook runs

    def write(self, records: list[dict[str, Any]]) -> None:
        try:
            self._file.writelines(map(dump_line, records))
            self._file.flush()
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


def _write_records(fd: int, records: list[dict[str, Any]]) -> int:
    """In chunks, since each record may repeat large columns. Returns the bytes written."""
    size, held, waiting = 0, 0, []
    for record in records:
        waiting.append(line := dump_line(record))
        size, held = size + len(line), held + len(line)
        if held > _CHUNK:
            _write_all(fd, b"".join(waiting))
            held, waiting = 0, []
    _write_all(fd, b"".join(waiting))
    return size


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
