"""Removes prompts and texts from Flower's pages and from its API. Runs in Flower's own process.

``format_task`` covers only the pages, so arguments and results are also replaced where Flower receives them: in events
and in the workers' answers to ``inspect``. Flower has no hook for either: :func:`install` patches the private
``flower.events.EventsState.event`` and ``flower.inspector.Inspector._on_update``, as read in Flower 2.2.0.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(hidden)"
_FIELDS = ("args", "kwargs", "result")
_REDACTED = re.compile(
    r"""\(<1\ request,\ \d+\ prompts?>,\)
    | \([\w.@:-]{0,64},\ [\w.@:-]{0,64},\ <\d+\ requests?>\)
    | \{('\w+':\ -?[\d.e+-]+(,\ )?)*\}
    | <completion,\ \d+\ choices>
    | \(\) | \[\] | None""",
    re.VERBOSE,
)
"""The descriptions of :mod:`brimful.runtime.redaction`: how much was asked, not what. Other texts may hold a prompt."""


def hide(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` of a task or an event without prompts and texts."""
    return {name: hidden(value) if name in _FIELDS else value for name, value in fields.items()}


def hidden(value: Any) -> Any:
    """``value`` if it is empty or a redacted description; else HIDDEN."""
    return value if not value or _REDACTED.fullmatch(str(value)) else HIDDEN


def hide_request(entry: Any) -> Any:
    """One entry of ``inspect active``, ``reserved`` or ``scheduled``; the last wraps the task in ``request``."""
    if not isinstance(entry, dict):
        return entry
    if isinstance(entry.get("request"), dict):
        return {**entry, "request": hide(entry["request"])}
    return hide(entry)


def format_task(task: Any) -> Any:
    """Flower's own hook: what its pages show of a task."""
    for name in _FIELDS:
        setattr(task, name, hidden(getattr(task, name, None)))
    return task


def install() -> None:
    """Patch this process's Flower. Idempotent."""
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
