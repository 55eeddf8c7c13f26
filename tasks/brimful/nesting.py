"""Measures JSON values: the depth of their lists and objects, the length of their strings, and numbers out of range.

Requests are checked with it on a lower level than that of ``runtime/json_bytes``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MOST_LEVELS = 400
"""Of a field. What is written around it has a few more, and the encoder of JSON fails at some 900."""
_CONTAINERS = (dict, list, tuple)
MOST_WHOLE = (1 << 64) - 1
"""The largest whole number that every program between a caller and a provider keeps exactly."""
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
"""Of signed numbers of 64 bits."""
_USUAL = 1e18
"""No float below it needs a closer look. Floats and integers are compared with their own kind, which is fast."""


def unsendable(fields: Mapping[str, Any]) -> str | None:
    """Which field of a request no provider can get, and why; None if all can be sent.

    JSON has neither NaN nor infinities: they would arrive as null, or make the body no JSON. A prompt is not looked at.
    """
    for name, value in fields.items():
        kind = type(value)
        if kind is str or (kind is float and -_USUAL < value < _USUAL) or (kind is int and _LEAST <= value <= _MOST):
            continue
        if name != "prompt" and (fault := field_fault(name, value)):
            return f"{name}: {fault}"
    return None


def field_fault(name: str, value: Any) -> str | None:
    """Why no provider can get this value; None if it can be sent."""
    if isinstance(value, _CONTAINERS):
        return _inner_fault(value)
    if name == "seed" and isinstance(value, (int, float)) and not _LEAST <= value <= _MOST:
        return "must be a whole number of 64 bits, from -2**63 to 2**63 - 1"
    return _number_fault(value)


def _inner_fault(value: Any) -> str | None:
    """Plain loops rather than comprehensions: a chat of a few messages takes half the time."""
    level = [value]
    for _ in range(MOST_LEVELS):
        inner: list[Any] = []
        for each in level:
            for child in each.values() if isinstance(each, dict) else each:
                kind = type(child)
                if kind is str:
                    continue
                if kind is dict or isinstance(child, _CONTAINERS):
                    inner.append(child)
                elif fault := _number_fault(child):
                    return fault
        if not inner:
            return None
        few = len(inner) < 64  # else each once, as in too_deep
        level = inner if few else list({id(child): child for child in inner}.values())
    return f"nests lists and objects more than {MOST_LEVELS} levels deep"


def _number_fault(value: Any) -> str | None:
    if isinstance(value, int):
        if not _LEAST <= value <= MOST_WHOLE:
            return "has a whole number of more than 64 bits; use a smaller one"
    elif isinstance(value, float) and not math.isfinite(value):
        what = "NaN" if math.isnan(value) else "infinity (any number above 1.8e308)"
        return f"{what} is not a JSON number; use a finite one, or leave the field out"
    return None


def too_deep(value: Any, most: int = MOST_LEVELS) -> bool:
    """Whether there are more than ``most`` levels, as there are where an object holds itself. Takes no stack."""
    if not isinstance(value, _CONTAINERS):
        return False
    level = {id(value): value}
    for _ in range(most):
        if not level:
            return False
        level = {  # each once: a list that holds itself twice would double it at each level
            id(child): child
            for each in level.values()
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, _CONTAINERS)
        }
    return bool(level)


def characters(value: Any) -> int:
    """In all strings of a value, without the names in objects. The value must not hold itself.

    Counted in Python rather than by one call in C, so that other threads run meanwhile.
    """
    if isinstance(value, str):
        return len(value)
    found, level = 0, [value]
    while level:
        found += sum([len(each) for each in level if isinstance(each, str)])
        level = [
            child
            for each in level
            if isinstance(each, _CONTAINERS)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return found
