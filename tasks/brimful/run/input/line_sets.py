"""Sets of line numbers in little memory: a bitmap, and ranges for JSON."""

from __future__ import annotations

from bisect import bisect_left


class LineSet:
    """Line numbers, one bit each."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def add(self, line: int) -> bool:
        """Return False when the line was there already."""
        if line in self:
            return False
        index = line >> 3
        if index >= len(self._bits):
            self._bits.extend(bytes(index + 4096 - len(self._bits)))
        self._bits[index] |= 1 << (line & 7)
        self._count += 1
        return True

    def __contains__(self, line: int) -> bool:
        index = line >> 3
        return index < len(self._bits) and bool(self._bits[index] >> (line & 7) & 1)

    def __len__(self) -> int:
        return self._count


class Ranges:
    """Line numbers as ``[first, last]`` ranges in rising order."""

    def __init__(self, ranges: list[list[int]] | None = None) -> None:
        self.ranges = [list(each) for each in ranges or []]

    def add(self, line: int) -> None:
        """Add a line above all others; one that is not above them is ignored."""
        if self.ranges and self.ranges[-1][1] == line - 1:
            self.ranges[-1][1] = line
        elif not self.ranges or self.ranges[-1][1] < line:
            self.ranges.append([line, line])

    def __contains__(self, line: int) -> bool:
        place = bisect_left(self.ranges, line, key=lambda each: each[1])
        return place < len(self.ranges) and self.ranges[place][0] <= line
