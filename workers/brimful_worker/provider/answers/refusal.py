"""What an error object or an error status means. Pure tables; the provider's codes are matched, never its prose.

The order matters: a code says more than a status (a 429 ``insufficient_quota`` is no throttling), and a status more
than the prose around it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from brimful.outcome import Cause
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.provider.answers.retry_after import retry_after

_MESSAGE_CHARS = 300

_BUDGET = re.compile(
    r"^(?!.*(invalid|thinking|reasoning)).*budget|payment_required|billing|insufficient_(quota|tokens?|credits?|balance|funds|holds?)|out_of_(tokens|credits)"
    r"|credit_balance|^hold_|_hold_|no_credits|spend(ing)?_limit"
)
_QUOTA = re.compile(r"quota")
_FILTER = re.compile(r"content_?(filter|policy|moderat)|moderation|responsible_?ai|safety|flagged")
_KEY = re.compile(
    r"(invalid|incorrect|missing|expired|revoked|disabled|unknown)_api_?key|api_?key_(invalid|expired|revoked|disabled)"
    r"|authentication|unauthori[sz]ed|account_deactivated"
)
_THROTTLE = re.compile(r"rate_?limit|too_many_requests|queue_full|throttl|concurrency_limit|slow_down")
_STATUS_OF = (
    (re.compile(r"permission|forbidden"), 403),
    (re.compile(r"not_?found"), 404),
    (re.compile(r"invalid|bad_request|unsupported|too_(large|long)|context_length|validation|missing_"), 400),
    (re.compile(r"time_?out|timed_out"), 504),
    (re.compile(r"overload|unavailable|server_?error|internal|api_error|capacity|upstream|gateway"), 503),
)
_TRANSIENT_4XX = {408: Cause.TIMEOUT, 409: Cause.SERVER_ERROR, 421: Cause.CONNECTION, 425: Cause.SERVER_ERROR}


def error_of(document: Any) -> Mapping[str, Any] | None:
    """The error an answer carries, as an object; None where it carries none. ``"error": "text"`` counts."""
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if isinstance(error, dict) and error:
        return error
    if isinstance(error, str) and error.strip():
        return {"message": error}
    if error is True or (isinstance(error, list) and error):
        return {"message": str(document.get("message") or error)}
    if document.get("object") == "error" or (document.get("type") == "error" and "message" in document):
        return document
    return None


def refused(
    status: int,
    headers: Mapping[str, str],
    error: Mapping[str, Any] | None,
    *,
    text: str = "",
    now: float,
) -> Classification:
    """What a refusal means, from its HTTP status, its error object if it has one, else the text of its body.

    Under a status below 400 the error object's own status or code decides; where that says nothing, it is a transient
    BAD_ANSWER.
    """
    codes = _codes(error)
    told = _told(status, error, text)
    effective = status if status >= 400 else _status_of(error, codes)
    wait = retry_after(headers, now=now)

    def classify_answer(kind: Kind, cause: Cause, wait_s: float | None = None) -> Classification:
        return Classification(kind, cause=cause, message=told, status=status, retry_after_s=wait_s)

    if any(map(_BUDGET.search, codes)) or effective == 402:
        return classify_answer(Kind.BUDGET, Cause.BUDGET)
    if any(map(_QUOTA.search, codes)) and effective in (403, 429) and wait is None:
        return classify_answer(Kind.BUDGET, Cause.BUDGET)
    if effective < 500 and any(map(_FILTER.search, codes)):
        return classify_answer(Kind.FILTERED, Cause.CONTENT_FILTER)
    if effective == 429 or (effective < 500 and any(map(_THROTTLE.search, codes))):
        cause = Cause.QUEUE_FULL if "queue_full" in codes else Cause.RATE_LIMITED
        return classify_answer(Kind.THROTTLED, cause, wait)
    if effective in (401, 403) or (effective < 500 and any(map(_KEY.search, codes))):
        return classify_answer(Kind.KEY_REFUSED, Cause.KEY_REFUSED)
    if effective >= 500:
        return classify_answer(Kind.TRANSIENT, Cause.TIMEOUT if effective in (504, 524) else Cause.SERVER_ERROR, wait)
    if effective in _TRANSIENT_4XX:
        return classify_answer(Kind.TRANSIENT, _TRANSIENT_4XX[effective], wait)
    if effective >= 400:
        return classify_answer(Kind.PERMANENT, Cause.BAD_REQUEST)
    return classify_answer(Kind.TRANSIENT, Cause.BAD_ANSWER, wait)


def redirected(status: int, headers: Mapping[str, str]) -> Classification:
    """A redirect is not followed: it would carry prompts and the key to a host that nobody named."""
    host = urlsplit(headers.get("location", "")).netloc.rpartition("@")[2]
    return Classification(
        Kind.PERMANENT,
        cause=Cause.BAD_REQUEST,
        message=f"HTTP {status}: the provider redirects to {host or 'another path'}, which is not followed; "
        "set the base URL to the provider's own address",
        status=status,
    )


def _codes(error: Mapping[str, Any] | None) -> list[str]:
    """The error's code, type and the like, as lower_snake words, the most telling first."""
    if error is None:
        return []
    words = [error.get(name) for name in ("code", "error_code", "reason", "status", "type")]
    inner = error.get("innererror") or error.get("inner_error")
    if isinstance(inner, dict):
        words.append(inner.get("code"))
    return [re.sub(r"[\s\-.]+", "_", word.strip().lower()) for word in words if isinstance(word, str) and word.strip()]


def _status_of(error: Mapping[str, Any] | None, codes: list[str]) -> int:
    """The HTTP status an error object stands for; 0 where it names none."""
    if error is not None:
        for name in ("status", "code", "status_code", "http_status"):
            value = error.get(name)
            number = value if type(value) is int else int(value) if isinstance(value, str) and value.isdecimal() else 0
            if 400 <= number <= 599:
                return number
    return next((status for code in codes for pattern, status in _STATUS_OF if pattern.search(code)), 0)


def _told(status: int, error: Mapping[str, Any] | None, text: str) -> str:
    """``HTTP 500: what the provider said (its code)``, cut short."""
    if error is not None:
        message = error.get("message") or error.get("detail") or error.get("title") or ""
        said = message if isinstance(message, str) else str(message)
        code = error.get("code") if error.get("code") is not None else error.get("type")
        if code is not None and str(code) not in said:
            said = f"{said} ({code})" if said else str(code)
    else:
        said = plain(text)
    return f"HTTP {status}: {cut(said)}" if said.strip() else f"HTTP {status} with an empty body"


def plain(text: str) -> str:
    """A body as one line of prose: HTML's tags, scripts and styles taken out, the title first where there is one."""
    if "<" in text[:2000]:
        text = text[:20_000]
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.I | re.S)
        if title and title.group(1).strip():
            return " ".join(title.group(1).split())
        text = re.sub(r"<(script|style)\b.*?</\1>|<!--.*?-->", " ", text, flags=re.I | re.S)
        text = re.sub(r"<[^>]*>", " ", text)
    return " ".join(text[:20_000].split())


def cut(text: str) -> str:
    """At most 300 characters, printable, in one line."""
    text = "".join(char if char.isprintable() else " " for char in text[: 4 * _MESSAGE_CHARS])
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_CHARS else text[: _MESSAGE_CHARS - 1] + "…"
