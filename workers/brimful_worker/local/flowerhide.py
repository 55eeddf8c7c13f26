"""No prompt and no text on any page of Flower, nor in an answer of its API.

``format_task`` covers only the pages, so arguments and results are taken out where Flower receives them: in the
events, and in the workers' answers to ``inspect``. Runs in Flower's own process.
"""

from __future__ import annotations

from typing import Any

HIDDEN = "(hidden)"
TEXTS = ("args", "kwargs", "result")


def hide(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` of a task or an event without its prompts and texts; what is empty stays so."""
    return {name: HIDDEN if name in TEXTS and value else value for name, value in fields.items()}


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
        if getattr(task, name, None):
            setattr(task, name, HIDDEN)
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
