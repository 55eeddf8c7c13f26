"""A look through the whole input before anything is sampled: it knows the counts, the faults and the edits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from brimful.errors import InputError
from brimful.profile import Profile
from brimful.run.options import ReadOptions
from brimful.run.read import BadLine, Entry, Reader, is_duplicate
from brimful.run.sidecar import Ranges
from brimful.run.units import Unit

_KEPT = 20  # faults that are told in words


@dataclass
class Survey:
    """Figures of an input."""

    lines: int = 0
    """All lines, blank ones too."""
    requests: int = 0
    bad: int = 0
    bad_lines: Ranges = field(default_factory=Ranges)
    faults: list[BadLine] = field(default_factory=list)
    """The first ones."""
    duplicates: list[BadLine] = field(default_factory=list)
    rollouts: int = 0
    at_end: bool = True
    """False when ``--limit`` ended it."""

    @property
    def good(self) -> int:
        return self.requests - self.bad

    def check(self, strict: bool) -> None:
        """Raises InputError when nothing should be sampled from such an input."""
        if not self.requests:
            raise InputError("the input holds no requests, only blank lines; write a request or a prompt on each line")
        if self.duplicates:
            raise InputError(_listed(self.duplicates, "have ids that are taken"))
        if self.bad and (strict or not self.good):
            raise InputError(_listed(self.faults, "cannot be used", self.bad))

    def add(self, entry: Entry) -> None:
        self.lines = entry.line
        item = entry.item
        if isinstance(item, Unit):
            self.requests += 1
            self.rollouts += item.request.choices
        elif item is not None:
            self.requests += 1
            self.bad += 1
            self.bad_lines.add(item.line)
            if len(self.faults) < _KEPT:
                self.faults.append(item)
            if is_duplicate(item) and len(self.duplicates) < _KEPT:
                self.duplicates.append(item)


def survey(
    options: ReadOptions,
    profile: Profile,
    *,
    strict: bool = False,
    note: Callable[[Entry], None] | None = None,
) -> Survey:
    """Read all of it once. ``note`` sees each line. With ``strict`` it ends at the first fault. Raises InputError."""
    found = Survey()
    reader = Reader(options, profile)
    for entry in reader.entries():
        found.add(entry)
        if note is not None:
            note(entry)
        if strict and found.bad:
            break
    found.at_end = reader.at_end
    return found


def _listed(faults: list[BadLine], what: str, count: int | None = None) -> str:
    count = len(faults) if count is None else count
    if count == 1:
        return str(faults[0])
    shown = "\n  ".join(str(fault) for fault in faults[:5])
    more = f"\n  and {count - 5:,} more" if count > 5 else ""
    return f"{count:,} lines {what}:\n  {shown}{more}"
