"""The names of a table's columns, checked."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from brimful.errors import InputError
from brimful.words.phrases import cut, enumerated

_SHOWN = 12
_NAME_SHOWN = 40  # characters


def unnamed(number: int) -> str:
    """The name of a column without one. ``number``: from 1."""
    return f"column_{number}"


def listed(names: Sequence[str]) -> str:
    """``'id', 'question' and 'answer'``, of many columns the first ones."""
    shown = [repr(cut(name, _NAME_SHOWN)) for name in names[:_SHOWN]]
    if (rest := len(names) - len(shown)) > 0:
        shown.append(f"{rest:,} more")
    return enumerated(shown)


def no_column(name: str, names: Sequence[str]) -> str:
    """The message about a column that a row does not have."""
    close = get_close_matches(name, names, 1) or [each for each in names if each.lower() == name.lower()]
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return f"has no column {name!r}; its columns are {listed(names)}{meant}"


def check_columns(file: str, names: Sequence[str], wanted: Sequence[str], hint: str = "") -> None:
    """Raises InputError where a name occurs twice, or one that is wanted does not. ``hint`` ends the message."""
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InputError(f"{file}: has two columns named {twice!r}; rename one of them{hint}")
    for name in wanted:
        if name not in names:
            raise InputError(f"{file}: {no_column(name, names)}{hint}")
