"""What an answer means: one pure function from what came back to a :class:`Classification`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from email.message import Message
from typing import Any

import orjson

from brimful.outcome import Cause
from brimful_worker.provider.answers.answer import Answer, Classification, Kind, TransportError
from brimful_worker.provider.answers.choices import BadChoices, check
from brimful_worker.provider.answers.refusal import cut, error_of, plain, redirected, refused


def classify_answer(came: Answer | TransportError, *, expected: int, prompts: int = 1, now: float) -> Classification:
    """Judge what came back for a request of ``prompts`` prompts and ``expected`` (= prompts x n) choices.

    ``now`` is a Unix time, for ``Retry-After`` dates. Never raises.
    """
    if isinstance(came, TransportError):
        return lost(came)
    if came.too_large:
        told = bad_answer(came.status, "the body is larger than BRIMFUL_MAX_ANSWER_MB allows")
        return replace(told, abandoned=True)
    if 300 <= came.status < 400:
        return redirected(came.status, came.headers)
    document = parse(came)
    if came.status >= 400:
        return refused(came.status, came.headers, _any_error(document), text=_text(came, document), now=now)
    return _read(came, document, expected, prompts, now)


def _read(came: Answer, document: Any, expected: int, prompts: int, now: float) -> Classification:
    """An answer under 2xx (or 1xx, which no whole answer has)."""
    if document is None:
        return bad_answer(came.status, _not_json(came))
    # "check for an error key before you read choices" (ACS, "Run the same work as a Job")
    if (error := error_of(document)) is not None:
        return refused(came.status, came.headers, error, now=now)
    if not isinstance(document, dict) or "choices" not in document:
        return bad_answer(came.status, "JSON without choices")
    try:
        checked = check(document, expected, prompts=prompts)
    except BadChoices as error:
        return bad_answer(came.status, str(error))
    if not checked.choices:
        told = _choice_error(document, came, now)
        return told or bad_answer(came.status, f"none of {expected} choices holds a text")
    document["choices"] = checked.choices
    if not checked.missing:
        return Classification(Kind.SUCCESS, completion=document, status=came.status)
    return Classification(
        Kind.SHORT,
        completion=document,
        missing=checked.missing,
        cause=Cause.BAD_ANSWER,
        message=f"HTTP {came.status}: {len(checked.missing)} of {expected} choices are missing",
        status=came.status,
    )


def lost(came: TransportError) -> Classification:
    """No whole answer came."""
    if came.permanent:
        return Classification(Kind.PERMANENT, cause=came.cause, message=came.message)
    return Classification(
        Kind.TRANSIENT, cause=came.cause, message=came.message, stale=came.stale, abandoned=came.abandoned
    )


def bad_answer(status: int, why: str) -> Classification:
    """An answer that is no completion: worth asking again, within the attempts."""
    return Classification(Kind.TRANSIENT, cause=Cause.BAD_ANSWER, message=f"HTTP {status}: {cut(why)}", status=status)


def parse(came: Answer) -> Any:
    """The body's JSON; None where it is none. The strict fast parser first, then the patient one.

    The patient one also takes lone surrogates, NaN, a byte order mark, UTF-16 and a declared charset. Bytes that are
    no text in the end are no JSON: text with holes in it is not what the model said.
    """
    try:
        return orjson.loads(came.body)
    except orjson.JSONDecodeError:
        pass
    charset = _charset(came.headers)
    try:
        return json.loads(came.body.decode(charset) if charset else came.body)
    except (ValueError, LookupError, RecursionError):
        return None


def _charset(headers: Mapping[str, str]) -> str | None:
    content_type = headers.get("content-type", "")
    if "charset" not in content_type.lower():
        return None
    message = Message()
    message["content-type"] = content_type
    charset = message.get_content_charset()
    return None if charset in (None, "utf-8", "utf8") else charset


def _any_error(document: Any) -> Mapping[str, Any] | None:
    """Under an error status any object may be the error: ``{"detail": …}``, ``{"message": …}``, ``[{"error": …}]``."""
    if isinstance(document, list) and document:
        document = document[0]
    if (error := error_of(document)) is not None:
        return error
    if isinstance(document, dict):
        if _filtered(document):
            return {"code": "content_filter", "message": "the choices were taken by the content filter"}
        if any(document.get(name) for name in ("message", "detail", "title", "code")):
            return document
        if "choices" in document:
            return {"message": "a completion under an error status; it is not used"}
    return None


def _filtered(document: Mapping[str, Any]) -> bool:
    choices = document.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "content_filter" for choice in choices
    )


def _choice_error(document: Mapping[str, Any], came: Answer, now: float) -> Classification | None:
    """Some gateways put the error where the choice should be."""
    for choice in document.get("choices") or ():
        if (error := error_of(choice)) is not None:
            return refused(came.status, came.headers, error, now=now)
    return None


def _text(came: Answer, document: Any) -> str:
    if isinstance(document, str):
        return document
    return came.body[:20_000].decode("utf-8", "replace")


def _not_json(came: Answer) -> str:
    if not came.body.strip():
        return "an empty body"
    start = plain(came.body[:4000].decode("utf-8", "replace"))
    if came.body.lstrip()[:1] in (b"{", b"["):
        return f"JSON cut short or damaged ({len(came.body):,} bytes)"  # the start may hold sampled text: not shown
    return f"not JSON: {start[:120]}"
