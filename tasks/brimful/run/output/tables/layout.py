"""The columns of a table of rollouts: the record's fields, and between them those of the input, of sweeps and hooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from brimful.runtime.json_bytes import encode

MOST_COLUMNS = 1000
"""Columns of one group, such as the input's. A group with more of them is one column of JSON."""
_EXACT = 1 << 53  # up to it, a float holds every whole number
_INT64 = range(-(1 << 63), 1 << 63)


class Kind(StrEnum):
    """What the values of a column are, beside null."""

    NULL = "null"
    BOOL = "bool"
    INT = "int"
    LONG = "long"
    """Whole numbers of 64 bits, some of which no float holds exactly."""
    FLOAT = "float"
    TEXT = "text"
    JSON = "json"
    """Lists and objects, as JSON."""
    MIXED = "mixed"
    """Text as it is, and all else as JSON."""

    @classmethod
    def of(cls, value: Any) -> Kind:
        if value is None:
            return cls.NULL
        if isinstance(value, bool):
            return cls.BOOL
        if isinstance(value, int):
            return cls.INT if abs(value) <= _EXACT else cls.LONG if value in _INT64 else cls.MIXED
        if isinstance(value, float):
            return cls.FLOAT
        return cls.TEXT if isinstance(value, str) else cls.JSON

    def joined(self, other: Kind) -> Kind:
        """Of a column with values of both kinds."""
        if self is other or other is Kind.NULL:
            return self
        if self is Kind.NULL:
            return other
        if {self, other} == {Kind.INT, Kind.LONG}:
            return Kind.LONG
        return Kind.FLOAT if {self, other} == {Kind.INT, Kind.FLOAT} else Kind.MIXED


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table, and where a record has its value."""

    name: str
    kind: Kind
    field: str
    inner: str | None = None
    """Of the object in ``field``; None: the field itself."""

    def value(self, record: Mapping[str, Any]) -> Any:
        """As its kind says; None for null or nothing. Lone surrogates become U+FFFD."""
        value = record.get(self.field)
        if self.inner is not None:
            value = value.get(self.inner) if isinstance(value, Mapping) else None
        if value is None or self.kind in _NUMBERS:
            return value if isinstance(value, int | float) else None  # a provider's usage may be anything
        return clean(value) if isinstance(value, str) and self.kind is not Kind.JSON else encode(value).decode()


_NUMBERS = (Kind.NULL, Kind.BOOL, Kind.INT, Kind.LONG, Kind.FLOAT)


def clean(text: str) -> str:
    """Without lone surrogates, which UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_INT, _FLOAT, _TEXT, _JSON = Kind.INT, Kind.FLOAT, Kind.TEXT, Kind.JSON
_FIRST = {"line": _INT, "prompt_index": _INT, "choice_index": _INT}
_LAST = {
    "text": _TEXT, "finish_reason": _TEXT, "model": _TEXT, "asked_model": _TEXT, "attempts": _INT,
    "request_id": _TEXT, "packed": _INT, "started_at": _FLOAT, "ended_at": _FLOAT, "waited_s": _FLOAT,
    "provider_s": _FLOAT, "retrying_s": _FLOAT, "message": _JSON, "logprobs": _JSON,
}  # fmt: skip
_USAGE = ("prompt_tokens", "completion_tokens")
_GROUPS = ("input", "sweep", "hook")
"""Fields of a record that are objects of columns. The input's keep their names where they can."""
_LEFT_OUT = frozenset({"id", "of", "usage", "rate_limited", *_FIRST, *_LAST, *_GROUPS})


def layout(records: Iterable[Mapping[str, Any]]) -> list[Column]:
    """The columns of a table of these records, in order. Reads them all once."""
    id_kind = Kind.NULL
    groups: dict[str, dict[str, Kind]] = {name: {} for name in _GROUPS}
    further: dict[str, Kind] = {}
    for record in records:
        id_kind = id_kind.joined(Kind.of(record.get("id")))
        for name, found in groups.items():
            _note(found, record.get(name))
        if record.keys() - _LEFT_OUT:
            _note(further, {name: value for name, value in record.items() if name not in _LEFT_OUT})
    columns = [Column("id", id_kind if id_kind in (Kind.INT, Kind.LONG) else Kind.MIXED, "id")]
    columns += [Column(name, kind, name) for name, kind in _FIRST.items()]
    last = [Column(name, kind, name) for name, kind in _LAST.items()]
    last[5:5] = [Column(name, _INT, "usage", name) for name in _USAGE]
    last += [Column(name, kind, name) for name, kind in further.items()]
    taken = {column.name for column in (*columns, *last)}
    made = {name: list(_group(name, groups[name], taken)) for name in reversed(_GROUPS)}
    return [*columns, *(column for name in _GROUPS for column in made[name]), *last]


def _note(kinds: dict[str, Kind], values: Any) -> None:
    if not isinstance(values, Mapping) or len(kinds) > MOST_COLUMNS:
        return
    for name, value in values.items():
        kinds[name] = kinds.get(name, Kind.NULL).joined(Kind.of(value))


def _group(field: str, kinds: Mapping[str, Kind], taken: set[str]) -> Iterator[Column]:
    if len(kinds) > MOST_COLUMNS:
        yield Column(_free(field, field, taken), Kind.JSON, field)
        return
    for name, kind in kinds.items():
        wanted = clean(name) if field == "input" else f"{field}.{clean(name)}"
        yield Column(_free(wanted, field, taken), kind, field, name)


def _free(name: str, field: str, taken: set[str]) -> str:
    while name in taken:
        name = f"{field}.{name}"
    taken.add(name)
    return name
