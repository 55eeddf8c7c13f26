"""Values of rollouts in columns: what the page filters, sorts and compares by, without any text."""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_COLUMNS = 64
"""Fields beyond this number are shown with each rollout, but are not filters."""
MOST_WORDS = 200
"""Different values of a column that are offered as choices."""
_LONGEST_WORD = 100  # characters; longer values are text, not choices
_NAN = math.nan


class Column:
    """One value per row: as the code of a word where there are few of them, and as a number where all are numbers.

    Rows that were not set have code 0 and number NaN.
    """

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        """Word → code, from 1."""
        self.codes: array[int] | None = array("H")
        """None: too many different values, or too long ones."""
        self.numbers: array[float] | None = array("d")
        """None: some values are no numbers."""

    @property
    def useful(self) -> bool:
        return bool(self.words) and (self.codes is not None or self.numbers is not None)

    def set(self, row: int, value: Any) -> None:
        """Rows come in order; those that are left out stay empty. None and NaN are no values."""
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return
        if isinstance(value, (list, dict)):
            self.codes = self.numbers = None
            self.words.setdefault("", 1)
            return
        word = value if isinstance(value, str) else json.dumps(value)
        if self.codes is not None:
            code = self.words.get(word) or len(self.words) + 1
            if code > MOST_WORDS or len(word) > _LONGEST_WORD:
                self.codes = None
            else:
                self.words[word] = code
                _extend(self.codes, row, 0)
                self.codes.append(code)
        if self.numbers is not None:
            try:
                number = float(value) if not isinstance(value, str) else None
            except OverflowError:
                number = None
            if number is None:
                self.numbers = None
            else:
                _extend(self.numbers, row, _NAN)
                self.numbers.append(number)

    def ordered(self, rows: Sequence[int]) -> None:
        """Put the rows into another order, and fill up those that were not set."""
        if self.codes is not None:
            _extend(self.codes, len(rows), 0)
            self.codes = array("H", map(self.codes.__getitem__, rows))
        if self.numbers is not None:
            _extend(self.numbers, len(rows), _NAN)
            self.numbers = array("d", map(self.numbers.__getitem__, rows))


class Cells:
    """All rollouts and failures of a run, or of two that are compared: a row each.

    A *group* is the rows of one prompt, side by side on the page. After :meth:`arrange`, rows are in the order of the
    input, and ``starts`` holds the first row of each group and the number of rows.
    """

    def __init__(self) -> None:
        self.line: array[int] = array("Q")
        self.prompt: array[int] = array("Q")
        self.combination: array[int] = array("Q")
        """Of a sweep, from 0."""
        self.choice: array[int] = array("Q")
        self.source: array[int] = array("B")
        """Index of the file that holds the record."""
        self.offset: array[int] = array("Q")
        """Of the record in its file."""
        self.of: array[int] = array("Q")
        """How many rollouts the line asks for; 0 where that is not known."""
        self.columns: dict[str, Column] = {}
        self.starts: array[int] = array("I")

    def __len__(self) -> int:
        return len(self.line)

    def add(
        self, place: tuple[int, int, int, int], of: int | None, source: int, offset: int, values: Mapping[str, Any]
    ) -> None:
        """``place``: line, prompt, combination and choice."""
        row = len(self.line)
        for store, value in zip((self.line, self.prompt, self.combination, self.choice), place, strict=True):
            store.append(value)
        self.of.append(of or 0)
        self.source.append(source)
        self.offset.append(offset)
        for name, value in values.items():
            if (column := self.columns.get(name)) is None:
                if len(self.columns) >= MOST_COLUMNS:
                    continue
                column = self.columns[name] = Column()
            column.set(row, value)

    def arrange(self, *more: array[int]) -> None:
        """Sort the rows by place and source, with ``more`` arrays of theirs, and find the groups."""
        places = zip(self.line, self.prompt, self.combination, self.choice, self.source, strict=True)
        keys = [
            line << 88 | prompt << 60 | combination << 44 | choice << 2 | source  # one integer takes less than a tuple
            for line, prompt, combination, choice, source in places
        ]
        rows = sorted(range(len(keys)), key=keys.__getitem__)
        for name in ("line", "prompt", "combination", "choice", "source", "offset", "of"):
            old = getattr(self, name)
            setattr(self, name, array(old.typecode, map(old.__getitem__, rows)))
        for old in more:
            old[:] = array(old.typecode, map(old.__getitem__, rows))
        for column in self.columns.values():
            column.ordered(rows)
        self.columns = {name: column for name, column in self.columns.items() if column.useful}
        self.starts = array("I")
        before = None
        for row, place in enumerate(zip(self.line, self.prompt, strict=True)):
            if place != before:
                self.starts.append(row)
                before = place
        self.starts.append(len(self.line))

    def groups(self) -> Iterator[range]:
        """The rows of each group."""
        for first, end in zip(self.starts, self.starts[1:], strict=False):
            yield range(first, end)


def packed(arrays: Mapping[str, array[Any]]) -> tuple[list[dict[str, Any]], bytes]:
    """The arrays as little-endian bytes, each from a multiple of 8, and where they stand in them.

    Each place is ``{"name", "type", "at", "length"}``; ``type`` is that of JavaScript's typed arrays.
    """
    kinds = {("u", 1): "Uint8", ("u", 2): "Uint16", ("u", 4): "Uint32", ("f", 4): "Float32", ("f", 8): "Float64"}
    places, parts, at = [], [], 0
    for name, values in arrays.items():
        kind = kinds["f" if values.typecode in "fd" else "u", values.itemsize]
        places.append({"name": name, "type": kind, "at": at, "length": len(values)})
        data = little_endian(values)
        data += bytes(-len(data) % 8)
        parts.append(data)
        at += len(data)
    return places, b"".join(parts)


def little_endian(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def _extend(values: array[Any], length: int, filler: float) -> None:
    if (short := length - len(values)) > 0:
        values.extend(array(values.typecode, [filler]) * short)
