"""Error responses in OpenAI's form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from brimful.errors import BadRequest
from brimful.runtime import json_bytes

SHOULD_RETRY = "x-should-retry"
"""OpenAI's clients obey it, whatever the status: ``false`` keeps them from multiplying our own attempts."""
_AWAY_RETRY_S = 5
_OPTION = re.compile(r"[;,]? \(--[\w-]+\)")
"""Hints for the command line in the messages of :class:`BadRequest`."""
NO_RETRY = {SHOULD_RETRY: "false"}


class Refusal(Exception):
    """Ends a request with an error. Its text is for the caller, and holds neither secrets nor prompts."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        """``param``: the field that is wrong. ``body``: the provider's own error document, passed on as it came."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})
        self.body = json_bytes.encode(error_document(status, message, code, param)) if body is None else body

    def response(self) -> web.Response:
        return web.Response(
            body=self.body, status=self.status, headers=self.headers, content_type="application/json", charset="utf-8"
        )


def error_document(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def unavailable(message: str, code: str, retry_s: int) -> Refusal:
    """Nothing was sent: the same request may succeed in a while, or at another front door."""
    return Refusal(503, message, code, headers={"Retry-After": str(retry_s)})


def redis_away() -> Refusal:
    return unavailable("this server's Redis does not answer", "redis_away", _AWAY_RETRY_S)


def described(error: BadRequest) -> tuple[str, str | None]:
    """What is wrong, without hints for the command line, and the field, with whose name it begins."""
    message = str(error)
    field = message.partition(":")[0]
    return _OPTION.sub("", message), field if field.isidentifier() else None
