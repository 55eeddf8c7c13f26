"""HTTP responses of the mock gateway: JSON, error objects in OpenAI's form, and ``Retry-After``."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from aiohttp import web

from brimful.runtime import json_bytes

REQUEST_ID = web.RequestKey("request_id", str)
"""The id of a request, which its response bears as ``x-request-id``."""

_TYPES = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "gone_error",
    429: "rate_limit_error",
}


class Refusal(Exception):
    """Answer the request with ``status`` and an error object; ``retry_s`` is the time that ``Retry-After`` names."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_s = retry_s
        self.body = error_body(status, code, message, param)


def error_body(status: int, code: Any, message: str, param: str | None = None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "code": code, "param": param}}


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return raw_response(json_bytes.encode(body), status, headers)


def raw_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def retry_headers(form: str, seconds: float) -> dict[str, str]:
    """``Retry-After`` in the form of the option ``retry_after``; never an earlier time than ``seconds``."""
    match form:
        case "none":
            return {}
        case "fraction":
            return {"Retry-After": f"{seconds:.3f}"}
        case "ms":
            return {"retry-after-ms": str(math.ceil(seconds * 1000))}
        case "date":
            when = datetime.now(UTC) + timedelta(seconds=seconds)
            if when.microsecond:  # an HTTP date has whole seconds
                when = when.replace(microsecond=0) + timedelta(seconds=1)
            return {"Retry-After": format_datetime(when, usegmt=True)}
        case _:
            return {"Retry-After": str(math.ceil(seconds))}


def stated_headers(form: str, limit: int, left: int, reset_s: float) -> dict[str, str]:
    """A limit on requests a minute as OpenAI or Anthropic states it; all of it is left again after ``reset_s``."""
    if form == "anthropic":
        at = (datetime.now(UTC) + timedelta(seconds=reset_s)).isoformat().replace("+00:00", "Z")
        values = {"limit": str(limit), "remaining": str(left), "reset": at}
        return {f"anthropic-ratelimit-requests-{name}": value for name, value in values.items()}
    values = {"limit": str(limit), "remaining": str(left), "reset": f"{reset_s:g}s"}
    return {f"x-ratelimit-{name}-requests": value for name, value in values.items()}
