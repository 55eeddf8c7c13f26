"""Finds, line by line, what changed in a run's input since the command was last executed.

``OUT.run.lines`` holds a CRC-32 of each line of the input. The same file is the lock that keeps two runs from writing
one output.
"""

from __future__ import annotations

import fcntl
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brimful.errors import FleetError, InputError, UsageError
from brimful.run.input.line_sets import LineSet, Ranges
from brimful.run.input.reader import Entry
from brimful.run.input.sweep.sweep import NO_SWEEP, Sweep
from brimful.run.output.done_index import DoneIndex
from brimful.run.output.errors_file import ErrorsFile
from brimful.words.counted import counted
from brimful.words.phrases import enumerated

_NAMED = 5  # changed lines that a message names
_WAYS_OUT = (
    "restore it, name another output with -o, or start over with --fresh (which keeps the old files under another name)"
)


class LineDigests:
    """The open and locked file. A digest of 0 stands for a line that was never read."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError when another run holds the lock."""
        self._path = path
        self.created = False
        while True:
            self.created = not path.exists()
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._fd)
                raise UsageError(
                    f"another run is writing {str(path).removesuffix('.run.lines')}: "
                    "wait for it, or name another output"
                ) from None
            except OSError:  # a file system without locks
                os.close(self._fd)
                raise
            try:
                if os.path.samestat(os.fstat(self._fd), path.stat()):
                    break
            except FileNotFoundError:
                pass
            os.close(self._fd)  # another run removed it between open and lock
        self.known = array("I")
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        self.known.frombytes(data[: len(data) // 4 * 4])
        self._stored = len(self.known)

    def differs(self, line: int, digest: int) -> bool:
        """Whether the line (1-based) was read before with another digest."""
        return line <= len(self.known) and self.known[line - 1] not in (0, digest)

    def note(self, line: int, digest: int) -> None:
        """Set a line's digest. Lines come in order; :meth:`store` writes them."""
        if line > len(self.known):
            self.known.append(digest)
        elif self.known[line - 1] != digest:
            self.known[line - 1] = digest
            self._stored = min(self._stored, line - 1)

    def forget(self) -> None:
        """Treat all lines as new."""
        del self.known[:]
        os.ftruncate(self._fd, 0)
        self._stored = 0

    def store(self) -> None:
        """Raises FleetError."""
        if self._stored == len(self.known):
            return
        try:
            os.pwrite(self._fd, self.known[self._stored :].tobytes(), 4 * self._stored)
        except OSError as error:
            raise FleetError(f"cannot write {self._path}: {error.strerror or error}") from None
        self._stored = len(self.known)

    def discard(self) -> None:
        """Remove the file while the lock is held."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._fd)


@dataclass
class InputChanges:
    """Compares each line with the last try. A line that was bad, or failed without a rollout, may be corrected."""

    digests: LineDigests
    bad_before: Ranges
    errors: ErrorsFile
    done: DoneIndex
    sweep: Sweep = NO_SWEEP

    def __post_init__(self) -> None:
        self._known = len(self.digests.known)
        self._changed = array("Q")
        self._seen = 0
        self.corrected = LineSet()
        """Places of lines that were changed and may be: they are asked again."""

    def observe(self, entry: Entry) -> None:
        """Compare a line with the last try, and remember it for the next."""
        if self.sweep.index(entry.line):
            return  # the line of the entry before
        line, digest = self.sweep.line(entry.line), entry.digest
        self._seen = line
        if self.digests.differs(line, digest):
            places = range(entry.line, entry.line + len(self.sweep))
            failed = any(place in self.bad_before or place in self.errors.lines for place in places)
            if failed and not any(map(self.done.started, places)):
                for place in places:
                    self.corrected.add(place)
            else:
                self._changed.append(line)
        self.digests.note(line, digest)

    def error(self, at_end: bool) -> InputError | None:
        """What changed and may not. ``at_end``: the whole input was observed."""
        if self._changed:
            return InputError(
                f"{name_lines(self._changed)} of the input changed since the last try, so old and new "
                f"rollouts would be mixed: {_WAYS_OUT}"
            )
        if at_end and self._seen < self._known:
            return InputError(
                f"the input had {counted(self._known, 'line')} at the last try, now {self._seen:,}: {_WAYS_OUT}"
            )
        return None

    def check_unchanged(self, entry: Entry) -> None:
        """Raises InputError when a line is not what it was in the first pass of this try."""
        line = self.sweep.line(entry.line)
        if self.digests.differs(line, entry.digest):
            raise InputError(f"line {line} of the input changed while it was being read: run the command again")

    @property
    def added(self) -> int:
        """Lines appended to the input since the last try."""
        return max(0, self._seen - self._known) if self._known else 0


def name_lines(lines: Sequence[int]) -> str:
    """``line 7``, ``lines 7, 8 and 9``, ``lines 1, 2, 3, 4, 5 and 20 more``."""
    rest = len(lines[_NAMED:])
    words = [str(line) for line in lines[:_NAMED]] + ([f"{rest:,} more"] if rest else [])
    return f"line{'s' if len(words) > 1 else ''} {enumerated(words)}"
