"""Which rollouts the output already holds: one bit for a finished line, a small set for a partly finished one.

Most lines finish in one delivery, so few are partly finished at any time and memory stays small.
"""

from __future__ import annotations

from brimful.request import Request
from brimful.run.input.line_sets import LineSet


class DoneIndex:
    """Rollouts by (line, prompt_index, choice_index)."""

    def __init__(self) -> None:
        self._complete = LineSet()
        self._partial: dict[int, set[tuple[int, int]]] = {}

    @property
    def lines(self) -> int:
        """How many lines are finished."""
        return len(self._complete)

    def add(self, line: int, prompt: int, choice: int, of: int) -> bool:
        """Return False when that rollout was there already. ``of``: how many rollouts the line has in all."""
        if line in self._complete:
            return False
        if of <= 1:
            return self._complete.add(line)
        there = self._partial.setdefault(line, set())
        if (prompt, choice) in there:
            return False
        there.add((prompt, choice))
        if len(there) >= of:
            self._finish(line)
        return True

    def complete(self, line: int) -> bool:
        return line in self._complete

    def started(self, line: int) -> bool:
        return line in self._partial or line in self._complete

    def count(self, line: int, request: Request) -> int:
        """How many rollouts of the line are there."""
        return request.choices if line in self._complete else len(self._partial.get(line, ()))

    def has(self, line: int, prompt: int, choice: int) -> bool:
        return line in self._complete or (prompt, choice) in self._partial.get(line, ())

    def missing(self, line: int, request: Request) -> tuple[tuple[int, int], ...] | None:
        """``(prompt_index, choice_index)`` of the rollouts still missing; None when all of them are.

        A line found to lack none is finished from then on: its records may not have said how many it has.
        """
        if line in self._complete:
            return ()
        if line not in self._partial:
            return None
        there = self._partial[line]
        missing = tuple(pair for pair in all_pairs(request) if pair not in there)
        if not missing:
            self._finish(line)
        return missing

    def _finish(self, line: int) -> None:
        del self._partial[line]
        self._complete.add(line)


def all_pairs(request: Request) -> list[tuple[int, int]]:
    """``(prompt_index, choice_index)`` of every rollout that a request asks for."""
    return [(prompt, choice) for prompt in range(request.prompt_count) for choice in range(request.n)]
