"""Which rollouts are there already, in flat memory: a bit for a line that is complete, a small set for one that is not.

A line's rollouts come together, mostly in one piece, so that few lines are incomplete at any time.
"""

from __future__ import annotations

from brimful.request import Request


class Tally:
    """Rollouts by (line, prompt, choice). Each record says how many its line has in all (``of``)."""

    def __init__(self) -> None:
        self._complete = bytearray()
        self._partial: dict[int, set[tuple[int, int]]] = {}
        self.lines = 0
        """Lines that are complete."""

    def add(self, line: int, prompt: int, choice: int, of: int) -> bool:
        """False when that rollout was there already."""
        if self.complete(line):
            return False
        if of <= 1:
            self._set(line)
            return True
        there = self._partial.setdefault(line, set())
        if (prompt, choice) in there:
            return False
        there.add((prompt, choice))
        if len(there) >= of:
            del self._partial[line]
            self._set(line)
        return True

    def complete(self, line: int) -> bool:
        index = line >> 3
        return index < len(self._complete) and bool(self._complete[index] >> (line & 7) & 1)

    def started(self, line: int) -> bool:
        return line in self._partial or self.complete(line)

    def has(self, line: int, prompt: int, choice: int) -> bool:
        return self.complete(line) or (prompt, choice) in self._partial.get(line, ())

    def missing(self, line: int, request: Request) -> tuple[tuple[int, int], ...] | None:
        """The rollouts still missing, None when all of them are. A line found whole counts as complete from then on."""
        if self.complete(line):
            return ()
        if line not in self._partial:
            return None
        there = self._partial[line]
        missing = tuple(pair for pair in all_pairs(request) if pair not in there)
        if not missing:
            del self._partial[line]
            self._set(line)
        return missing

    def _set(self, line: int) -> None:
        index = line >> 3
        if index >= len(self._complete):
            self._complete.extend(bytes(index + 4096 - len(self._complete)))
        self._complete[index] |= 1 << (line & 7)
        self.lines += 1


class LineSet:
    """A set of line numbers: a bit each."""

    def __init__(self) -> None:
        self._tally = Tally()

    def add(self, line: int) -> bool:
        """False when it was there already."""
        return self._tally.add(line, 0, 0, 1)

    def __contains__(self, line: int) -> bool:
        return self._tally.complete(line)

    def __len__(self) -> int:
        return self._tally.lines


def all_pairs(request: Request) -> list[tuple[int, int]]:
    """``(prompt_index, choice_index)`` of every rollout that a request asks for."""
    return [(prompt, choice) for prompt in range(request.prompt_count) for choice in range(request.n)]
