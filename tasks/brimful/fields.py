"""The fields of a request that brimful knows, by provider: the sets in ``profiles.toml`` (``[fields.NAME]``).

Others of a service's request are sent unchanged and pointed out, since they may be misspelt.
"""

from __future__ import annotations

import sys
import tomllib
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
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


OURS = frozenset({"id", "mode", "workload", "system"})
"""Fields of a request that brimful reads itself."""
KNOWN = _PROMPT.union(OURS, *(one.completion | one.chat for one in field_sets().values()))
"""Those, and the fields of every provider's completions and chat completions."""
_ARGUMENTS = frozenset({"idempotency_key", "request"})  # of the task brimful.sample, beside the fields
_CUTOFF = 0.8
_HINTS = {"timeout": "only Fleet.sample and AsyncFleet.sample take a timeout"}
_LIBRARIES = {"asyncio", "brimful", "celery", "concurrent", "contextlib", "functools", "kombu"}


class UnknownFieldWarning(UserWarning):
    """A field of a request is unknown to brimful. It is sent unchanged; a filter for this category silences it."""


def likely(name: str, known: Iterable[str] = KNOWN) -> str | None:
    """The known field that ``name`` probably misspells."""
    close = get_close_matches(name.lower().replace("-", "_"), known, 1, _CUTOFF)
    return close[0] if close else None


def unknown_field(name: str) -> str:
    """The message about an unknown field."""
    text = f"field {name!r} is unknown to brimful and sent unchanged"
    if meant := _HINTS.get(name):
        return f"{text}; {meant}"
    return f"{text}; did you mean {meant}?" if (meant := likely(name)) else text


def warn_of_unknown(names: Iterable[str]) -> None:
    """Warn of each unknown field, at the line of the service that names it."""
    unknown = set(names) - KNOWN - _ARGUMENTS
    if not unknown:
        return
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    for name in sorted(unknown):
        warnings.warn(unknown_field(name), UnknownFieldWarning, stacklevel=level)
