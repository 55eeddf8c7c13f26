"""A caller's request: its body is checked and stays as it came; its headers say how it is sampled."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from brimful.errors import BadRequest
from brimful.names import Mode, Workload
from brimful.profile import Profile
from brimful.request import Request
from brimful.runtime import json_bytes
from brimful_worker.serve.front import FRONT
from brimful_worker.serve.refusals import Refusal, described

REQUEST_ID = web.RequestKey("request_id", str)
"""Our id of a request: unique, whatever its caller says."""
SHOWN_ID = web.RequestKey("shown_id", str)
"""The id in the response's ``x-request-id`` and in the log: the caller's own, if it sent a valid one, else ours."""

MOST_VALUES = 4_000_000
"""In a body, counted by its commas and brackets. Nothing else runs while it is decoded, for up to 0.1 µs a value."""
_LARGE = 2**20
"""Bytes of a body that is read in a thread."""
_MOST_KEY = 255
_CALLERS_ID = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}")


@dataclass(frozen=True, slots=True)
class CallerRequest:
    """One request of a caller, checked, and what its headers say."""

    request: Request
    """Its fields without nulls and ``stream``."""
    body: bytes
    """What is sent: as it came, or with the profile's fields and model where it has none."""
    stream: bool
    usage_wanted: bool
    """``stream_options.include_usage``"""
    deadline_s: float | None
    idempotency_key: str | None


async def read(http: web.Request, mode: Mode) -> CallerRequest:
    """Raises Refusal (400, 404, 413, 415)."""
    profile = http.app[FRONT].settings.profile
    if mode not in profile.modes:
        raise Refusal(404, f"the provider {profile.name} has no {mode.value} endpoint", "no_such_endpoint")
    document, raw = await read_object(http)
    if len(raw) < _LARGE:
        return _asked(http, mode, document, raw)
    return await asyncio.to_thread(_asked, http, mode, document, raw)


def _asked(http: web.Request, mode: Mode, document: dict[str, Any], raw: bytes) -> CallerRequest:
    """Raises Refusal."""
    settings = http.app[FRONT].settings
    profile = settings.profile
    stream = document.get("stream")
    if not isinstance(stream, bool | None):
        raise Refusal(400, "stream: must be true or false", param="stream")
    request = Request(
        fields={name: value for name, value in document.items() if value is not None and name != "stream"},
        id=http[REQUEST_ID],
        mode=mode,
        workload=_workload(http, settings.serve_workload),
    )
    if mode is Mode.CHAT and "messages" not in request.fields:
        raise Refusal(400, "messages: missing; a chat needs them", param="messages")
    try:
        # 0 asks for the logprobs of the prompt itself, which only some providers grant.
        lengths = {name: 1 for name in ("max_tokens", "max_completion_tokens") if request.fields.get(name) == 0}
        (replace(request, fields={**request.fields, **lengths}) if lengths else request).check(profile)
    except BadRequest as error:
        message, param = described(error)
        raise Refusal(400, message, param=param) from None
    _ = request.hold  # kept; of a large body it takes long, and this is a thread
    options = document.get("stream_options")
    return CallerRequest(
        request,
        _to_send(document, raw, profile),
        stream=bool(stream),
        usage_wanted=isinstance(options, dict) and bool(options.get("include_usage")),
        deadline_s=_deadline(http),
        idempotency_key=idempotency_key(http),
    )


async def read_object(http: web.Request) -> tuple[dict[str, Any], bytes]:
    """The body as a JSON object, and as it came. Raises Refusal."""
    # A web page of somebody else's can send any other type, and none, without asking first.
    if not (http.content_type == "application/json" or http.content_type.endswith("+json")):
        raise Refusal(415, "the body must be JSON: send Content-Type: application/json", "unsupported_media_type")
    try:
        raw = await http.read()
        document = json_bytes.decode(raw) if len(raw) < _LARGE else await asyncio.to_thread(_decode_large, raw)
    except web.RequestPayloadError:
        raise Refusal(400, "the body could not be read: its encoding is damaged", "invalid_body") from None
    except (ValueError, RecursionError):
        raise Refusal(400, f"the body is not JSON ({len(raw):,} bytes)", "invalid_json") from None
    if not isinstance(document, dict):
        raise Refusal(400, "the body must be a JSON object", "invalid_json")
    return document, raw


def _decode_large(raw: bytes) -> Any:
    """Raises Refusal (413), and what ``decode`` raises."""
    values = json_bytes.count_values(raw, MOST_VALUES)
    if values > MOST_VALUES:
        raise Refusal(
            413,
            f"the body has too many values: {values:,} commas and brackets, of at most {MOST_VALUES:,}; send it in "
            "several requests",
            "too_many_values",
        )
    return json_bytes.decode(raw)


def _to_send(document: dict[str, Any], raw: bytes, profile: Profile) -> bytes:
    more = {**profile.extra_body, **({"model": profile.model} if profile.model else {})}
    missing = {name: value for name, value in more.items() if document.get(name) is None}
    return json_bytes.encode({**document, **missing}) if missing else raw


def _workload(http: web.Request, default: Workload) -> Workload:
    named = http.headers.get("X-Acs-Workload")
    try:
        return default if named is None else Workload(named.strip().lower())
    except ValueError:
        raise Refusal(400, f"X-Acs-Workload: must be one of {', '.join(Workload)}", "invalid_header") from None


def _deadline(http: web.Request) -> float | None:
    named = http.headers.get("X-Brimful-Deadline")
    if named is None:
        return None
    try:
        seconds = float(named)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise Refusal(400, "X-Brimful-Deadline: must be a number of seconds above 0", "invalid_header")
    return seconds


def callers_id(http: web.Request) -> str | None:
    """The caller's ``X-Request-Id``, if it has 1 to 128 letters, digits and ``._:/@+=-``."""
    named = http.headers.get("X-Request-Id", "")
    return named if _CALLERS_ID.fullmatch(named) else None


def idempotency_key(http: web.Request) -> str | None:
    named = http.headers.get("Idempotency-Key")
    if named is not None and not 0 < len(named) <= _MOST_KEY:
        raise Refusal(400, f"Idempotency-Key: must have 1 to {_MOST_KEY} characters", "invalid_header")
    return named
