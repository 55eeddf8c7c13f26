"""The first pass over an input, before anything is sampled: counts its lines and finds its faults and changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from brimful.errors import InputError
from brimful.packing.units import Unit
from brimful.profile import Profile
from brimful.run.input.field_notes import Carried, UnknownFields
from brimful.run.input.ids import Duplicates
from brimful.run.input.line_sets import Ranges
from brimful.run.input.reader import BadLine, Entry, Reader, ReadOptions

_KEPT = 20  # bad lines that are kept
_SHOWN = 10  # bad lines that a message lists


@dataclass
class Survey:
    """Figures of an input."""

    lines: int = 0
    """All lines, blank ones too."""
    requests: int = 0
    """Lines that are not blank, bad ones too; in a sweep, each with each combination."""
    bad: int = 0
    bad_lines: Ranges = field(default_factory=Ranges)
    faults: list[BadLine] = field(default_factory=list)
    """The first bad lines. A fault of the command's own options, which spoils line after line, is listed once."""
    duplicates: Duplicates = field(default_factory=Duplicates)
    option_faults: dict[str, str] = field(default_factory=dict)
    """Messages of ``faults`` that the command's options are to blame for, by what other lines' messages share."""
    unknown: UnknownFields = field(default_factory=UnknownFields)
    """Fields that are sent."""
    carried: Carried = field(default_factory=Carried)
    """Columns, which are not sent."""
    overridden: Counter[str] = field(default_factory=Counter)
    """Lines, by field, whose own value a sweep replaces."""
    rollouts: int = 0
    notes: list[str] = field(default_factory=list)
    """About the files."""
    at_end: bool = True
    """False when ``--limit`` ended it."""

    @property
    def good(self) -> int:
        return self.requests - self.bad

    def check(self, strict: bool) -> None:
        """Raises InputError for an input without a good line and, strict, for any bad line."""
        if (error := self.unusable()) is not None:
            raise error
        if self.bad and strict:
            raise InputError(_listed(self.faults, self.bad))

    def unusable(self) -> InputError | None:
        """The error of an input without a good line."""
        if not self.requests:
            return InputError("the input is empty, or holds only blank lines; write a request or a prompt on each line")
        if self.good:
            return None
        if len(self.faults) == 1 and (message := self.faults[0].message) in self.option_faults.values():
            text = str(self.faults[0]) if message.startswith("has no") else message
            return InputError(text + (f" (the same for all {self.bad:,} lines)" if self.bad > 1 else ""))
        return InputError(_listed(self.faults, self.bad))

    def add(self, entry: Entry, options: ReadOptions) -> None:
        self.lines = options.sweep.line(entry.line)
        item = entry.item
        if item is None:
            return
        self.requests += 1
        if isinstance(item, Unit):
            self.rollouts += item.request.choices
            if not options.sweep.index(entry.line):  # once for each line
                self.unknown.add(item.request.fields)
                self.carried.named = options.columns
                self.carried.add(item.columns, options.shown)
            return
        self.bad += 1
        self.bad_lines.add(item.line)
        if (fault := options.at_fault(item.message)) is None:
            if len(self.faults) < _KEPT:
                self.faults.append(item)
        elif fault not in self.option_faults and len(self.option_faults) < _KEPT:
            self.option_faults[fault] = item.message
            self.faults.append(item)


def survey(
    options: ReadOptions, profile: Profile, *, strict: bool = False, note: Callable[[Entry], None] | None = None
) -> Survey:
    """Read all of an input once. ``note`` is called with each line; strict, it ends at the first bad one.

    Raises InputError for a file that cannot be read.
    """
    found = Survey()
    reader = Reader(options, profile)
    for entry in reader.entries():
        found.add(entry, options)
        if note is not None:
            note(entry)
        if strict and found.bad:
            break
    found.at_end, found.notes, found.overridden = reader.at_end, reader.new_notes(), reader.overridden
    found.duplicates = reader.duplicates
    return found


def _listed(faults: list[BadLine], count: int) -> str:
    if count == 1:
        return str(faults[0])
    shown = faults[:_SHOWN]
    more = f"\n  and {count - len(shown):,} more" if count > len(shown) else ""
    return f"{count:,} lines cannot be used:\n  " + "\n  ".join(map(str, shown)) + more
