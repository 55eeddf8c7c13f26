"""What is wrong with a setting, from an error of pydantic."""

from __future__ import annotations

from typing import Any

_EXPECTED = {"int": "is not a whole number", "float": "is not a number", "bool": "is neither true nor false"}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "more than"),
    "less_than": ("lt", "less than"),
}
_SHOWN = 40


def fault_text(fault: Any) -> str:
    """A message for an error of pydantic. It shows the value only of numbers and booleans: others may be secret."""
    name = variable("_".join(map(str, fault["loc"])))
    kind = str(fault["type"])
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{name}: must be {words} {fault['ctx'][bound]:g}"
    meant, _, rest = kind.partition("_")
    if meant in _EXPECTED and rest in ("parsing", "type", "from_float"):
        return f"{name}: {str(fault['input'])[:_SHOWN]!r} {_EXPECTED[meant]}"
    return f"{name}: {str(fault['msg']).removeprefix('Value error, ')}"


def variable(setting: str) -> str:
    """The environment variable of a field of Settings."""
    return f"BRIMFUL_{setting.upper()}"
