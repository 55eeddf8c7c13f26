"""An input as a stream of requests: each line is parsed and checked, and bad lines are reported beside good ones."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from brimful.errors import BrimfulError, InputError, UsageError
from brimful.names import Mode, Workload
from brimful.packing.units import Unit
from brimful.profile import Profile
from brimful.run.input.columns import FieldRule, Split
from brimful.run.input.files.columns import listed
from brimful.run.input.files.reading import TableOptions
from brimful.run.input.files.row import MAX_ROW, Row
from brimful.run.input.formats import ColumnNames, InputFormat, parse_json, parse_row, parse_text, stated_id
from brimful.run.input.ids import Duplicates, Ids
from brimful.run.input.line_request import LineRequests, render_line
from brimful.run.input.sources import Source
from brimful.run.input.sweep.sweep import NO_SWEEP, Sweep
from brimful.run.input.templates.template import Renderer, Templates
from brimful.run.input.templates.values import shared_fault

_PROMPTS = frozenset({"prompt", "messages"})


@dataclass(frozen=True)
class ReadOptions:
    """How lines become requests."""

    sources: tuple[Source, ...]
    form: InputFormat = InputFormat.AUTO
    header: bool = True
    """The first row of CSV names the columns."""
    names: ColumnNames = field(default_factory=ColumnNames)
    notes: tuple[str, ...] = ()
    """What was left out when the inputs were listed."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Request fields of the command line; a line's own fields override them."""
    passed: tuple[str, ...] = ()
    """``--pass``: fields of lines that are sent though the profile does not list them."""
    columns: tuple[str, ...] = ()
    """``--column``: fields of lines that are not sent though the profile lists them."""
    mode: Mode | None = None
    system: str | None = None
    templates: Templates | None = None
    sweep: Sweep = NO_SWEEP
    """Fields with which each line is sampled, in place of its own."""
    workload: Workload = Workload.BATCH
    limit: int | None = None
    """Lines at most that are not blank."""

    @property
    def table(self) -> TableOptions:
        return TableOptions(self.form, self.header, self.names.named, frozenset(self.columns))

    @property
    def repeatable(self) -> bool:
        """All of it can be read twice, so it is surveyed before anything is sampled."""
        return all(source.regular for source in self.sources)

    def at_fault(self, message: str) -> str | None:
        """What a bad line's message (``FIELD: …``) says of these options, the same for each line that they spoil.

        None for a message about the line itself.
        """
        if self.templates is not None and (fault := shared_fault(message)) is not None:
            return fault
        name = message.partition(":")[0]
        if name == "model":
            mine = name in self.defaults or name in self.sweep.fields or "--model" in message
        else:
            mine = name in self.defaults or name in self.sweep.fields or (name == "system" and self._sets_system)
        # Options could name the column.
        return message if mine or message.startswith(("has no prompt", "has no column")) else None

    @property
    def _sets_system(self) -> bool:
        return self.system is not None or (self.templates is not None and self.templates.system is not None)

    @cached_property
    def shown(self) -> frozenset[str]:
        """The columns that make the prompt or the id: those that the templates show, or that options name."""
        shown = frozenset(self.names.named)
        return shown | self.templates.names if self.templates is not None else shown

    def check(self) -> None:
        """Raises UsageError for sources that cannot be read."""
        if not self.sources:
            raise UsageError("no input: name a file, or - for standard input")
        if both := sorted(set(self.passed) & set(self.columns)):
            raise UsageError(
                f"--pass {both[0]} and --column {both[0]} exclude each other: it is sent, or carried through"
            )
        seen = set()
        for source in self.sources:
            if source.path in seen:
                raise UsageError(f"{source.name}: is named twice; its lines would have the same ids")
            seen.add(source.path)
            source.check(forced=self.form is not InputFormat.AUTO)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that makes no request."""

    line: int
    """Its place. In a sweep, a line that is bad whatever the combination has one BadLine, at its first place."""
    id: str | int | float
    """As the line gives it; its number if it has none."""
    where: str
    """``FILE:LINE``"""
    message: str
    """The fault and its remedy."""
    data: bytes
    columns: Mapping[str, Any] = field(default_factory=dict)
    """As of a :class:`Unit`, if they are known."""
    combination: bool = False
    """Only this combination of a sweep is bad."""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class Entry(NamedTuple):
    """One line of the input."""

    line: int
    """Its place (:mod:`brimful.run.input.sweep.sweep`): in a sweep, a line has an entry for each combination."""
    digest: int
    """CRC-32 of the line's bytes; 1 in place of 0."""
    item: Unit | BadLine | None
    """None for a blank or skipped line."""
    size: int = 0
    """Bytes of the line."""


class Reader:
    """Iterate over :meth:`entries`."""

    def __init__(self, options: ReadOptions, profile: Profile, *, duplicates: Duplicates | None = None) -> None:
        """``duplicates``: those that an earlier pass found; None: find them in this one."""
        self._options = options
        self._requests = LineRequests(profile, options.defaults, options.mode, options.workload, options.system)
        templates = options.templates
        mode = Mode.CHAT if options.mode is None and templates is not None and templates.messages else options.mode
        named = (*options.defaults, *options.sweep.fields, *options.passed)
        self._rule = FieldRule(profile, mode, named, options.columns)
        self._parse = parse_row if templates is not None and templates.asks else parse_json
        self._renderer: Renderer | None = None
        self._names = replace(options.names, own_id="id" not in options.columns)
        self._ids = Ids() if duplicates is None else duplicates
        self.duplicates = Duplicates()
        """Those that this pass found."""
        self.overridden: Counter[str] = Counter()
        """Lines, by field, that set a field which the sweep sets too."""
        self.at_end = False
        """Whether the input was read to its end, not to the limit."""
        self._notes = list(options.notes)
        self._noted: dict[str, set[str]] = {}

    def new_notes(self) -> list[str]:
        """What the user may want to know about the files, since the last call."""
        notes, self._notes[:] = self._notes[:], ()
        return notes

    def entries(self, skip: Callable[[int], bool] | None = None) -> Iterator[Entry]:
        """Every line. Where ``skip(place)`` is true it is not parsed. Raises InputError for an unusable file."""
        templates = self._options.templates
        with nullcontext() if templates is None else closing(Renderer(templates)) as self._renderer:
            yield from self._entries(skip)

    def _entries(self, skip: Callable[[int], bool] | None) -> Iterator[Entry]:
        line = taken = 0
        sweep, count = self._options.sweep, len(self._options.sweep)
        limit = self._options.limit
        for source in self._options.sources:
            folder = source.folder
            for row in source.rows(self._options.table, self._notes.append):
                if limit is not None and taken >= limit:
                    return
                line += 1
                # Without a sweep, a line's place is its number, and it makes one request. The general way below takes
                # nearly half as long again for a line that is skipped.
                if count == 1:
                    item = None
                    if row.data and not row.data.isspace():
                        taken += 1
                        if skip is None or not skip(line):
                            item = self._items(line, row, f"{source.name}:{row.place}", folder)[0]
                    yield Entry(line, zlib.crc32(row.data) or 1, item, len(row.data))
                    continue
                places = [sweep.place(line, index) for index in range(count)]
                items: list[Unit | BadLine | None] = [None] * count
                if row.data and not row.data.isspace():
                    taken += 1
                    if skip is None or not all(map(skip, places)):
                        items = self._items(line, row, f"{source.name}:{row.place}", folder)
                digest = zlib.crc32(row.data) or 1
                for place, item in zip(places, items, strict=True):
                    skipped = skip is not None and skip(place)
                    yield Entry(place, digest, None if skipped else item, len(row.data) // count)
        self.at_end = True

    def _items(self, line: int, row: Row, where: str, folder: Path | None) -> list[Unit | BadLine | None]:
        """For each combination."""
        sweep = self._options.sweep
        id: str | int | float = str(line)
        earlier: int | None = None
        columns: dict[str, Any] = {}
        own: dict[str, Any] = {}
        try:
            if row.overlong:
                raise InputError(f"is longer than {MAX_ROW >> 20} MiB; put each request on its own line")
            if row.fault is not None:
                raise InputError(row.fault)
            try:
                parsed = parse_text(row.data) if row.text else self._parse(row.data, self._names)
            except InputError:
                if not row.text and (stated := stated_id(row.data, self._names)) is not None:
                    id = stated
                    self._ids.add(str(id), line)
                raise
            id = id if parsed.id is None else parsed.id
            sent, columns = self._rule.split(parsed)
            own = parsed.fields if parsed.body is None else {}
            if row.table:
                self._note_sent(sent.keys() - _PROMPTS, where.rpartition(":")[0])
            earlier = self._ids.add_default(line) if parsed.id is None else self._ids.add(str(id), line)
            if earlier is not None:
                self.duplicates.note(line, earlier)
                # Several files are numbered as one input, so a bare number could be taken for a line of this file.
                before = f"line {earlier}" + (f" of the whole input (this is {line})" if line != row.place else "")
                raise InputError(_duplicate(str(id), before, default=parsed.id is None))
            if self._renderer is not None:
                sent, columns = render_line(self._renderer, parsed, Split(sent, columns), folder)
        except BrimfulError as error:
            message = self._message(error, row, own, earlier is not None)
            bad = BadLine(sweep.place(line), id, where, message, row.data, columns)
            return [bad, *[None] * (len(sweep) - 1)]
        if sweep:
            self.overridden.update(sent.keys() & sweep.fields)
        size = len(row.data) // len(sweep) if columns else 0
        items: list[Unit | BadLine | None] = []
        for index, combination in enumerate(sweep.combinations):
            place, mine = sweep.place(line, index), sweep.id(id, index)
            try:
                request = self._requests.make(sent, combination, str(mine))
                items.append(Unit(place, str(mine), request, columns=columns, columns_bytes=size, given_id=mine))
            except BrimfulError as error:
                message = self._message(error, row, own.keys() - combination.keys())
                items.append(BadLine(place, mine, where, message, row.data, columns, bool(sweep)))
        first = items[0]
        if len(items) == 1 or not isinstance(first, BadLine):
            return items
        if any(not isinstance(item, BadLine) or item.message != first.message for item in items):
            return items
        return [replace(first, id=id, combination=False), *[None] * (len(items) - 1)]

    def _message(self, error: BrimfulError, row: Row, own: Collection[str], duplicate: bool = False) -> str:
        """``own``: the fields that the line itself sets."""
        message = str(error)
        if row.table and duplicate and self._options.names.id is None:
            return message + " (or --column id, if it is no id here)"
        if (name := message.partition(":")[0]) in own and name not in _PROMPTS:
            return message + f" (or --column {name}, if it is not meant to be sent)"
        return message

    def _note_sent(self, names: Set[str], file: str) -> None:
        """Tell once a file and column that it is sent. Most tables were not made for requests."""
        noted = self._noted.setdefault(file, set())
        if new := names - noted:  # a row leaves out what its cells do not fill
            noted |= new
            what = "sets a field" if len(new) == 1 else "set fields"
            self._notes.append(
                f"{file}: {listed(sorted(new))} {what} of the requests; --column NAME carries it through instead"
            )


def _duplicate(id: str, before: str, *, default: bool) -> str:
    if default:
        return f"has no id, and its default id is its number, but {before} states the id {id!r}; give each line an id"
    return f"the id {id!r} is already used by {before}; give each line its own id, or none"
