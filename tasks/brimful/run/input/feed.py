"""The requests still to be asked, in the input's order, as the driver takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from brimful.errors import InputError
from brimful.packing.units import Unit
from brimful.profile import Profile
from brimful.request import Request
from brimful.run.input.changes import Edits
from brimful.run.input.reader import BadLine, Entry, Reader, ReadOptions
from brimful.run.output.done_index import Tally, all_pairs
from brimful.run.output.errors_file import ErrorsFile
from brimful.runtime.threads import batches_in_thread

_BREATH = 256  # lines between two looks of the event loop


class Budget:
    """Tokens of the whole run, all tries. ``used`` is what the provider counted; the rest is held until it ends."""

    def __init__(self, tokens: int | None, used: int = 0) -> None:
        self.tokens = tokens
        self.used = used
        self.reached = False
        self._held: dict[int, int] = {}
        self._sum = 0

    def take(self, line: int, request: Request, rollouts: int) -> bool:
        """Hold what a line may use. False when that does not fit beside what is held and used."""
        if self.tokens is None:
            return True
        tokens = -(-request.hold * rollouts // request.choices)
        if self.used + self._sum + tokens > self.tokens:
            return False
        self._held[line] = tokens
        self._sum += tokens
        return True

    def free(self, line: int) -> None:
        """All of a line has ended."""
        self._sum -= self._held.pop(line, 0)

    @property
    def holding(self) -> bool:
        return bool(self._held)


class Feed:
    """Passes over what the output holds, what is outstanding from an earlier try and what failed before."""

    def __init__(
        self,
        options: ReadOptions,
        profile: Profile,
        *,
        strict: bool,
        retry_errors: bool,
        tally: Tally,
        errors: ErrorsFile | None,
        edits: Edits | None,
        surveyed: bool,
        budget: Budget,
        on_bad: Callable[[BadLine], None] = lambda bad: None,
        store: Callable[[], None] = lambda: None,
    ) -> None:
        """``store`` puts the digests of the lines seen on disk, before any of them is asked."""
        self._options = options
        self._strict = strict
        self._retry_errors = retry_errors
        self._reader = Reader(options, profile, ids=not surveyed)
        self._tally = tally
        self._errors = errors
        self._edits = edits
        self._surveyed = surveyed
        self._budget = budget
        self._outstanding: dict[int, set[tuple[int, int]]] = {}
        self._on_bad = on_bad
        self._store = store
        self._freed = asyncio.Event()
        self._of: dict[int, int] = {}
        self._bad_lines = 0
        self._first_bad: BadLine | None = None
        self.requests = 0
        self.at_end = False
        self.stopped = False
        self.fault: InputError | None = None
        """The first bad line under ``--strict``, or what ended the input early."""

    def expect(self, outstanding: Iterable[tuple[int, int, int]]) -> None:
        """These (line, prompt, choice) come from an earlier try, without being asked again. Call it before units."""
        for line, prompt, choice in outstanding:
            self._outstanding.setdefault(line, set()).add((prompt, choice))

    def stop(self) -> None:
        """Nothing more is given out."""
        self.stopped = True
        self._freed.set()

    @property
    def budget_reached(self) -> bool:
        return self._budget.reached

    def spent(self, tokens: int) -> None:
        """What the whole run has used by now."""
        self._budget.used = tokens

    def rollouts_of(self, line: int) -> int | None:
        """How many rollouts a line has that is outstanding; None where its line was not read yet."""
        return self._of.get(line)

    @property
    def unused(self) -> bool:
        """Whether nothing was there to ask, and nothing bad to record."""
        return not self._surveyed and self.at_end and not self.requests

    def nothing_usable(self) -> InputError | None:
        """What to say of a stream of which nothing could be used; a file is refused before."""
        name = self._options.sources[0].name
        if self._surveyed or not self.at_end:
            return None
        if not self.requests:
            return InputError(f"{name}: is empty, or holds only blank lines; write a request or a prompt on each line")
        if self._first_bad is not None and self._bad_lines == self.requests:
            return InputError(f"none of {self.requests:,} lines can be used; the first: {self._first_bad}")
        return None

    def ended(self, line: int) -> None:
        """All of a line has come, or failed."""
        self._of.pop(line, None)
        self._budget.free(line)
        self._freed.set()

    async def units(self) -> AsyncIterator[Unit]:
        """For the driver. Ends early when stopped, at the budget's end and at a fault; ``fault`` tells of that."""
        try:
            async for entry in self._entries():
                if self.stopped:
                    return
                unit = self._next(entry)
                if unit is None:
                    continue
                if not await self._fits(unit):
                    return
                self._of[unit.line] = unit.request.choices
                yield unit
        except InputError as error:
            self.fault = error

    async def _entries(self) -> AsyncIterator[Entry]:
        passed_over = self._tally.complete if self._surveyed else None
        entries = self._reader.entries(passed_over)
        if not self._options.repeatable:
            async for batch in batches_in_thread(entries):
                for entry in batch:
                    self._see(entry)
                self._store()
                for entry in batch:
                    yield entry
        else:
            for place, entry in enumerate(entries):
                if place % _BREATH == 0:
                    await asyncio.sleep(0)
                if self._edits is not None:
                    self._edits.still(entry)
                yield entry
        self.at_end = self._reader.at_end

    def _see(self, entry: Entry) -> None:
        if self._edits is not None:
            self._edits.see(entry)
            self._edits.check(at_end=False)

    def _next(self, entry: Entry) -> Unit | None:
        item = entry.item
        if item is None:
            return None
        self.requests += not self._surveyed
        if isinstance(item, BadLine):
            self._bad(item)
            return None
        recorded = self._errors is not None and item.line in self._errors.lines
        asked_again = self._retry_errors or self._corrected(item.line)
        wanted = self._tally.missing(item.line, item.request)
        if (there := self._outstanding.pop(item.line, None)) is not None:
            # Its pieces come without being asked; of the others only what is missing.
            pairs = all_pairs(item.request) if wanted is None else wanted
            if pairs:
                self._of[item.line] = item.request.choices
            wanted = tuple(pair for pair in pairs if pair not in there)
        elif recorded != asked_again and (recorded or self._retry_errors):
            return None
        return None if wanted == () else Unit(item.line, item.id, item.request, wanted)

    def _bad(self, bad: BadLine) -> None:
        self._bad_lines += 1
        self._first_bad = self._first_bad or bad
        if self._strict:
            raise InputError(str(bad))
        if self._errors is not None and bad.line in self._errors.bad and not self._corrected(bad.line):
            return
        self._on_bad(bad)

    def _corrected(self, line: int) -> bool:
        return self._edits is not None and line in self._edits.corrected

    async def _fits(self, unit: Unit) -> bool:
        rollouts = unit.request.choices if unit.wanted is None else len(unit.wanted)
        while not self._budget.take(unit.line, unit.request, rollouts):
            if not self._budget.holding or self.stopped:
                self._budget.reached = not self.stopped
                return False
            self._freed.clear()
            await self._freed.wait()
        return not self.stopped
