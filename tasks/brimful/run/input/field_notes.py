"""Notes to the user about the fields of an input: which are carried through, and which are sent though unknown.

Either may be a misspelt field. Both are counted over all lines.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from brimful.fields import KNOWN, OURS, likely
from brimful.names import Mode
from brimful.profile import Profile
from brimful.words.counted import counted
from brimful.words.phrases import cut, enumerated

_NAMES = 50  # counted by name
_NAME_SHOWN = 60  # characters
_COLUMNS_SHOWN = 8
_encode = json.JSONEncoder(sort_keys=True).encode


@dataclass
class UnknownField:
    name: str
    digest: int
    """Of its first value."""
    lines: int = 0
    varies: bool = False

    def __str__(self) -> str:
        name = _short(self.name)
        text = f"field {name!r} is unknown to brimful and sent unchanged ({counted(self.lines, 'line')})"
        if meant := likely(self.name):
            text += f"; did you mean {meant}?"
        if self.varies:
            text += "; its value differs between lines, so those lines cannot share a request"
        return text

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "lines": self.lines, "varies": self.varies, "likely": likely(self.name)}


class UnknownFields:
    """Counts the unknown fields of all requests of an input. Keeps at most 50 names."""

    def __init__(self) -> None:
        self._found: dict[str, UnknownField] = {}
        self._more = False

    def add(self, fields: Mapping[str, Any]) -> None:
        for name in fields.keys() - KNOWN:
            found = self._found.get(name)
            if found is None:
                if len(self._found) >= _NAMES:
                    self._more = True
                    continue
                found = self._found[name] = UnknownField(name, _digest(fields[name]))
            found.lines += 1
            if not found.varies:
                found.varies = _digest(fields[name]) != found.digest

    def __iter__(self) -> Iterator[UnknownField]:
        """The most frequent first."""
        return iter(sorted(self._found.values(), key=lambda field: (-field.lines, field.name)))

    def notes(self, most: int) -> list[str]:
        """Messages about the first ``most`` fields, and one about the rest."""
        notes = [str(field) for field in self]
        if (rest := len(notes) - most) > 0:
            notes[most:] = [f"and {rest:,}{' or more' if self._more else ''} other unknown fields"]
        return notes


class Carried:
    """Counts the columns of an input: fields of its lines that are not sent. Keeps at most 50 names."""

    def __init__(self) -> None:
        self.named: tuple[str, ...] = ()
        """Columns that the command names, which are not meant to be sent."""
        self.lines: dict[str, int] = {}
        """Lines by column."""
        self._more = False
        self._told: set[str] = set()
        self._shown = {"prompt", "messages", "system"}  # columns only where a template takes their place

    def add(self, columns: Mapping[str, Any], shown: Collection[str] = ()) -> None:
        """``shown``: columns that make the prompt or the id, about which there is nothing to say."""
        self._shown.update(name for name in columns if name in shown)
        for name in columns:
            if name in self.lines or len(self.lines) < _NAMES:
                self.lines[name] = self.lines.get(name, 0) + 1
            else:
                self._more = True

    def new_notes(self, profile: Profile) -> list[str]:
        """:meth:`notes` about columns that no earlier call has named."""
        new = [name for name in self.lines if name not in self._told]
        self._told.update(new)
        return self.notes(profile, new)

    def notes(self, profile: Profile, names: Iterable[str] | None = None) -> list[str]:
        """One message about all columns, or these, and one about each that may be meant to be sent."""
        columns = [name for name in (self.lines if names is None else names) if name not in self._shown]
        if not columns:
            return []
        shown = [f"`{_short(name)}`" for name in columns]
        if (rest := len(shown) - _COLUMNS_SHOWN) > 0:
            shown[_COLUMNS_SHOWN:] = [f"{rest:,} or more others" if self._more else counted(rest, "other")]
        notes = [f"{enumerated(shown)} {'is' if len(shown) == 1 else 'are'} carried through, not sent"]
        for name in columns:
            sent = f"--pass {shlex.quote(name)} sends it"
            if name in self.named:
                continue
            if name in KNOWN:
                notes.append(
                    f"`{name}` is a field of other requests, but {profile.name} lists none of that name for this "
                    f"endpoint: {sent}"
                )
            elif meant := likely(name, _taken(profile)):
                notes.append(f"`{_short(name)}`: did you mean {meant}? Rename it, or {sent} under its own name")
        return notes

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Those that no line has, as far as columns are counted and a request has no such field."""
        return [name for name in names if not self._more and name not in self.lines and name not in KNOWN]

    def as_json(self, profile: Profile) -> list[dict[str, Any]]:
        taken = _taken(profile)
        return [
            {"name": name, "lines": lines, "likely": None if name in self.named else likely(name, taken)}
            for name, lines in self.lines.items()
        ]


def _taken(profile: Profile) -> frozenset[str]:
    return OURS.union(*(profile.takes(mode) for mode in Mode))


def _short(name: str) -> str:
    return cut(name, _NAME_SHOWN)


def _digest(value: Any) -> int:
    return crc32(_encode(value).encode())
