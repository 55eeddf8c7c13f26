"""The units still to be sampled, in the input's order, as the driver takes them.

Skips what the output holds, what an earlier try left in flight and what failed before. With ``--budget-tokens`` it
gives out a line only when the tokens it may use still fit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace

from brimful.errors import InputError
from brimful.packing.request_size import most_choices
from brimful.packing.units import Unit
from brimful.profile import Profile
from brimful.run.input.budget import Budget
from brimful.run.input.changes import InputChanges
from brimful.run.input.ids import Duplicates
from brimful.run.input.line_pace import LinePace
from brimful.run.input.reader import BadLine, Entry, Reader, ReadOptions
from brimful.run.input.survey import Survey
from brimful.run.output.done_index import DoneIndex, all_pairs
from brimful.run.output.errors_file import ErrorsFile
from brimful.runtime.threads import batches_in_thread

_LINES_PER_YIELD = 256  # of a file, before other tasks of the event loop run


@dataclass
class Feed:
    """Iterate over :meth:`units`; report what came of them to :meth:`failed` and :meth:`settle`."""

    options: ReadOptions
    profile: Profile
    strict: bool
    retry_errors: bool
    done: DoneIndex
    errors: ErrorsFile | None
    changes: InputChanges | None
    duplicates: Duplicates | None
    """Of a first pass, which has checked the input; None: the input can be read only once."""
    budget: Budget
    pace: LinePace | None
    """None: nothing holds lines back."""
    on_bad: Callable[[BadLine], None]
    say: Callable[[str], None]
    """Told of a stream's columns."""
    store: Callable[[], None]
    """Writes the digests of the lines read so far. Called before any of them is given out."""

    def __post_init__(self) -> None:
        self._reader = Reader(self.options, self.profile, duplicates=self.duplicates)
        self._in_flight: dict[int, set[tuple[int, int]]] = {}
        self._freed = asyncio.Event()
        self.lines: dict[int, Unit] = {}
        """Lines of which rollouts are in flight."""
        self._seen = Survey()
        self._failed: dict[int, set[tuple[int, int]]] = {}
        """Rollouts that failed, of lines of which others are in flight."""
        self._source: AsyncIterator[Entry] | None = None
        self._ahead: deque[Entry] = deque()
        """Entries of a stream that were read ahead of being given out."""
        self._reading: asyncio.Task[None] | None = None
        self.at_end = False
        self.stopped = False
        self.on_read: Callable[[int], None] = lambda line: None
        """Called with each line of :meth:`expect` of which nothing else is to be asked for."""
        self.on_stop: Callable[[], None] = lambda: None
        self.fault: InputError | None = None
        """The first bad line under ``--strict``, or what ended the input early."""

    def expect(self, in_flight: Iterable[tuple[int, int, int]]) -> None:
        """``(line, prompt_index, choice_index)`` of rollouts that an earlier try asked for. Call it before units."""
        for line, prompt, choice in in_flight:
            self._in_flight.setdefault(line, set()).add((prompt, choice))

    async def look_up(self, lines: set[int]) -> bool:
        """Read lines of which an earlier try has asked for rollouts, for :attr:`lines`. Call it before units.

        Returns False if it was stopped meanwhile, which matters to a stream that stalls. Raises InputError.
        """
        self._reading = asyncio.create_task(self._look_up(set(lines)))
        try:
            await self._reading
        except asyncio.CancelledError:
            if not self.stopped:
                self._reading.cancel()
                raise
        return not self.stopped

    def stop(self) -> None:
        """Give out nothing more."""
        self.stopped = True
        self._freed.set()
        self.on_stop()
        if self._reading is not None:
            self._reading.cancel()

    @property
    def surveyed(self) -> bool:
        """Whether a first pass has checked the input."""
        return self.duplicates is not None

    @property
    def requests(self) -> int:
        """Lines of a stream so far that are not blank."""
        return self._seen.requests

    @property
    def unused(self) -> bool:
        """Whether a stream held nothing at all."""
        return not self.surveyed and self.at_end and not self.requests

    def nothing_usable(self) -> InputError | None:
        """The error of a stream without a good line. The first pass refuses such a file."""
        return self._seen.unusable() if not self.surveyed and self.at_end else None

    def failed(self, line: int, wanted: tuple[tuple[int, int], ...]) -> None:
        """These rollouts of a line have failed; without any, all of them."""
        unit = self.lines.get(line)
        self._failed.setdefault(line, set()).update(wanted or (all_pairs(unit.request) if unit is not None else ()))
        self.budget.free(line)
        self._freed.set()

    def settle(self, line: int) -> None:
        """Forget the line if nothing more of it can come. Call it when some of it was delivered or has failed."""
        unit = self.lines.get(line)
        if unit is not None and not self.done.complete(line):
            failed = len(self._failed.get(line, ()))
            if self.done.count(line, unit.request) + failed < unit.request.choices:
                return
        self.ended(line)

    def ended(self, line: int) -> None:
        """Forget the line: nothing more of it will come."""
        self.lines.pop(line, None)
        self._failed.pop(line, None)
        self.budget.free(line)
        self.freed()

    def freed(self) -> None:
        """Something may have been freed of the budget."""
        self._freed.set()

    def asks_again(self, line: int) -> bool:
        """Whether a line is asked for though it has failed."""
        return self.retry_errors or self._corrected(line)

    def failed_before(self, line: int) -> bool:
        return self.errors is not None and line in self.errors.lines

    def fits_again(self, unit: Unit, held: tuple[int, int]) -> bool:
        """Hold what asking for the unit's rollouts once more may use, if the budget allows it just now.

        ``held``: the rollouts of its line in flight, and in how many requests.
        """
        return self.budget.take_more(unit.line, unit.request, len(unit.wanted or ()), held)

    async def units(self) -> AsyncIterator[Unit]:
        """For the driver. Ends early when stopped, when the budget is reached, and at an error (see ``fault``)."""
        try:
            async for entry in self._remaining():
                if self.stopped:
                    return
                unit = self._next(entry)
                if unit is None:
                    continue
                if self.pace is not None:
                    await self.pace.wait(unit.line, lambda: self.stopped)
                if not await self._fits(unit):
                    return
                self.lines[unit.line] = unit
                yield unit
        except InputError as error:
            self.fault = error

    async def _entries(self) -> AsyncIterator[Entry]:
        entries = self._reader.entries(self.done.complete if self.surveyed else None)
        if self.options.repeatable:
            for place, entry in enumerate(entries):
                if place % _LINES_PER_YIELD == 0:
                    await asyncio.sleep(0)
                if self.changes is not None:
                    self.changes.check_unchanged(entry)
                yield entry
        else:
            async for batch in batches_in_thread(entries, lambda entry: entry.size):
                for entry in batch:
                    self._observe(entry)
                    self._seen.add(entry, self.options)
                self.store()
                for note in (*self._reader.new_notes(), *self._seen.carried.new_notes(self.profile)):
                    self.say(note)
                for entry in batch:
                    yield entry
        self.at_end = self._reader.at_end

    async def _remaining(self) -> AsyncIterator[Entry]:
        """What was read ahead, then the rest."""
        while self._ahead:
            yield self._ahead.popleft()
        self._source = self._source or self._entries()
        async for entry in self._source:
            yield entry

    async def _look_up(self, lines: set[int]) -> None:
        if self.options.repeatable:
            reader = Reader(self.options, self.profile, duplicates=self.duplicates)
            for place, entry in enumerate(reader.entries(lambda line: line not in lines)):
                if place % _LINES_PER_YIELD == 0:
                    await asyncio.sleep(0)
                if self._looked_up(entry, lines):
                    return
            return
        # A stream is read once: what is still to be asked for is held, and that is little before lines in flight.
        self._source = self._entries()
        async for entry in self._source:
            if not self.done.complete(entry.line):
                self._ahead.append(entry)
            if self._looked_up(entry, lines):
                return

    def _looked_up(self, entry: Entry, lines: set[int]) -> bool:
        """Whether that was the last of the lines."""
        if entry.line in lines:
            lines.discard(entry.line)
            if isinstance(entry.item, Unit):
                self.lines[entry.line] = entry.item
        return not lines

    def _observe(self, entry: Entry) -> None:
        if self.changes is not None:
            self.changes.observe(entry)
            if (error := self.changes.error(at_end=False)) is not None:
                raise error

    def _next(self, entry: Entry) -> Unit | None:
        item = entry.item
        if item is None:
            return None
        if isinstance(item, BadLine):
            self._bad(item)
            return None
        recorded, asked_again = self.failed_before(item.line), self.asks_again(item.line)
        wanted = self.done.missing(item.line, item.request)
        if (in_flight := self._in_flight.pop(item.line, None)) is not None:
            # These are delivered without being asked for; of the others, ask only for what is missing.
            pairs = all_pairs(item.request) if wanted is None else wanted
            if pairs:
                self.lines[item.line] = item
            wanted = tuple(pair for pair in pairs if pair not in in_flight)
            if not wanted:
                self.on_read(item.line)
        elif recorded != asked_again and (recorded or self.retry_errors):
            return None
        if wanted is None:
            return item  # all of it, as it was read
        return replace(item, wanted=wanted) if wanted else None

    def _bad(self, bad: BadLine) -> None:
        if self.strict:
            raise InputError(str(bad))
        recorded = self.errors is not None and bad.line in self.errors.bad
        if not recorded or self._corrected(bad.line):
            self.on_bad(bad)

    def _corrected(self, line: int) -> bool:
        return self.changes is not None and line in self.changes.corrected

    async def _fits(self, unit: Unit) -> bool:
        if not self.budget.limited:
            return not self.stopped
        rollouts = unit.request.choices if unit.wanted is None else len(unit.wanted)
        calls = -(-unit.request.n // most_choices(unit.request, self.profile))
        while not self.budget.take(unit.line, unit.request, rollouts, calls):
            if not self.budget.holding or self.stopped:
                self.budget.reached = not self.stopped
                return False
            self._freed.clear()
            await self._freed.wait()
        return not self.stopped
