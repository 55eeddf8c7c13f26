"""A run's displays: a live block on a terminal, a plain line every ten seconds elsewhere; all on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol

from brimful.run.display.progress import Progress, Rate, ReadStatus, plain_line
from brimful.run.display.summary import Summary

PLAIN_S = 10.0
"""Seconds between two plain lines."""


class Display(Protocol):
    """What a session shows its messages and figures on."""

    def say(self, text: str) -> None:
        """Print a line that stays."""

    async def show(self, progress: Progress) -> None:
        """Show the figures; called about twice a second."""

    def end(self, summary: Summary) -> None:
        """Print the end table."""

    def close(self) -> None: ...


class Quiet:
    """``--no-progress``: messages and the end table only."""

    def __init__(self, *, table: bool = True) -> None:
        self._table = table

    def say(self, text: str) -> None:
        print(f"brimful: {text}", file=sys.stderr, flush=True)

    async def show(self, progress: Progress) -> None: ...

    def end(self, summary: Summary) -> None:
        if self._table:
            print(plain_table(summary.rows()), file=sys.stderr, flush=True)

    def close(self) -> None: ...


class Plain(Quiet):
    """Where stderr is not a terminal: a line of figures every :data:`PLAIN_S` seconds."""

    def __init__(self, fleet: ReadStatus, *, table: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(table=table)
        self._fleet = fleet
        self._clock = clock
        self._rate = Rate()
        self._next = clock() + PLAIN_S / 5  # a first line soon, as a sign of life

    async def show(self, progress: Progress) -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + PLAIN_S
        fleet = await self._fleet()
        self.say(plain_line(progress, fleet, *self._rate.update(progress, fleet)))


def plain_table(rows: list[tuple[str, str]]) -> str:
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"  {label.ljust(width)}  {value}" for label, value in rows)


def make_display(*, progress: bool, table: bool, fleet: ReadStatus) -> Display:
    """The display for stderr as it is; ``progress`` False: :class:`Quiet`. ``table``: with the end table."""
    if not progress:
        return Quiet(table=table)
    if not sys.stderr.isatty():
        return Plain(fleet, table=table)
    from brimful.run.display.terminal import Terminal  # rich is slow to import

    return Terminal(fleet, table=table)
