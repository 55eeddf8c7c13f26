"""Whose rollouts are whose: every line of an input has an id, and no two lines have the same.

A line without an id of its own gets its line number as a string. A million ids take 32 MB: what is kept of an id is
eight bytes of its hash and the number of its line, in two flat arrays; of a line without one, a bit.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

_FULL = 0.7  # of the table, before it doubles


class Ids:
    """Tells for each id in turn on which earlier line it was seen already."""

    def __init__(self) -> None:
        self._size = 1 << 10
        self._hashes = array("Q", bytes(8 * self._size))
        self._lines = array("Q", bytes(8 * self._size))
        self._used = 0
        self._default = bytearray()

    def add(self, id: str, line: int) -> int | None:
        """Remember an id that a line states. Returns the earlier line that has it, or None."""
        if (number := _line_number(id)) is not None and number < line and self._is_default(number):
            return number
        return self._insert(_hash(id), line)

    def add_default(self, line: int) -> int | None:
        """As :meth:`add`, for a line without an id: its own line number."""
        if self._used and (found := self._find(_hash(str(line)))) is not None:
            return found
        index = line >> 3
        if index >= len(self._default):
            self._default.extend(bytes(index + 1024 - len(self._default)))
        self._default[index] |= 1 << (line & 7)
        return None

    def _is_default(self, line: int) -> bool:
        index = line >> 3
        return index < len(self._default) and bool(self._default[index] >> (line & 7) & 1)

    def _slot(self, value: int) -> int:
        mask, hashes = self._size - 1, self._hashes
        slot = value & mask
        while hashes[slot] and hashes[slot] != value:
            slot = (slot + 1) & mask
        return slot

    def _find(self, value: int) -> int | None:
        slot = self._slot(value)
        return self._lines[slot] if self._hashes[slot] else None

    def _insert(self, value: int, line: int) -> int | None:
        slot = self._slot(value)
        if self._hashes[slot]:
            return self._lines[slot]
        self._hashes[slot], self._lines[slot] = value, line
        self._used += 1
        if self._used > _FULL * self._size:
            self._grow()
        return None

    def _grow(self) -> None:
        hashes, lines = self._hashes, self._lines
        self._size *= 2
        self._hashes = array("Q", bytes(8 * self._size))
        self._lines = array("Q", bytes(8 * self._size))
        for value, line in zip(hashes, lines, strict=True):
            if value:
                slot = self._slot(value)
                self._hashes[slot], self._lines[slot] = value, line


def _hash(id: str) -> int:
    """64 bits, never 0. Among a million ids, two that differ share one with a chance of 3 in a hundred million."""
    return int.from_bytes(blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


def _line_number(id: str) -> int | None:
    """The number that ``id`` is the default id of."""
    return int(id) if id.isascii() and id.isdigit() and id[0] != "0" and len(id) < 19 else None
