"""OpenAI's pages of a list: ``limit`` and ``after``, the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from aiohttp import web

from brimful.runtime import json_bytes
from brimful_worker.serve.refusals import Refusal


class Listed(Protocol):
    @property
    def id(self) -> str: ...

    def document(self) -> dict[str, Any]: ...


def listing(http: web.Request, items: Sequence[Listed], *, usual: int, most: int) -> web.Response:
    """One page of ``items``, which come with the newest first. Raises Refusal."""
    named = http.query.get("limit", str(usual))
    if not named.isdecimal() or not 1 <= int(named[:9]) <= most:
        raise Refusal(400, f"limit: must be a whole number from 1 to {most:,}", param="limit")
    if (order := http.query.get("order", "desc")) not in ("asc", "desc"):
        raise Refusal(400, "order: must be asc or desc", param="order")
    if order == "asc":
        items = items[::-1]
    start = 0
    if (after := http.query.get("after")) is not None:
        start = 1 + next((place for place, item in enumerate(items) if item.id == after), -1)
        if not start:
            raise Refusal(400, "after: must be an id of this list", param="after")
    page = items[start : start + int(named)]
    return json_response(
        {
            "object": "list",
            "data": [item.document() for item in page],
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
            "has_more": start + len(page) < len(items),
        }
    )


def json_response(document: Any) -> web.Response:
    return web.Response(body=json_bytes.encode(document), content_type="application/json")
