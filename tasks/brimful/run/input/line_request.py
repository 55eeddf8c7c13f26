"""The request of a line: its fields, those of the command, what templates make of it, and a sweep's combination."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.errors import BadRequest
from brimful.names import Mode, Workload
from brimful.packing.packing import SCALARS
from brimful.packing.request_size import check_line, line_profile
from brimful.profile import Profile
from brimful.request import Request
from brimful.run.input.columns import Split
from brimful.run.input.formats import Parsed
from brimful.run.input.sweep.sweep import with_combination
from brimful.run.input.templates.template import Renderer

MAX_ROLLOUTS = 100_000
"""Of one line: the done index keeps each rollout of a line until all are there."""
_MADE, _SHORT = 256, 256
"""How many checked requests are remembered, and the most characters of their text fields other than the prompt."""


class LineRequests:
    """Makes requests of lines, by the options of the command."""

    def __init__(
        self, profile: Profile, defaults: Mapping[str, Any], mode: Mode | None, workload: Workload, system: str | None
    ) -> None:
        """``defaults``: fields that a line's own override."""
        self._profile = profile
        # A line too large for one request is split later; only a single rollout must fit.
        self._unbounded = line_profile(profile)
        self._defaults = defaults
        self._mode = mode
        self._workload = workload
        self._system = system
        self._made: dict[tuple[tuple[str, type, Any], ...], Request] = {}
        """Checked requests by the fields of their lines other than the prompt: most lines differ in the prompt only."""

    def make(self, sent: Mapping[str, Any], combination: Mapping[str, Any], id: str) -> Request:
        """Of a line's fields, with those of the sweep's combination in their place. Raises BadRequest."""
        key = None if combination else _besides_prompt(sent)
        if key is None:
            return self._checked(sent, combination, id)
        if (like := self._made.get(key)) is not None:
            return _with_prompt(like, sent["prompt"], id)
        if len(self._made) >= _MADE:
            self._made.clear()
        request = self._checked(sent, combination, id)
        self._made[key] = _with_prompt(request, "", "")
        return request

    def _checked(self, sent: Mapping[str, Any], combination: Mapping[str, Any], id: str) -> Request:
        if combination.get("system") is not None and has_system(sent):
            raise BadRequest("system: the line's messages have a system prompt, and the sweep sets one too")
        fields = with_combination(sent, combination)
        merged = {**self._defaults, **fields, "id": id}
        # The two names mean the same: a line's own one overrides the command's other one.
        if "max_completion_tokens" in fields and "max_tokens" not in fields:
            merged.pop("max_tokens", None)
        if "max_tokens" in fields and "max_completion_tokens" not in fields:
            merged.pop("max_completion_tokens", None)
        if self._mode is not None:
            merged.setdefault("mode", self._mode.value)
        merged.setdefault("workload", self._workload.value)
        if self._system is not None and not has_system(merged):
            merged.setdefault("system", self._system)
        request = Request.parse(merged, self._unbounded)
        if "messages" in request.fields and request.mode is Mode.COMPLETION:
            raise BadRequest("messages: need the chat endpoint; leave the mode out, or use --chat")
        if request.choices > MAX_ROLLOUTS:
            raise BadRequest(
                f"n: {request.choices:,} rollouts in one line, at most {MAX_ROLLOUTS:,}; spread them over lines"
            )
        check_line(request, self._profile)
        return request


def _besides_prompt(sent: Mapping[str, Any]) -> tuple[tuple[str, type, Any], ...] | None:
    """Names, types and values of the line's other fields; None if the prompt is no text, or if one of them is a list,
    an object, null or a long text. The types are there since 1, 1.0 and true are equal in Python."""
    if type(sent.get("prompt")) is not str:
        return None
    others = [(name, type(value), value) for name, value in sent.items() if name != "prompt"]
    for _, kind, value in others:
        if kind not in SCALARS or (kind is str and len(value) > _SHORT):
            return None
    return tuple(others)


def _with_prompt(request: Request, prompt: str, id: str) -> Request:
    """The request with another text as its prompt. It is not checked, as no check depends on the text."""
    fields = dict(request.fields)
    if "messages" in fields:
        fields["messages"] = [*fields["messages"][:-1], {"role": "user", "content": prompt}]
    else:
        fields["prompt"] = prompt
    return Request(fields, id, request.mode, request.workload)


def render_line(renderer: Renderer, line: Parsed, split: Split, folder: Path | None) -> Split:
    """With what the templates make of the line in place of its own prompt, which becomes a column.

    Raises InputError.
    """
    own = line.line or line.fields
    made = renderer.fields(own if line.line or line.id is None else {**own, "id": line.id}, folder)
    if "system" in made and has_system({**split.sent, **made}):
        del made["system"]
    replaced = ({"prompt", "messages"} if made.keys() - {"system"} else set()) | made.keys()
    sent = {name: value for name, value in split.sent.items() if name not in replaced}
    columns = {name: value for name, value in own.items() if name in split.columns or name in replaced}
    return Split({**sent, **made}, columns)


def has_system(fields: Mapping[str, Any]) -> bool:
    """Whether its messages have a system prompt."""
    messages = fields.get("messages")
    return isinstance(messages, list) and any(
        isinstance(message, dict) and message.get("role") in ("system", "developer") for message in messages
    )
