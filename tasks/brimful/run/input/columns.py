"""Which fields of an input line are sent, and which are its columns: carried through to the output and never sent.

Sent are the fields that the profile lists for the line's endpoint, those of its ``extra_body``, and those that the
command names (``--pass``, ``--param``). An OpenAI Batch line's ``body`` is sent as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from brimful.errors import InputError
from brimful.fields import OURS
from brimful.names import Mode
from brimful.profile import Profile
from brimful.run.input.formats import Parsed

_EXTRA_BODY = "extra_body"


class Split(NamedTuple):
    """A line's fields, each in one of the two."""

    sent: dict[str, Any]
    """Of the request; those that are null are left out."""
    columns: dict[str, Any]
    """In the line's order."""


class FieldRule:
    """Divides the fields of a line."""

    def __init__(self, profile: Profile, mode: Mode | None, named: Iterable[str]) -> None:
        """``mode``: of lines that state none; None: by what they hold. ``named``: fields that are sent in any case."""
        self._profile = profile
        self._mode = mode
        self._named = frozenset(named)

    def split(self, line: Parsed) -> Split:
        """Raises InputError for an ``extra_body`` that is no object."""
        if line.body is not None:
            return Split({name: value for name, value in line.body.items() if value is not None}, line.fields)
        listed = self._profile.takes(self._mode_of(line.fields))
        sent: dict[str, Any] = {}
        columns: dict[str, Any] = {}
        for name, value in line.fields.items():
            if name not in listed and name not in OURS and name not in self._named and name != _EXTRA_BODY:
                columns[name] = value
            elif value is not None and name != _EXTRA_BODY:
                sent[name] = value
        extra = line.fields.get(_EXTRA_BODY)
        if extra is not None and not isinstance(extra, dict):
            raise InputError(f"{_EXTRA_BODY}: must be an object with further fields of the request")
        return Split({**sent, **(extra or {})}, columns)

    def _mode_of(self, fields: Mapping[str, Any]) -> Mode:
        stated = fields.get("mode")
        if stated in tuple(Mode):
            return Mode(stated)
        if self._mode is not None:
            return self._mode
        return Mode.CHAT if fields.get("messages") is not None else self._profile.modes[0]
