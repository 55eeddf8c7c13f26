"""How messages show a value that they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def shown(value: Any) -> str:
    """A wrong value for a message: ``null``, ``true``, ``7``, ``'guess'``, ``a list``, ``an object``."""
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, Mapping):
        return "an object"
    literals = {None: "null", True: "true", False: "false"}
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to write one of thousands of digits
        return "a whole number of more than 64 bits"
    return literals[value] if value is None or isinstance(value, bool) else repr(value)


def kind_of(value: Any) -> str:
    """As :func:`shown`, for a field whose text may be a prompt, which no message repeats."""
    return "a string" if isinstance(value, str) else shown(value)
