"""An input as requests, one after another: streamed, each line checked, bad ones told apart from the rest."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from brimful.errors import BadRequest, BrimfulError, InputError, UsageError
from brimful.names import Mode, Workload
from brimful.packing.request_size import check_line, line_profile
from brimful.packing.units import Unit
from brimful.profile import Profile
from brimful.request import Request
from brimful.run.input.formats import InputFormat, Parser, detect, parser
from brimful.run.input.ids import Ids
from brimful.run.input.sources import MAX_LINE, RawLine, Source, raw_lines

MAX_ROLLOUTS = 100_000
"""Of one line: what is known of each is kept until all of them are there."""


@dataclass(frozen=True)
class ReadOptions:
    """How lines become requests; ``defaults`` are the command's fields, which a line's own beat."""

    sources: tuple[Source, ...]
    form: InputFormat = InputFormat.AUTO
    defaults: dict[str, Any] = field(default_factory=dict)
    mode: Mode | None = None
    system: str | None = None
    workload: Workload = Workload.BATCH
    limit: int | None = None
    """Requests at most."""

    @property
    def repeatable(self) -> bool:
        """All of it can be read twice: it is looked through before anything is sampled."""
        return all(source.regular for source in self.sources)

    def to_blame(self, message: str) -> bool:
        """Whether a bad line's fault (``FIELD: …``) is one of these settings, not of the line alone."""
        name = message.partition(":")[0]
        if name == "model":
            return "model" in self.defaults or "--model" in message
        return name in self.defaults or (name == "system" and self.system is not None)

    def check(self) -> None:
        """Raises UsageError for an input that cannot be one."""
        if not self.sources:
            raise UsageError("no input: name a file, or - for standard input")
        seen = set()
        for source in self.sources:
            if source.path in seen:
                raise UsageError(f"{source.name}: is named twice; its lines would have the same ids")
            seen.add(source.path)
            source.check(forced=self.form is not InputFormat.AUTO)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that no request can be made of."""

    line: int
    id: str
    where: str
    """``FILE:LINE``"""
    message: str
    """The fault and its remedy."""
    data: bytes

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class Entry(NamedTuple):
    """One line of the input."""

    line: int
    digest: int
    """32 bits of the line's bytes, never 0."""
    item: Unit | BadLine | None
    """None: a blank line, or one that was passed over."""


class Duplicate(InputError):
    """Two lines have one id: nobody could tell their rollouts apart."""


class Reader:
    """Iterate over :meth:`entries`. ``ids`` off: the ids were looked at before."""

    def __init__(self, options: ReadOptions, profile: Profile, *, ids: bool = True) -> None:
        self._options = options
        self._profile = profile
        # A request that is too large for one call is split later; only a single rollout must fit.
        self._unbounded = line_profile(profile)
        self._ids = Ids() if ids else None
        self.at_end = False
        """Whether the input was read to its end, and not to the limit."""

    def entries(self, passed_over: Callable[[int], bool] | None = None) -> Iterator[Entry]:
        """Every line; those that ``passed_over`` (a line's number) says yes to are not parsed.

        Raises InputError where a whole file cannot be used.
        """
        source: Source | None = None
        parse: Parser | None = None
        taken, limit = 0, self._options.limit
        for raw in raw_lines(list(self._options.sources)):
            if limit is not None and taken >= limit:
                return
            if raw.source is not source:
                source, parse = raw.source, None
            digest = zlib.crc32(raw.data) or 1
            if not raw.data or raw.data.isspace():
                yield Entry(raw.line, digest, None)
                continue
            if parse is None:
                parse = self._parser(raw)
            taken += 1
            if passed_over is not None and passed_over(raw.line):
                yield Entry(raw.line, digest, None)
                continue
            yield Entry(raw.line, digest, self._item(raw, parse))
        self.at_end = True

    def _parser(self, raw: RawLine) -> Parser:
        form = self._options.form
        try:
            return parser(detect(raw.source, raw.data) if form is InputFormat.AUTO else form)
        except InputError as error:
            raise InputError(f"{raw.source.name}:{raw.place}: {error}") from None

    def _item(self, raw: RawLine, parse: Parser) -> Unit | BadLine:
        where = f"{raw.source.name}:{raw.place}"
        id = str(raw.line)
        try:
            if raw.overlong:
                raise InputError(f"is longer than {MAX_LINE >> 20} MiB; put each request on a line of its own")
            fields = parse(raw.data)
            stated = fields.get("id")
            id = id if stated is None else stated
            if self._ids is not None:
                earlier = self._ids.add_default(raw.line) if stated is None else self._ids.add(id, raw.line)
                if earlier is not None:
                    raise Duplicate(_duplicate(raw, id, earlier, stated is None))
            return Unit(raw.line, id, self._request(fields, id))
        except BrimfulError as error:
            bad = BadLine(raw.line, id, where, str(error), raw.data)
            if isinstance(error, Duplicate):
                return _DuplicateLine(bad.line, bad.id, bad.where, bad.message, bad.data)
            return bad

    def _request(self, fields: dict[str, object], id: str) -> Request:
        options = self._options
        merged = {**options.defaults, **fields, "id": id}
        if "max_completion_tokens" in fields and "max_tokens" not in fields:
            merged.pop("max_tokens", None)
        if "max_tokens" in fields and "max_completion_tokens" not in fields:
            merged.pop("max_completion_tokens", None)
        if options.mode is not None:
            merged.setdefault("mode", options.mode.value)
        merged.setdefault("workload", options.workload.value)
        if options.system is not None and not _has_system(merged):
            merged.setdefault("system", options.system)
        request = Request.parse(merged, self._unbounded)
        if "messages" in request.fields and request.mode is Mode.COMPLETION:
            raise BadRequest("messages: go to the chat endpoint; leave the mode out, or say --chat")
        if request.choices > MAX_ROLLOUTS:
            raise BadRequest(
                f"n: {request.choices:,} rollouts in one line, at most {MAX_ROLLOUTS:,}; spread them over lines"
            )
        check_line(request, self._profile)
        return request


class _DuplicateLine(BadLine):
    __slots__ = ()


def is_duplicate(bad: BadLine) -> bool:
    """Whether the line is bad since its id was taken already."""
    return isinstance(bad, _DuplicateLine)


def _has_system(fields: dict[str, object]) -> bool:
    messages = fields.get("messages")
    return isinstance(messages, list) and any(
        isinstance(message, dict) and message.get("role") in ("system", "developer") for message in messages
    )


def _duplicate(raw: RawLine, id: str, earlier: int, default: bool) -> str:
    # Several files have one numbering; ``earlier`` is told in the same terms as this line's own number in it.
    before = f"line {earlier}" if raw.line == raw.place else f"line {earlier} of the whole input (this is {raw.line})"
    if default:
        return f"has no id, so that its number would be its id, but {before} states the id {id!r}; give each line one"
    return f"the id {id!r} is that of {before} too; give each line an id of its own, or none"
