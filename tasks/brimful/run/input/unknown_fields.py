"""Request fields that brimful does not know. They are sent unchanged and reported, since they may be misspelt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from brimful.fields import KNOWN, likely

_NAMES = 50  # counted by name
_NAME_SHOWN = 60  # characters
_encode = json.JSONEncoder(sort_keys=True).encode


@dataclass
class UnknownField:
    name: str
    digest: int
    """Of its first value."""
    lines: int = 0
    varies: bool = False

    def __str__(self) -> str:
        name = self.name if len(self.name) <= _NAME_SHOWN else self.name[: _NAME_SHOWN - 1] + "…"
        lines = f"{self.lines:,} line{'s' if self.lines != 1 else ''}"
        text = f"field {name!r} is unknown to brimful and sent unchanged ({lines})"
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


def _digest(value: Any) -> int:
    return crc32(_encode(value).encode())
