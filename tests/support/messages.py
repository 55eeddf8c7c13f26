"""Queue items as a Celery client puts them into Redis, to be spoilt by tests."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

ABSENT = object()
"""A value that takes the entry out."""


def item(
    id: Any = None,
    *,
    queue: str = "celery",
    task: Any = "t.plain",
    call: Any = ((1, 2), {}, {}),
    raw_body: str | None = None,
    headers: dict[str, Any] | None = None,
    properties: dict[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """A good message, with changes. ``call`` is its body; ``raw_body`` is the body's JSON, before base64."""
    text = json.dumps(call) if raw_body is None else raw_body
    message = {
        "body": base64.b64encode(text.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": _changed({"lang": "py", "task": task, "id": id}, headers or {}),
        "properties": _changed(
            {
                "correlation_id": id,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": uuid.uuid4().hex,
            },
            properties or {},
        ),
    }
    return _changed(message, {name.replace("_", "-"): value for name, value in parts.items()})


def _changed(original: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (original | changes).items() if value is not ABSENT}
