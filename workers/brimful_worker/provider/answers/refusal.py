"""Classifies error objects and error statuses. Pure tables; the provider's codes are matched, never its prose.

The order of the tests matters: a code is more specific than the status (429 ``insufficient_quota`` is not throttling).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from reprlib import Repr
from typing import Any
from urllib.parse import urlsplit

from brimful.outcome import Cause
from brimful.words.phrases import cut
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.provider.answers.limits import refused_limit
from brimful_worker.provider.answers.retry_after import retry_after

_MAX_MESSAGE_CHARS = 300
_MAX_CODE_CHARS = 200
_MAX_PAGE_CHARS = 4_000
"""Of a body that is quoted. The time of a search for unclosed tags grows with its square."""
_quote = Repr()
"""Values that should have been texts, such as a list of faults, may be as large as the answer."""
_quote.maxstring = _quote.maxother = 4 * _MAX_MESSAGE_CHARS

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
_STATUS_OF_CODE = (
    (re.compile(r"permission|forbidden"), 403),
    (re.compile(r"not_?found"), 404),
    (re.compile(r"invalid|bad_request|unsupported|too_(large|long)|context_length|validation|missing_"), 400),
    (re.compile(r"time_?out|timed_out"), 504),
    (re.compile(r"overload|unavailable|server_?error|internal|api_error|capacity|upstream|gateway"), 503),
)
_TRANSIENT_4XX = {408: Cause.TIMEOUT, 409: Cause.SERVER_ERROR, 421: Cause.CONNECTION, 425: Cause.SERVER_ERROR}


def find_error(document: Any) -> Mapping[str, Any] | None:
    """The error object of an answer, if it has one; ``{"error": "text"}`` counts as ``{"message": "text"}``."""
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if isinstance(error, dict) and error:
        return error
    if isinstance(error, str) and error.strip():
        return {"message": error}
    if error is True or (isinstance(error, list) and error):
        return {"message": _brief(document.get("message") or error)}
    if document.get("object") == "error" or (document.get("type") == "error" and "message" in document):
        return document
    return None


def classify_refusal(
    status: int,
    headers: Mapping[str, str],
    error: Mapping[str, Any] | None,
    *,
    text: str = "",
    now: float,
) -> Classification:
    """Classify a refusal by its HTTP status and its error object; ``text`` is the body, quoted if there is no object.

    Under a status below 400, the status or code within the error object decides; if it has neither, the refusal is a
    transient BAD_ANSWER.
    """
    codes = _codes(error)
    message = _message(status, error, text)
    effective = status if status >= 400 else _implied_status(error, codes)
    wait_s = retry_after(headers, now=now)

    def classified(kind: Kind, cause: Cause, retry_after_s: float | None = None) -> Classification:
        return Classification(
            kind, cause=cause, message=message, status=status, retry_after_s=retry_after_s, code=_code(error)
        )

    if any(map(_BUDGET.search, codes)) or effective == 402:
        return classified(Kind.BUDGET, Cause.BUDGET)
    if any(map(_QUOTA.search, codes)) and effective in (403, 429) and wait_s is None:
        return classified(Kind.BUDGET, Cause.BUDGET)
    if effective < 500 and any(map(_FILTER.search, codes)):
        return classified(Kind.FILTERED, Cause.CONTENT_FILTER)
    if effective == 429 or (effective < 500 and any(map(_THROTTLE.search, codes))):
        cause = Cause.QUEUE_FULL if "queue_full" in codes else Cause.RATE_LIMITED
        return replace(classified(Kind.THROTTLED, cause, wait_s), limit=refused_limit(codes, headers))
    if effective in (401, 403) or (effective < 500 and any(map(_KEY.search, codes))):
        return classified(Kind.KEY_REFUSED, Cause.KEY_REFUSED)
    if effective >= 500:
        return classified(Kind.TRANSIENT, Cause.TIMEOUT if effective in (504, 524) else Cause.SERVER_ERROR, wait_s)
    if effective in _TRANSIENT_4XX:
        return classified(Kind.TRANSIENT, _TRANSIENT_4XX[effective], wait_s)
    if effective >= 400:
        return classified(Kind.PERMANENT, Cause.BAD_REQUEST)
    return classified(Kind.TRANSIENT, Cause.BAD_ANSWER, wait_s)


def classify_redirect(status: int, headers: Mapping[str, str]) -> Classification:
    """A redirect is permanent: following it would send prompts and the key to a host that no setting names."""
    try:
        place = urlsplit(headers.get("location", ""))
    except ValueError:
        place = urlsplit("")
    host = place.netloc.rpartition("@")[2]
    scheme = f"{place.scheme}://" if host and place.scheme else ""
    return Classification(
        Kind.PERMANENT,
        cause=Cause.BAD_REQUEST,
        message=f"HTTP {status}: the provider redirects to {scheme}{host or 'another path'}, which is not followed; "
        "set the base URL to the provider's own address",
        status=status,
    )


def _codes(error: Mapping[str, Any] | None) -> list[str]:
    """The error's codes and types in lower snake case, the most specific first."""
    if error is None:
        return []
    words = [error.get(name) for name in ("code", "error_code", "reason", "status", "type")]
    inner = error.get("innererror") or error.get("inner_error")
    if isinstance(inner, dict):
        words.append(inner.get("code"))
    texts = [word[:_MAX_CODE_CHARS].strip().lower() for word in words if isinstance(word, str)]
    return [re.sub(r"[\s\-.]+", "_", text) for text in texts if text]


def _implied_status(error: Mapping[str, Any] | None, codes: list[str]) -> int:
    """The HTTP status that an error object names or implies; 0 if none."""
    if error is not None:
        for name in ("status", "code", "status_code", "http_status"):
            value = error.get(name)
            text = str(value) if type(value) is int else value
            number = int(text) if isinstance(text, str) and len(text) == 3 and text.isdecimal() else 0
            if 400 <= number <= 599:
                return number
    return next((status for code in codes for pattern, status in _STATUS_OF_CODE if pattern.search(code)), 0)


def _code(error: Mapping[str, Any] | None) -> str | None:
    """The error's ``code``, else its ``type``, truncated."""
    if error is None:
        return None
    code = error.get("code") if error.get("code") is not None else error.get("type")
    return None if code is None else one_line(_brief(code))


def _message(status: int, error: Mapping[str, Any] | None, text: str) -> str:
    """``HTTP 500: the provider's message (its code)``, truncated."""
    if error is not None:
        message = error.get("message") or error.get("detail") or error.get("title") or ""
        quoted = _brief(message)
        code = _code(error)
        if code is not None and code not in quoted:
            quoted = f"{quoted} ({code})" if quoted else code
    else:
        quoted = visible_text(text)
    return f"HTTP {status}: {one_line(quoted)}" if quoted.strip() else f"HTTP {status} with an empty body"


def visible_text(text: str) -> str:
    """A body as one line: an HTML page's title, or else its text without tags, scripts and styles."""
    text = text[:_MAX_PAGE_CHARS]
    if "<" in text[:2000]:
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.I | re.S)
        if title and title.group(1).strip():
            return " ".join(title.group(1).split())
        text = re.sub(r"<(script|style)\b.*?</\1>|<!--.*?-->", " ", text, flags=re.I | re.S)
        text = re.sub(r"<[^>]*>", " ", text)
    return " ".join(text.split())


def _brief(value: Any) -> str:
    return value[: 4 * _MAX_MESSAGE_CHARS] if isinstance(value, str) else _quote.repr(value)


def one_line(text: str) -> str:
    """``text`` as one printable line of at most 300 characters."""
    text = "".join(char if char.isprintable() else " " for char in text[: 4 * _MAX_MESSAGE_CHARS])
    return cut(" ".join(text.split()), _MAX_MESSAGE_CHARS)
