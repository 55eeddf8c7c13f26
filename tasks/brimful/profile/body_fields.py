"""The fields of a request's body that providers take, in sets: ``[fields.NAME]`` of ``profiles.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

_PROMPT = frozenset({"prompt", "messages"})
"""Either is a prompt on any endpoint: what does not fit the endpoint is an error, not a column."""


class FieldSet(NamedTuple):
    completion: frozenset[str]
    """Of the completions endpoint, and of Jobs."""
    chat: frozenset[str]


@cache
def built_in_tables() -> dict[str, Any]:
    """``profiles.toml``: the profiles by name, and the sets under ``fields``. Not to be changed."""
    return tomllib.loads(resources.files("brimful").joinpath("profiles.toml").read_text("utf-8"))


@cache
def field_sets() -> dict[str, FieldSet]:
    """All sets by name."""
    sets = {}
    for name, table in built_in_tables()["fields"].items():
        both = frozenset(table.get("both", ()))
        sets[name] = FieldSet(both.union(table.get("completion", ())), both.union(table.get("chat", ())))
    return sets


@cache
def listed_fields(sets: tuple[str, ...], more: tuple[str, ...], chat: bool) -> frozenset[str]:
    """The fields in some sets for one endpoint, and ``more``; a prompt's two names always."""
    known = field_sets()
    return _PROMPT.union(more, *(known[name].chat if chat else known[name].completion for name in sets))


@cache
def all_fields() -> frozenset[str]:
    """The fields of every provider and endpoint."""
    return _PROMPT.union(*(one.completion | one.chat for one in field_sets().values()))
