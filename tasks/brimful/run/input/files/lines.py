"""Lines of text or JSON.

Only ``\\n`` ends a line, with or without a ``\\r`` before it: a JSON string may hold any other line break of Unicode.
Memory holds one line at a time, and at most MAX_ROW bytes of it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import NamedTuple

from brimful.run.input.files.row import MAX_ROW, Row

BOM = b"\xef\xbb\xbf"
_CHUNK = 256 * 1024
_HEAD = 64 * 1024


class Head(NamedTuple):
    """What was read of a file to find out what it holds: up to its first line that is not blank."""

    blank: list[bytes]
    first: bytes
    """That line's first 64 KiB, with its line ending if it has one; empty if all lines are blank."""

    @property
    def whole(self) -> bool:
        """Whether ``first`` is all of the line."""
        return len(self.first) < _HEAD or self.first.endswith(b"\n")


def read_head(stream: io.BufferedReader) -> Head:
    blank: list[bytes] = []
    while data := stream.readline(_HEAD):
        if not blank and data.startswith(BOM):
            data = data[len(BOM) :] or b"\n"
        if not data.isspace():
            return Head(blank, data)
        blank.append(data)
    return Head(blank, b"")


def text_lines(stream: io.BufferedReader, head: Head, *, text: bool) -> Iterator[Row]:
    """All lines, blank ones too. ``text``: each line is a prompt."""
    for place, data in enumerate(_physical(stream, head), 1):
        overlong = len(data) > MAX_ROW and not data.endswith(b"\n")
        if overlong:
            while (rest := stream.readline(_CHUNK)) and not rest.endswith(b"\n"):
                pass
        if data.endswith(b"\n"):
            data = data[:-2] if data.endswith(b"\r\n") else data[:-1]
        yield Row(place, data, overlong, text)


def _physical(stream: io.BufferedReader, head: Head) -> Iterator[bytes]:
    yield from head.blank
    if head.first:
        yield head.first if head.whole else head.first + stream.readline(MAX_ROW + 1 - len(head.first))
    while data := stream.readline(MAX_ROW + 1):
        yield data
