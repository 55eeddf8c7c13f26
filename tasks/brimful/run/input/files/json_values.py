"""JSON values that are not one a line: the elements of an array, or objects written over several lines each."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from brimful.errors import InputError
from brimful.run.input.files.lines import Head
from brimful.run.input.files.row import MAX_ROW, Row

_CHUNK = 256 * 1024
_BETWEEN = re.compile(rb"[\s,]*")
_MARK = re.compile(rb'["{}\[\]]')
_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_SCALAR = re.compile(rb'[^\s,\[\]{}"]*')
_PAIRS = {ord("{"): ord("}"), ord("["): ord("]")}
_QUOTE = ord('"')


def json_values(stream: io.BufferedReader, head: Head, name: str) -> Iterator[Row]:
    """The values as the bytes that the file holds; in place of a string, an object with that prompt.

    Finds a value's end by its brackets and leaves its meaning to the parser, so that one bad value spoils no other.
    Memory holds one value at a time. Raises InputError where the brackets do not match or the file is cut off.
    """
    return iter(_Values(stream, head, name))


class _Values:
    def __init__(self, stream: io.BufferedReader, head: Head, name: str) -> None:
        self._stream = stream
        self._name = name
        self._buffer = bytearray().join([*head.blank, head.first])
        """Begins with the value that is being read."""
        self._line = 1
        """Of the buffer's first byte."""
        self._kept: bytes | None = None
        """The beginning of an overlong value, of which the buffer holds the rest."""

    def __iter__(self) -> Iterator[Row]:
        self._skip_between()
        array = self._buffer.startswith(b"[")
        opened, values = self._line, 0
        if array:
            self._drop(1)
        while True:
            commas = self._skip_between()
            if array and self._buffer.startswith(b"]"):
                self._drop(1)
                if self._skip_between() or self._buffer:
                    raise self._error(self._line, "more follows after the array's end: write one array, or JSON lines")
                return
            if not self._buffer:
                if array:
                    raise self._error(opened, "the array that begins here is not closed: the file is cut off")
                return
            if commas > 1 or (array and commas != (values > 0)):
                raise self._error(self._line, "must be separated from the value before it by one comma")
            values += 1
            yield self._value()

    def _value(self) -> Row:
        place, self._kept = self._line, None
        first = self._buffer[0]
        end = self._closing(place) if first in _PAIRS else self._string(1, place) if first == _QUOTE else self._scalar()
        data = bytes(self._buffer[:end])
        self._drop(end)
        if self._kept is not None or len(data) > MAX_ROW:
            return Row(place, self._kept or data[:MAX_ROW], overlong=True)
        return Row(place, b'{"prompt":' + data + b"}" if first == _QUOTE else data)

    def _closing(self, place: int) -> int:
        """Where the object or array ends with which the buffer begins."""
        open_brackets: list[int] = []
        at = 0
        while True:
            found = _MARK.search(self._buffer, at)
            if found is None:
                at = self._more(len(self._buffer), place)
                continue
            mark, at = self._buffer[found.start()], found.end()
            if mark == _QUOTE:
                at = self._string(at, place)
            elif mark in _PAIRS:
                open_brackets.append(_PAIRS[mark])
            elif open_brackets.pop() != mark:
                raise self._error(
                    place, f"has a {chr(mark)} that closes no bracket: correct the value that begins here"
                )
            if not open_brackets:
                return at

    def _string(self, at: int, place: int) -> int:
        """Where the string ends whose first character is at ``at``."""
        while True:
            end = _STRING.match(self._buffer, at).end()  # type: ignore[union-attr]  # it matches nothing as well
            if self._buffer[end : end + 1] == b'"':
                return end + 1
            at = self._more(end, place)

    def _scalar(self) -> int:
        while (end := _SCALAR.match(self._buffer).end()) == len(self._buffer) <= MAX_ROW:  # type: ignore[union-attr]
            if not self._read():
                break
        if not end:
            raise self._error(self._line, f"has a {chr(self._buffer[0])} that closes no bracket")
        return end

    def _skip_between(self) -> int:
        """Drop white space and commas. Returns how many commas there were."""
        commas = 0
        while True:
            end = _BETWEEN.match(self._buffer).end()  # type: ignore[union-attr]
            commas += self._buffer.count(b",", 0, end)
            self._drop(end)
            if self._buffer or not self._read():
                return commas

    def _more(self, at: int, place: int) -> int:
        """Read on in the midst of a value. Returns where ``at`` is then: the rest of an overlong value is dropped."""
        if at > MAX_ROW:
            self._kept = self._kept or bytes(self._buffer[:MAX_ROW])
            self._drop(at)
            at = 0
        if not self._read():
            raise self._error(place, "the value that begins here has no end: a quote or bracket is missing")
        return at

    def _read(self) -> bool:
        data = self._stream.read1(_CHUNK)
        self._buffer += data
        return bool(data)

    def _drop(self, count: int) -> None:
        self._line += self._buffer.count(b"\n", 0, count)
        del self._buffer[:count]

    def _error(self, line: int, text: str) -> InputError:
        return InputError(f"{self._name}:{line}: {text}")
