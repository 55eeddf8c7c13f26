"""No prompt and no text on any page of Flower, nor in an answer of its API.

``format_task`` covers only the pages, so arguments and results are taken out where Flower receives them: in the
events, and in the workers' answers to ``inspect``. Runs in Flower's own process.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(hidden)"
TEXTS = ("args", "kwargs", "result")
_DISCREET = re.compile(
    r"""\(<1\ request,\ \d+\ prompts?>,\)
    | \([\w.@:-]{0,64},\ [\w.@:-]{0,64},\ <\d+\ requests?>\)
    | \{('\w+':\ -?[\d.e+-]+(,\ )?)*\}
    | <completion,\ \d+\ choices>
    | \(\) | \[\] | None""",
    re.VERBOSE,
)
"""What :mod:`brimful.runtime.redaction` says of a task: how much was asked, not what. Anything else may hold a
prompt."""


def hide(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` of a task or an event without its prompts and texts."""
    return {name: hidden(value) if name in TEXTS else value for name, value in fields.items()}


def hidden(value: Any) -> Any:
    """``value`` if there is nothing in it, or nothing but numbers; else HIDDEN."""
    return value if not value or _DISCREET.fullmatch(str(value)) else HIDDEN


def hide_request(entry: Any) -> Any:
    """One entry of ``inspect active``, ``reserved`` or ``scheduled``; the last wraps the task in ``request``."""
    if not isinstance(entry, dict):
        return entry
    if isinstance(entry.get("request"), dict):
        return {**entry, "request": hide(entry["request"])}
    return hide(entry)


def format_task(task: Any) -> Any:
    """What Flower's pages show of a task."""
    for name in TEXTS:
        setattr(task, name, hidden(getattr(task, name, None)))
    return task


def install() -> None:
    """Put it into this process's Flower; once is enough."""
    from flower.events import EventsState
    from flower.inspector import Inspector

    if hasattr(EventsState, "brimful_hides"):
        return
    receive, update = EventsState.event, Inspector._on_update

    def event(self: Any, event: dict[str, Any]) -> Any:
        return receive(self, hide(event))

    def on_update(self: Any, workername: str, method: str, response: Any) -> Any:
        if method in ("active", "reserved", "scheduled") and isinstance(response, list):
            response = [hide_request(entry) for entry in response]
        return update(self, workername, method, response)

    EventsState.event, EventsState.brimful_hides, Inspector._on_update = event, True, on_update
