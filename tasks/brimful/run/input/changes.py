"""What changed in the input since the last try of a run, noticed line by line.

``OUT.run.lines`` holds four bytes for each line of the input, a digest of what it was at the last try. The same file is
the lock: two runs cannot write one output.
"""

from __future__ import annotations

import fcntl
import os
from array import array
from pathlib import Path

from brimful.errors import FleetError, InputError, UsageError
from brimful.run.input.reader import Entry
from brimful.run.output.done_index import LineSet, Tally
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.output.sidecar import Ranges

_NAMED = 5  # changed lines that a message names
WAYS_OUT = (
    "put it back as it was, name another output with -o, "
    "or begin anew with --fresh (what there is stays, under another name)"
)


class LineDigests:
    """Open it (which takes the lock), compare or append, close it. 0 stands for a line that was never looked at."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError when another run holds the lock."""
        self._path = path
        self.created = False
        while True:
            self.created = not path.exists()
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(self._fd)
                raise UsageError(
                    f"another run is writing {str(path).removesuffix('.run.lines')}: "
                    "wait for it, or name another output"
                ) from None
            try:
                if os.path.samestat(os.fstat(self._fd), path.stat()):
                    break
            except FileNotFoundError:
                pass
            os.close(self._fd)  # its holder removed it in between
        self.known = array("I")
        data = _read_all(self._fd)
        self.known.frombytes(data[: len(data) // 4 * 4])
        self._stored = len(self.known)

    def differs(self, line: int, digest: int) -> bool:
        """Whether a line (1-based) was looked at before and was another."""
        return line <= len(self.known) and self.known[line - 1] not in (0, digest)

    def note(self, line: int, digest: int) -> None:
        """Lines come in order; :meth:`store` puts them on disk."""
        if line <= len(self.known):
            if self.known[line - 1] != digest:
                self.known[line - 1] = digest
                self._stored = min(self._stored, line - 1)
        else:
            self.known.append(digest)

    def forget(self) -> None:
        """All lines are new."""
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
        """Remove the file, while the lock is held."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._fd)


class Edits:
    """Sees every line. A line that was bad, or failed without a single rollout, may be corrected: it is asked then."""

    def __init__(self, digests: LineDigests, bad_before: Ranges, errors: ErrorsFile, tally: Tally) -> None:
        self._digests = digests
        self._bad_before = bad_before
        self._errors = errors
        self._tally = tally
        self._known = len(digests.known)
        self._changed: list[int] = []
        self._more = 0
        self._seen = 0
        self.corrected = LineSet()

    def see(self, entry: Entry) -> None:
        """Compare with the last try, and remember for the next."""
        line, digest = entry.line, entry.digest
        self._seen = line
        if self._digests.differs(line, digest):
            if self._free(line):
                self.corrected.add(line)
            elif len(self._changed) < _NAMED:
                self._changed.append(line)
            else:
                self._more += 1
        self._digests.note(line, digest)

    def changed(self, at_end: bool) -> bool:
        """Whether :meth:`check` would raise."""
        return bool(self._changed) or (at_end and self._seen < self._known)

    def check(self, at_end: bool) -> None:
        """Raises InputError naming what changed. ``at_end``: the whole input was seen."""
        if self._changed:
            raise InputError(
                f"{name_lines(self._changed, self._more)} of the input changed since the last try, and rollouts of the "
                f"old would be mixed with the new: {WAYS_OUT}"
            )
        if at_end and self._seen < self._known:
            raise InputError(f"the input had {self._known:,} lines at the last try and has {self._seen:,}: {WAYS_OUT}")

    def still(self, entry: Entry) -> None:
        """Raises InputError when a line is not what it was when the input was looked through a moment ago."""
        if self._digests.differs(entry.line, entry.digest):
            raise InputError(f"line {entry.line} of the input changed while it was being read: type the command again")

    @property
    def added(self) -> int:
        """Lines that came to the end of the input since."""
        return max(0, self._seen - self._known) if self._known else 0

    def _free(self, line: int) -> bool:
        if self._tally.started(line):
            return False
        return line in self._bad_before or line in self._errors.lines


def name_lines(lines: list[int], more: int = 0) -> str:
    """``line 7``, ``lines 7, 8 and 9``, ``lines 1, 2, 3, 4, 5 and 20 more``."""
    shown, rest = lines[:_NAMED], len(lines) - len(lines[:_NAMED]) + more
    words = [str(line) for line in shown] + ([f"{rest:,} more"] if rest else [])
    listed = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
    return f"line{'s' if len(words) > 1 else ''} {listed}"


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0)
