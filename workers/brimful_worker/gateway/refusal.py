"""A refusal: an error object with its status, as OpenAI-style clients read it."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "gone_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class Refusal(Exception):
    """The request is answered with ``status`` and an error object."""

    def __init__(
        self, status: int, code: str | None, message: str, *, param: str | None = None, retry_s: float | None = None
    ) -> None:
        """``retry_s``: seconds that a ``Retry-After`` tells."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_s = retry_s

    def body(self) -> dict[str, Any]:
        return error_body(self.status, self.code, self.message, self.param)


def error_body(status: int, code: Any, message: str, param: str | None = None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "code": code, "param": param}}


def retry_headers(form: str, seconds: float) -> dict[str, str]:
    """``Retry-After`` in the form that the option ``retry_after`` names; never an earlier time than ``seconds``."""
    if form == "none":
        return {}
    if form == "fraction":
        return {"Retry-After": f"{seconds:.3f}"}
    if form == "ms":
        return {"retry-after-ms": str(math.ceil(seconds * 1000))}
    if form == "date":
        when = datetime.now(UTC) + timedelta(seconds=seconds)
        if when.microsecond:  # an HTTP date has whole seconds
            when = when.replace(microsecond=0) + timedelta(seconds=1)
        return {"Retry-After": format_datetime(when, usegmt=True)}
    return {"Retry-After": str(math.ceil(seconds))}
