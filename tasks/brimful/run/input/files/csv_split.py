"""Text of CSV, or of tab-separated values, split into cells by RFC 4180, and by how people's files differ from it."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator
from typing import NamedTuple

from brimful.errors import InputError
from brimful.run.input.files.lines import BOM
from brimful.run.input.files.row import MAX_ROW

_SEPARATORS = ",\t;|"
_CR = "\ud800"
"""Stands for a carriage return that ends no line, which csv.reader takes in quotes only. No text in UTF-8 holds it."""
_MOST_IN_TABS = 1 << 20  # characters of a row of tab-separated text before its quote counts as text


class Cells(NamedTuple):
    """One row."""

    place: int
    """The line where it begins."""
    cells: list[str]
    """Empty for a blank line; the text itself where there is a fault. Bytes that are not UTF-8 are lone surrogates."""
    fault: str | None = None


def split_rows(stream: io.BufferedReader, name: str, *, tabs: bool) -> Iterator[Cells]:
    """``tabs``: the file is called tab-separated. Another separator is used where the first line has only that one.

    Raises InputError for a file that is not CSV, and where a quote swallows the rest of the file.
    """
    lines = _Lines(stream, name)
    there = [each for each in _SEPARATORS if each in lines.first]
    separator = there[0] if len(there) == 1 else "\t" if tabs else ","
    if re.fullmatch(r"sep=.\s*", lines.first):  # a line for Excel that names the separator
        next(lines)
    lines.most = _MOST_IN_TABS if separator == "\t" else MAX_ROW
    count = lines.first.count(separator)
    spaced = count > 0 and count == lines.first.count(separator + " ")
    reader = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=spaced)
    width = 0  # cells of the first row
    while True:
        place = lines.begin_row()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            text = str(error)
            if (other := _read_otherwise(lines.row[0], separator, spaced, width)) is not None:
                cells = other
                lines.give_back()
            elif "end of data" in text or "field limit" in text:
                raise InputError(
                    f"{name}:{place}: a quote that opens in this row is never closed; close it, or write a quote that "
                    'belongs to the text doubled ("")'
                ) from None
            else:
                fault = f"is not CSV ({text}); write a quote inside a cell doubled, and the cell in quotes"
                yield Cells(place, ["".join(lines.row).rstrip("\r\n").replace(_CR, "\r")], fault)
                continue
        else:
            if separator == "\t" and len(lines.row) > 1 < width and _like_rows(lines.row, width):
                # Rather rows, of which one has a cell that begins with a quote, than a cell that holds whole rows.
                cells = lines.row[0].rstrip("\r\n").split("\t")
                lines.give_back()
        width = width or len(cells)
        yield Cells(place, [cell.replace(_CR, "\r") for cell in cells] if lines.returns else cells)


def _like_rows(lines: list[str], width: int) -> bool:
    return all(line.count("\t") + 1 == width for line in lines)


def _read_otherwise(line: str, separator: str, spaced: bool, width: int) -> list[str] | None:
    """The cells of a line that is not RFC 4180, if they are as many as in the first row.

    Quotes may be escaped by backslashes (as MySQL and Spark do), or, between tabs, stand for themselves.
    """
    found: list[list[str]] = []
    if '\\"' in line:
        escaped = csv.reader([line], delimiter=separator, strict=True, skipinitialspace=spaced, escapechar="\\")
        with contextlib.suppress(csv.Error):
            found += list(escaped)
    if separator == "\t":
        found.append(line.rstrip("\r\n").split("\t"))
    return next((cells for cells in found if len(cells) == width or not width), None)


class _Lines:
    """The lines as csv.reader takes them."""

    def __init__(self, stream: io.BufferedReader, name: str) -> None:
        self._stream = stream
        self._name = name
        self._given = 0
        self._again: list[str] = []
        self._size = 0
        self.returns = False
        """Whether a carriage return stands within a line."""
        self.most = MAX_ROW
        """Characters of a row."""
        self.row: list[str] = []
        """The lines of the row that is being read."""
        self.first = self._next()
        """The first line."""
        self._again.append(self.first)
        if self.returns and "\n" not in self.first:
            raise InputError(f"{name}:1: ends its lines by carriage returns alone: tr '\\r' '\\n' < FILE > NEW")
        if self.first.startswith(('{"', "[{", "[[")):
            raise InputError(f"{name}:1: holds JSON, not CSV; rename the file, or add --input-format jsonl or json")

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._again.pop() if self._again else self._next()
        self._size += len(line)
        if self._size > self.most and self.row:
            self._again.append(line)
            raise csv.Error("unexpected end of data")
        if not line:
            raise StopIteration
        self._given += 1
        self.row.append(line)
        return line

    def begin_row(self) -> int:
        """Returns the number of its first line."""
        self.row, self._size = [], 0
        return self._given + 1

    def give_back(self) -> None:
        """Only the first line belongs to this row."""
        self._given -= len(self.row) - 1
        self._again += reversed(self.row[1:])

    def _next(self) -> str:
        data = self._stream.readline(MAX_ROW + 1)
        if len(data) > MAX_ROW:
            raise InputError(f"{self._name}:{self._given + 1}: is longer than {MAX_ROW >> 20} MiB; is it CSV?")
        if not self._given and data.startswith(BOM):
            data = data[len(BOM) :]
        line = data.decode("utf-8", "surrogateescape")
        end = 2 if line.endswith("\r\n") else 1
        if "\r" in line[:-end]:
            self.returns = True
            line = line[:-end].replace("\r", _CR) + line[-end:]
        return line
