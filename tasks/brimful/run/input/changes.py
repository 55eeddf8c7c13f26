"""Edits of the input between two tries: noticed line by line, and named."""

from __future__ import annotations

from brimful.errors import InputError
from brimful.run.input.digests import LineDigests, name_lines
from brimful.run.input.reader import Entry
from brimful.run.output.done_index import LineSet, Tally
from brimful.run.output.errors_file import ErrorsFile
from brimful.run.output.sidecar import Ranges

_KEPT = 5
WAYS_OUT = (
    "put it back as it was, name another output with -o, "
    "or begin anew with --fresh (what there is stays, under another name)"
)


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
            elif len(self._changed) < _KEPT:
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
