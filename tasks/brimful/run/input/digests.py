"""What the input's lines were at the last try: four bytes a line in ``OUT.run.lines``, by which an edit is noticed.

The same file is the lock: two runs cannot write one output.
"""

from __future__ import annotations

import fcntl
import os
from array import array
from pathlib import Path

from brimful.errors import FleetError, UsageError

_NAMED = 5  # changed lines that a message names


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


def name_lines(lines: list[int], more: int = 0) -> str:
    """``line 7``, ``lines 7, 8 and 9``, ``lines 1, 2, 3, 4, 5 and 20 more``."""
    shown, rest = lines[:_NAMED], len(lines) - len(lines[:_NAMED]) + more
    words = [str(line) for line in shown] + ([f"{rest:,} more"] if rest else [])
    listed = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
    return f"line{'s' if len(words) > 1 else ''} {listed}"


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0)
