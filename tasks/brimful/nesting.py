"""Measures JSON values: the depth of their lists and objects, and the length of their strings.

Requests are checked with it on a lower level than that of ``runtime/json_bytes``.
"""

from __future__ import annotations

from typing import Any

MOST_LEVELS = 400
"""Of a field. What is written around it has a few more, and the encoder of JSON fails at some 900."""
_CONTAINERS = (dict, list, tuple)


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
