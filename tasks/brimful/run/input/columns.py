"""Which fields of an input line are sent, and which are its columns: carried through to the output, never sent.

Sent are the fields that the profile lists for the line's endpoint, those of its ``extra_body``, and those that the
command names (``--pass``, ``--param``), unless ``--column`` names them. An OpenAI Batch line's ``body`` is sent as it
stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from brimful.errors import InputError, UsageError
from brimful.fields import OURS
from brimful.names import Mode
from brimful.packing.units import Unit
from brimful.profile import Profile
from brimful.run.input.formats import Parsed

_EXTRA_BODY = "extra_body"
_MODES = frozenset(mode.value for mode in Mode)
_PROMPT = frozenset({"prompt", "messages"})


class Split(NamedTuple):
    """A line's fields, each in one of the two."""

    sent: dict[str, Any]
    """Of the request; those that are null are left out."""
    columns: dict[str, Any]
    """In the line's order."""


class FieldRule:
    """Divides the fields of a line."""

    def __init__(self, profile: Profile, mode: Mode | None, named: Iterable[str], columns: Iterable[str] = ()) -> None:
        """``mode``: of lines that state none; None: by what they hold. ``named``: fields that are sent in any case;
        ``columns``: that are not sent in any case."""
        self._profile = profile
        self._mode = mode
        self._columns = frozenset(columns)
        self._sent = {each: OURS.union(profile.takes(each), named, (_EXTRA_BODY,)) - self._columns for each in Mode}

    def split(self, line: Parsed) -> Split:
        """Raises InputError for an ``extra_body`` that is no object."""
        if line.body is not None:
            return Split({name: value for name, value in line.body.items() if value is not None}, line.fields)
        listed = self._sent[self._mode_of(line.fields)]
        sent = {name: value for name, value in line.fields.items() if value is not None and name in listed}
        if _EXTRA_BODY in sent:
            extra = sent.pop(_EXTRA_BODY)
            if not isinstance(extra, dict):
                raise InputError(f"{_EXTRA_BODY}: must be an object with further fields of the request")
            sent |= extra
        columns = {name: value for name, value in line.fields.items() if name not in listed}
        if line.columns:
            columns = {name: value for name, value in line.line.items() if name in columns or name in line.columns}
        return Split(sent, columns)

    def _mode_of(self, fields: Mapping[str, Any]) -> Mode:
        stated = fields.get("mode") if "mode" not in self._columns else None
        if isinstance(stated, str) and stated in _MODES:
            return Mode(stated)
        if self._mode is not None:
            return self._mode
        return Mode.CHAT if fields.get("messages") is not None else self._profile.modes[0]


@dataclass(frozen=True, slots=True)
class Keep:
    """``--keep``: which fields of a line its records repeat. Default: all columns."""

    columns: bool = True
    """All columns."""
    names: tuple[str, ...] = ()
    """Further fields, sent ones too. ``prompt`` is the prompt as it was sent."""

    @classmethod
    def parse(cls, text: str) -> Keep:
        """``all``, ``none``, or names with commas between them, of which one may be ``all``. Raises UsageError."""
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        if "" in names:
            raise UsageError(f"--keep: {text!r} is not all, none or column names with commas between them")
        if "none" in names:
            if len(names) > 1:
                raise UsageError(f"--keep: {text!r}: none stands alone")
            return cls(columns=False)
        return cls("all" in names, tuple(name for name in names if name != "all"))

    def __str__(self) -> str:
        """As it is parsed."""
        return ",".join([*(["all"] if self.columns else []), *self.names]) or "none"

    def of_columns(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """``{"input": {…}}`` with the kept columns; ``{}`` if no column is kept."""
        found = columns if self.columns else {name: value for name, value in columns.items() if name in self.names}
        return {"input": found} if found else {}

    def of_line(self, line: Unit, prompt_index: int) -> dict[str, Any]:
        """Fields of a rollout's record: ``input``, and ``prompt`` or ``messages`` if the prompt is kept."""
        record = self.of_columns(line.columns)
        if not self.names:
            return record
        request = line.request
        if sent := [name for name in self.names if name in request.fields and name not in _PROMPT]:
            record["input"] = {**record.get("input", {}), **{name: request.fields[name] for name in sent}}
        if not _PROMPT.isdisjoint(self.names):
            record["messages" if "messages" in request.fields else "prompt"] = request.prompts[prompt_index]
        return record


KEEP_ALL = Keep()
