"""JSONL files that a run appends to and resumes from, and standard output.

Each batch is one write. After a crash the last line may be torn: :func:`mend` removes it before the run goes on.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from brimful.errors import FleetError
from brimful.run.output.records import dump_line, load_line


class Sink(Protocol):
    """Where rollouts go."""

    def write(self, records: list[dict[str, Any]]) -> None:
        """Write all of them. Raises FleetError when they cannot be written."""

    def close(self) -> None: ...


class RecordFile:
    """A JSONL file, created by the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def write(self, records: list[dict[str, Any]]) -> None:
        """Append all of them, or none. Raises FleetError."""
        if not records:
            return
        data = b"".join(map(dump_line, records))
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            end = os.lseek(self._fd, 0, os.SEEK_END)
            try:
                _write_all(self._fd, data)
            except OSError:
                os.ftruncate(self._fd, end)  # a full disk takes half a line
                raise
        except OSError as error:
            raise FleetError(
                f"cannot write {self.path}: {error.strerror or error}; what it holds is intact, "
                "and the same command resumes"
            ) from None

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


def scan(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Every record with the offset of its line. Raises InputError naming a line that is not a record."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield load_line(line, f"{path}:{number}"), offset
            offset += len(line)


def mend(path: Path) -> int:
    """Remove a torn last line, or complete one that only lacks its line ending. Returns how many bytes were removed."""
    if not path.exists() or not path.stat().st_size:
        return 0
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            keep, end = view.rfind(b"\n") + 1, len(view)
        file.seek(keep)
        if not (tail := file.read()):
            return 0
        try:
            if isinstance(json.loads(tail), dict):
                file.write(b"\n")
                return 0
        except ValueError:
            pass
        file.truncate(keep)
        return end - keep


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
