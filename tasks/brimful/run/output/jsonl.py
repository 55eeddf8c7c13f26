"""The ledger on disk: whole lines, each batch in one write, scanned when a run resumes, a torn last line mended."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from brimful.errors import FleetError
from brimful.run.output.records import dump_line, load_line

_CHUNK = 1 << 16


class Sink(Protocol):
    """Where rollouts go."""

    def write(self, records: list[dict[str, Any]]) -> None:
        """All of them, flushed, when it returns. Raises FleetError when they cannot be written."""

    def close(self) -> None: ...


class LedgerFile:
    """A file of records, made when the first one is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def write(self, records: list[dict[str, Any]]) -> None:
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
                os.ftruncate(self._fd, end)  # no half line stays behind a full disk
                raise
        except OSError as error:
            raise FleetError(f"cannot write {self.path}: {error.strerror or error}; nothing in it is lost") from None

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class StandardOutput:
    """``-o -``: records as they come; there is nothing to resume from."""

    def write(self, records: list[dict[str, Any]]) -> None:
        try:
            sys.stdout.buffer.write(b"".join(map(dump_line, records)))
            sys.stdout.buffer.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter complains again at its end
            if isinstance(error, BrokenPipeError):
                raise FleetError("standard output was closed") from None
            raise FleetError(f"cannot write standard output: {error.strerror or error}") from None

    def close(self) -> None: ...


def scan(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Every record of a ledger with the offset of its line. Raises InputError naming the line that is none."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield load_line(line, f"{path}:{number}"), offset
            offset += len(line)


def mend(path: Path) -> int:
    """Remove a torn last line, or end a whole one that lacks its line ending. Returns the bytes that were removed."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        keep = _end_of_lines(file, end)
        file.seek(keep)
        tail = file.read()
        if not tail:
            return 0
        try:
            if isinstance(json.loads(tail), dict):
                file.write(b"\n")
                return 0
        except ValueError:
            pass
        file.truncate(keep)
        return end - keep


def _end_of_lines(file: Any, end: int) -> int:
    """The offset behind the last ``\\n``."""
    while end > 0:
        start = max(0, end - _CHUNK)
        file.seek(start)
        place = file.read(end - start).rfind(b"\n")
        if place >= 0:
            return int(start + place + 1)
        end = start
    return 0


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
