"""How deep lists and objects are within each other; apart, since requests are checked below the room of JSON."""

from __future__ import annotations

from typing import Any

MOST_LEVELS = 400
"""Of a field. What is written around it has a few more, and the encoder of JSON fails at some 900."""
_CONTAINERS = (dict, list, tuple)


def too_deep(value: Any, most: int = MOST_LEVELS) -> bool:
    """Whether there are more than ``most`` levels, as there are where an object holds itself. Takes no stack."""
    level = {id(value): value} if isinstance(value, _CONTAINERS) else {}
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
