"""The combinations of a run, and how its lines, ids and records show them.

Inside a run, each line and combination has a *place* of its own, which stands where a run without a sweep has the line:
place 1 is the first combination of line 1. Records name the input's line, and the combination beside it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from brimful.errors import InputError
from brimful.words.counted import counted

SWEEP, SWEEP_INDEX = "sweep", "sweep_index"
"""Fields of a record: the combination, and its number from 0. Absent without a sweep."""
_VALUE = 60  # characters of a value in an id


@dataclass(frozen=True)
class Sweep:
    """The combinations of a run. A run without a sweep has one, which is empty."""

    combinations: Sequence[Mapping[str, Any]] = ({},)
    """Fields of requests. Null: the field is left out."""

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """``model=a,temperature=0.7``; different ones for different combinations, the same in each run."""
        return tuple(label(combination) for combination in self.combinations)

    @cached_property
    def _swept(self) -> bool:
        return bool(self.combinations[0])

    def __bool__(self) -> bool:
        return self._swept

    def __len__(self) -> int:
        return len(self.combinations)

    @cached_property
    def fields(self) -> frozenset[str]:
        """The names of all fields that it sets."""
        return frozenset(name for combination in self.combinations for name in combination)

    @property
    def parameters(self) -> dict[str, Any]:
        """For the run's sidecar: the same for equal sweeps only, and readable where two of them differ."""
        if not self:
            return {}
        names = list(self.combinations[0])
        texts = [json.dumps(each, sort_keys=True) for each in self.combinations]
        values = {name: _distinct(each.get(name) for each in self.combinations) for name in names}
        every = [dict(zip(names, each, strict=True)) for each in product(*values.values())]
        if [json.dumps(each, sort_keys=True) for each in every] == texts:
            return {"sweep": names, **{f"sweep of {name}": listed for name, listed in values.items()}}
        digest = hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return {"sweep": f"{len(self):,} combinations of {', '.join(names)} (sha256 {digest})"}

    def place(self, line: int, index: int = 0) -> int:
        """Of a line (from 1) with a combination (from 0)."""
        return (line - 1) * len(self) + index + 1

    def line(self, place: int) -> int:
        return (place - 1) // len(self) + 1

    def index(self, place: int) -> int:
        return (place - 1) % len(self)

    def id(self, id: str | int | float, index: int) -> str | int | float:
        """``7#model=a,temperature=0.7``"""
        return f"{id}#{self.labels[index]}" if self else id

    def describe(self, place: int) -> dict[str, Any]:
        """The fields that a record has of its place."""
        if not self:
            return {"line": place}
        index = self.index(place)
        return {"line": self.line(place), SWEEP: dict(self.combinations[index]), SWEEP_INDEX: index}

    def place_of(self, record: Mapping[str, Any], where: str) -> int:
        """The inverse. Raises InputError for a record of another sweep, KeyError, TypeError and ValueError for none."""
        line, index = int(record["line"]), record.get(SWEEP_INDEX)
        if index is None:
            if self and "choice_index" in record:  # a line that makes no request has one record for all combinations
                raise InputError(f"{where}: was sampled without a sweep; name another output with -o, or use --fresh")
            return self.place(line)
        if not 0 <= index < len(self) or record.get(SWEEP) != self.combinations[index]:
            raise InputError(f"{where}: was sampled in another sweep; name another output with -o, or use --fresh")
        return self.place(line, index)


NO_SWEEP = Sweep()


def _distinct(values: Iterable[Any]) -> list[Any]:
    """In order, by what they are in JSON: 1 is not true."""
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def with_combination(fields: Mapping[str, Any], combination: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line's fields with those of a combination in place of its own."""
    if not combination:
        return fields
    both = {"max_tokens", "max_completion_tokens"}  # two names of one thing
    dropped = both if both & combination.keys() else ()
    return {**{name: value for name, value in fields.items() if name not in dropped}, **combination}


def combinations_in(parameters: Mapping[str, Any]) -> int:
    """The number of combinations in :attr:`Sweep.parameters`; 0 without a sweep."""
    swept = parameters.get(SWEEP)
    if isinstance(swept, list):
        return math.prod(len(parameters[f"sweep of {name}"]) for name in swept)
    return int(swept.split()[0].replace(",", "")) if swept else 0


def overridden_notes(lines: Mapping[str, int]) -> list[str]:
    """Messages about lines, by field, whose own values a sweep replaces."""
    return [
        f"{counted(count, 'line')} set {name}: the sweep's values are used in its place"
        for name, count in lines.items()
    ]


def label(combination: Mapping[str, Any]) -> str:
    """``model=a,temperature=0.7``"""
    return ",".join(f"{_escaped(name)}={_value(value)}" for name, value in combination.items())


def _value(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)  # 1.0 is 1
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    if isinstance(value, str | int | float | None) and len(text) <= _VALUE and text.isprintable():
        return _escaped(text)
    # A long text is named by its digest, as 12 hexadecimal digits.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _escaped(text: str) -> str:
    return "".join(char if char not in "#,=%" else f"%{ord(char):02X}" for char in text)
