"""A text with ``{name}`` for the column ``name``. Pure, and linear in the length of what it renders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from brimful.run.input.templates.values import MAX_TEXT, missing_column, text_of, too_long

_PLACEHOLDER = re.compile(r"\{ *([^\W\d][\w.\-]*(?: +[\w.\-]+)*) *\}")
_MARKED = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_WORD = re.compile(r"[^\W\d]\w*")
_QUOTED = re.compile(r"""(["'])(.*?)\1""", re.DOTALL)
_JINJA = ("{{", "{%", "{#")


def is_jinja(text: str) -> bool:
    return any(mark in text for mark in _JINJA)


def names_in(text: str) -> set[str]:
    """Columns that a template of either kind shows. Of a Jinja2 template, every word in its marks may be one."""
    if is_jinja(text):
        marked = " ".join(_MARKED.findall(text))
        return {*_WORD.findall(marked), *(quoted for _, quoted in _QUOTED.findall(marked))}
    names = _PLACEHOLDER.findall(text)
    return {*names, *(name.partition(".")[0] for name in names)}


class SimpleText:
    """A name may hold spaces and hyphens. Dots lead into objects and lists: ``{person.name}``, ``{choices.0}``."""

    def __init__(self, text: str, label: str) -> None:
        """``label`` names it in messages."""
        self._label = label
        parts = _PLACEHOLDER.split(text)
        self._texts, self.names = parts[::2], parts[1::2]

    def render(self, row: Mapping[str, Any]) -> str:
        """Raises InputError for a column that is missing or null, and for a text that is too long."""
        pieces = [self._texts[0]]
        size = len(pieces[0])
        for name, text in zip(self.names, self._texts[1:], strict=True):
            value = row[name] if name in row else _within(row, name.split("."))
            if value is None:
                raise missing_column(name, self._label, row)
            pieces += (text_of(value), text)
            size += len(pieces[-2]) + len(text)
            if size > MAX_TEXT:
                raise too_long(self._label)
        return "".join(pieces)


def _within(value: Any, path: list[str]) -> Any:
    """The value at ``path``; None where there is none."""
    for name in path:
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
