"""A look through the whole input before anything is sampled: it knows the counts, the faults and the edits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from brimful.errors import InputError
from brimful.packing.units import Unit
from brimful.profile import Profile
from brimful.run.input.reader import BadLine, Entry, Reader, ReadOptions, is_duplicate
from brimful.run.input.unknown_fields import UnknownFields
from brimful.run.output.sidecar import Ranges

_KEPT = 20  # faults that are kept
_SHOWN = 10  # and told in words


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
    unknown: UnknownFields = field(default_factory=UnknownFields)
    of_settings: set[str] = field(default_factory=set)
    """Faults of the command's own settings, which spoil line after line: each is listed once."""
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
            listed = {fault.line: fault for fault in self.faults + self.duplicates[:_SHOWN]}
            raise InputError(_listed([listed[line] for line in sorted(listed)], self.bad))
        if self.bad and (strict or not self.good):
            if not self.good and len(self.faults) == 1 and (message := self.faults[0].message) in self.of_settings:
                raise InputError(message + (f" (so it is for all {self.bad:,} lines)" if self.bad > 1 else ""))
            raise InputError(_listed(self.faults, self.bad))

    def add(self, entry: Entry, options: ReadOptions | None = None) -> None:
        self.lines = entry.line
        item = entry.item
        if isinstance(item, Unit):
            self.requests += 1
            self.rollouts += item.request.choices
            self.unknown.add(item.request.fields)
        elif item is not None:
            self.requests += 1
            self.bad += 1
            self.bad_lines.add(item.line)
            if options is not None and options.to_blame(item.message):
                if item.message not in self.of_settings and len(self.of_settings) < _KEPT:
                    self.of_settings.add(item.message)
                    self.faults.append(item)
            elif len(self.faults) < _KEPT:
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
        found.add(entry, options)
        if note is not None:
            note(entry)
        if strict and found.bad:
            break
    found.at_end = reader.at_end
    return found


def _listed(faults: list[BadLine], count: int) -> str:
    if count == 1:
        return str(faults[0])
    shown = faults[:_SHOWN]
    more = f"\n  and {count - len(shown):,} more" if count > len(shown) else ""
    return f"{count:,} lines cannot be used:\n  " + "\n  ".join(map(str, shown)) + more
