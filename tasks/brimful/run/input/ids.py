"""Finds duplicates among the ids of input lines. ``reader.py`` assigns the ids.

An id belongs to the first line that states it. Lines come in rising order. (A rollout's identity needs no id: it is its
line, prompt and choice.)

A line without an id gets its line number as a string. Memory per line is one bit for a default id, and about 32 bytes
for a stated one: eight bytes of its hash and its line number, in flat arrays that are at most 70 % full.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from hashlib import blake2b

from brimful.run.input.line_sets import LineSet

_FULL = 0.7  # of the table, before it doubles


class Ids:
    """A hash table from id to line, for the first pass over an input."""

    def __init__(self) -> None:
        self._size = 1 << 10
        self._hashes = array("Q", bytes(8 * self._size))
        self._lines = array("Q", bytes(8 * self._size))
        self._used = 0
        self._default = LineSet()

    def add(self, id: str, line: int) -> int | None:
        """Remember an id that a line states. Returns the earlier line with this id, or None."""
        if (number := _line_number(id)) is not None and number < line and number in self._default:
            return number
        return self._insert(_hash(id), line)

    def add_default(self, line: int) -> int | None:
        """Remember a line without an id. Returns the earlier line that states its number as an id, or None."""
        if self._used and self._hashes[slot := self._slot(_hash(str(line)))]:
            return self._lines[slot]
        self._default.add(line)
        return None

    def _slot(self, value: int) -> int:
        """The slot that holds ``value``, or the empty one where it belongs."""
        mask, hashes = self._size - 1, self._hashes
        slot = value & mask
        while hashes[slot] and hashes[slot] != value:
            slot = (slot + 1) & mask
        return slot

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


class Duplicates:
    """The lines whose id an earlier line has, as the first pass found them; a later pass asks it in place of Ids.

    Takes 16 bytes a duplicate.
    """

    def __init__(self) -> None:
        self._lines, self._earlier = array("Q"), array("Q")

    def note(self, line: int, earlier: int) -> None:
        self._lines.append(line)
        self._earlier.append(earlier)

    def add(self, id: str, line: int) -> int | None:
        """As :meth:`Ids.add`."""
        return self.add_default(line)

    def add_default(self, line: int) -> int | None:
        """As :meth:`Ids.add_default`."""
        place = bisect_left(self._lines, line)
        return self._earlier[place] if place < len(self._lines) and self._lines[place] == line else None


def _hash(id: str) -> int:
    """64 bits, never 0. Two of a million different ids collide with a probability of 3e-8."""
    return int.from_bytes(blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


def _line_number(id: str) -> int | None:
    """The line whose default id is ``id``."""
    return int(id) if id.isascii() and id.isdigit() and id[0] != "0" and len(id) < 19 else None
