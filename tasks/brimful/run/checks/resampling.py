"""Orders what a run with checks samples next: rejected rollouts again first, then further lines of the input."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from brimful.packing.units import Unit
from brimful.run.checks.open_lines import OpenLines, Pair, unit_to_resample
from brimful.run.checks.rejections import Place, Rejections
from brimful.run.input.feed import Feed
from brimful.run.output.done_index import all_pairs


class Resampling:
    """Gives out the run's units, those of rejected rollouts among them, and keeps :class:`OpenLines`."""

    def __init__(self, feed: Feed, rejections: Rejections, most_tries: int) -> None:
        self.lines = OpenLines()
        self.began = False
        """The driver takes units."""
        self.asked_again = 0
        """Rollouts."""
        self.fault: Exception | None = None
        """Ends the units."""
        self.on_wait: Callable[[], None] = lambda: None
        """Called while a unit waits for the budget."""
        self.on_exhausted: Callable[[Unit, Pair], None] = lambda unit, pair: None
        """Called with a rollout that an earlier try has given up without recording it."""
        self.on_end: Callable[[int], None] = lambda line: None
        """Called with each line of which nothing more is open."""
        self._feed = feed
        self._rejections = rejections
        self._most_tries = most_tries
        self._before: dict[Place, int] = {}
        self._again: deque[tuple[int, list[Pair]]] = deque()
        self._changed = asyncio.Event()
        feed.on_read = self._read

    async def units(self, source: AsyncIterator[Unit]) -> AsyncIterator[Unit]:
        """Ends once every rollout is accepted or given up, or at a stop. Raises :attr:`fault`."""
        self.began = True
        ended = False
        upcoming: asyncio.Future[Unit | None] | None = None
        try:
            while not self._feed.stopped:
                if self.fault is not None:
                    raise self.fault
                self._changed.clear()
                if (again := self._next_again()) is not None:
                    yield again
                    continue
                if ended and not self.lines.busy:
                    return
                if upcoming is None and not ended:
                    upcoming = asyncio.ensure_future(anext(source, None))
                await self._either(upcoming)
                if upcoming is not None and upcoming.done():
                    unit, upcoming = upcoming.result(), None
                    if unit is None:
                        ended = True
                    for part in self._parts(unit) if unit is not None else ():
                        yield part
        finally:
            if upcoming is not None:
                upcoming.cancel()

    def changed(self) -> None:
        """Lines have ended, or are to be asked for again, or there is a fault, or a stop."""
        self._changed.set()

    def repeat(self, line: int, pairs: Iterable[Pair]) -> None:
        """Ask for these rollouts of a line again. All were rejected equally often."""
        self._again.append((line, list(pairs)))
        self.changed()

    def end_line(self, line: int) -> None:
        """Where nothing of the line is open, say so to the feed."""
        if self.lines.close_if_done(line):
            self.on_end(line)
            self._feed.ended(line)
            self.changed()

    def rejected(self, place: Place) -> int:
        """Rejections that count against ``--tries``: those since the choice was given up."""
        return self._rejections.rejected(place) - self._before.get(place, 0)

    def _read(self, line: int) -> None:
        """The source has nothing more of a line that an earlier try has asked for."""
        self.lines.read(line)
        self.end_line(line)

    async def _either(self, upcoming: asyncio.Future[Unit | None] | None) -> None:
        """Wait for the source's next unit, or for a change."""
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({changed} | ({upcoming} if upcoming else set()), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    def _parts(self, unit: Unit) -> list[Unit]:
        """The unit of the source, divided by how often its rollouts were rejected before."""
        line = unit.line
        self.lines.read(line)
        by_rejected: dict[int, list[Pair]] = {}
        wanted = all_pairs(unit.request) if unit.wanted is None else unit.wanted
        for pair in wanted:
            place = (line, *pair)
            rejected = self._rejections.rejected(place)
            if rejected and self._feed.asks_again(line):
                self._before[place] = rejected
            elif self._rejections.given_up(place, self._most_tries):
                if not self._feed.failed_before(line):
                    self.on_exhausted(unit, pair)
                continue
            by_rejected.setdefault(rejected, []).append(pair)
        parts = []
        for rejected, pairs in by_rejected.items():
            self.lines.ask(line, pairs, unit)
            parts.append(unit_to_resample(unit, pairs, rejected) if rejected or len(pairs) < len(wanted) else unit)
        if not parts:
            self.end_line(line)
        return parts

    def _next_again(self) -> Unit | None:
        """None where there is nothing to repeat, or the budget does not allow it before others have ended."""
        while self._again:
            line, pairs = self._again[0]
            unit = self.lines.unit(line)
            assert unit is not None
            part = unit_to_resample(unit, pairs, self._rejections.rejected((line, *pairs[0])))
            fits = self._feed.fits_again(part, self.lines.held(line))
            if not fits and self._feed.budget.holding:
                self.on_wait()
                return None
            self._again.popleft()
            self.lines.waited(line, len(pairs))
            if fits:
                self.lines.ask(line, pairs)
                self.asked_again += len(pairs)
                return part
            self._feed.budget.reached = True
            self.lines.leave(line)
        return None
