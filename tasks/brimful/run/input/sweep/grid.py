"""Reads a sweep: lists in options (``--temperature 0,0.7,1``, ``--seed 1..8``), and a file with a grid."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brimful.errors import UsageError
from brimful.fields import KNOWN, likely
from brimful.nesting import field_fault
from brimful.run.input.sweep.sweep import NO_SWEEP, Sweep
from brimful.run.input.templates.messages import load_structure
from brimful.words.phrases import cut

MAX_COMBINATIONS = 1000
_EXPLICIT = "combinations"
_NEVER = {
    "prompt": "a line makes one prompt (--template)",
    "messages": "a line makes one prompt (--messages-template)",
    "id": "it is the line's",
    "mode": "one run uses one endpoint",
    "workload": "one run has one workload",
    "stream": "streaming is not supported",
}
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


class _Fields(BaseModel):
    """Values that are checked here; those of other fields are the provider's business."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: Annotated[str, Field(min_length=1)] | None = None
    system: str | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(allow_inf_nan=False)] | None = None
    stop: str | list[str] | None = None


def parse_models(text: str | None) -> list[str]:
    """``a,b``. Raises UsageError."""
    return list(_parts("--model", text))


def parse_numbers(option: str, text: str | None, kind: type[int] | type[float]) -> list[Any]:
    """``0,0.7,1``; of whole numbers also ``1..8``, both ends included. Empty for None. Raises UsageError."""
    found: list[Any] = []
    for part in _parts(option, text):
        if kind is int and (ends := _RANGE.fullmatch(part)):
            first, last = int(ends[1]), int(ends[2])
            if not 0 <= last - first < MAX_COMBINATIONS:
                raise UsageError(
                    f"{option}: {part} is not a range of 1 to {MAX_COMBINATIONS:,} numbers, such as 1..8 for 1 to 8"
                )
            found += range(first, last + 1)
        else:
            found.append(_number(option, part, kind))
    for value in found:
        if fault := field_fault(option.removeprefix("--").replace("-", "_"), value):
            raise UsageError(f"{option}: {fault}")
    return found


def make_sweep(lists: Mapping[str, list[Any]], single: Mapping[str, Any], file: str | None) -> Sweep:
    """Every combination of what the options list and the file holds.

    ``lists``: by field, of options with several values. ``single``: the other options' fields, which the file must not
    set too. Raises UsageError for a value that is wrong, one that is listed twice, and too many combinations.
    """
    factors: list[list[Mapping[str, Any]]] = [
        [{name: value} for value in values] for name, values in lists.items() if values
    ]
    if file is not None:
        label = f"--sweep {file}"
        in_file = list(_factors(load_structure(Path(file), label), label))
        for name in (name for factor in in_file for combination in factor for name in combination):
            if name in lists or name in single:
                raise UsageError(f"{label}: {name} is also given as an option; give it in one place")
        factors = in_file + factors
    if not factors:
        return NO_SWEEP
    if (count := math.prod(map(len, factors))) > MAX_COMBINATIONS:
        raise UsageError(f"{count:,} combinations of a sweep, at most {MAX_COMBINATIONS:,}; list fewer values")
    found = Sweep([{name: value for part in parts for name, value in part.items()} for parts in product(*factors)])
    if twice := [name for name, count in Counter(found.labels).items() if count > 1]:
        raise UsageError(f"the combination {twice[0]} is listed twice; list each value once")
    return found


def _parts(option: str, text: str | None) -> Iterator[str]:
    if text is None:
        return
    for part in text.split(","):
        if not part.strip():
            raise UsageError(f"{option}: {text!r} has an empty value; separate values with one comma")
        yield part.strip()


def _number(option: str, text: str, kind: type[int] | type[float]) -> Any:
    with contextlib.suppress(ValueError):
        return kind(text)
    what, example = ("a whole number", "1, 1,2 or 1..8") if kind is int else ("a number", "0.7 or 0,0.7,1")
    raise UsageError(f"{option}: {cut(text, 40)!r} is not {what}; write for instance {example}")


def _factors(grid: Any, label: str) -> Iterator[list[Mapping[str, Any]]]:
    """Lists of alternatives, of which every combination takes one each."""
    if not isinstance(grid, dict) or not grid:
        raise UsageError(f"{label}: must hold fields with lists of values, such as temperature: [0, 0.7]")
    for name, values in grid.items():
        if name != _EXPLICIT:
            listed = values if isinstance(values, list) else [values]
            if not listed:
                raise UsageError(f"{label}: {name}: has no values; list some, or leave it out")
            factor: list[Mapping[str, Any]] = [{name: value} for value in listed]
        elif isinstance(values, list) and values and all(isinstance(each, dict) and each for each in values):
            factor = values
            if len({frozenset(each) for each in values}) > 1:  # each has every field, so that they can be compared
                every = dict.fromkeys(field for each in values for field in each)
                factor = [{field: each.get(field) for field in every} for each in values]
            if twice := [field for field in factor[0] if field in grid]:
                raise UsageError(f"{label}: {twice[0]} is among the combinations and beside them; give it in one place")
        else:
            raise UsageError(f"{label}: {name}: must be a list of objects, such as {{model: a, temperature: 0}}")
        for place, each in enumerate(factor):
            _check(each, label, f"{name}[{place}]")
        yield factor


def _check(combination: Mapping[str, Any], label: str, place: str) -> None:
    for name in combination:
        if name in _NEVER:
            raise UsageError(f"{label}: {name} cannot be swept: {_NEVER[name]}")
        if name not in KNOWN and (meant := likely(name)):
            raise UsageError(f"{label}: {name} is no field of a request; did you mean {meant}?")
    for name, value in combination.items():
        if fault := field_fault(name, value):
            raise UsageError(f"{label}: {_where(place, name)}: {fault}")
    try:
        _Fields.model_validate(combination)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0])
        shown = json.dumps(combination[field], ensure_ascii=False)[:60]
        raise UsageError(
            f"{label}: {_where(place, field)}: {first['msg'].lower().replace('input should', 'must')}, not {shown}"
        ) from None


def _where(place: str, field: str) -> str:
    return place if place.startswith(f"{field}[") else f"{place}.{field}"
