"""Classifies the provider's answers: one pure function from an :class:`Answer` to a :class:`Classification`.

What refuses a request, such as a 429, is judged in :mod:`.refusal`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from brimful.outcome import Cause
from brimful.words.counted import counted
from brimful_worker.provider.answers.answer import Answer, Classification, Kind, TransportError
from brimful_worker.provider.answers.choices import BadChoices, NIgnored, check_choices
from brimful_worker.provider.answers.refusal import (
    classify_redirect,
    classify_refusal,
    find_error,
    one_line,
    visible_text,
)
from brimful_worker.provider.answers.stated import stated_starts

_MAX_DEPTH = 100
"""Levels of lists and objects in a completion. Deeper ones cannot be stored, or read again, by every JSON library."""
_SLOW_CHARSETS = ("idna", "punycode", "undefined")
"""The time that these decoders take grows with the square of the text."""
_CHARSET = re.compile(r"charset\s*=\s*[\"']?(?!utf-?8)([\w.:-]+)", re.IGNORECASE)
"""A declared charset other than UTF-8."""


def classify_answer(answer: Answer | TransportError, *, expected: int, prompts: int = 1, now: float) -> Classification:
    """Classify the answer to a request of ``prompts`` prompts and ``expected`` (= prompts x n) choices. Never raises.

    ``now`` is a Unix time, for ``Retry-After`` dates.
    """
    if isinstance(answer, TransportError):
        kind = Kind.PERMANENT if answer.permanent else Kind.TRANSIENT
        return Classification(
            kind, cause=answer.cause, message=answer.message, stale=answer.stale, abandoned=answer.abandoned
        )
    classification = _classify(answer, expected, prompts, now)
    classification.stated_starts = stated_starts(answer.headers, now=now)
    return classification


def _classify(answer: Answer, expected: int, prompts: int, now: float) -> Classification:
    if 300 <= answer.status < 400:
        return classify_redirect(answer.status, answer.headers)
    document = parse_json(answer)
    if answer.status >= 400:
        text = document if isinstance(document, str) else answer.body[:4_000].decode("utf-8", "replace")
        return classify_refusal(answer.status, answer.headers, _any_error(document), text=text, now=now)
    if document is None:
        return _bad_answer(answer.status, _why_not_json(answer))
    # "check for an error key before you read choices" (ACS, "Sample many rollouts", Run the same work as a Job)
    if (error := find_error(document)) is not None:
        return classify_refusal(answer.status, answer.headers, error, now=now)
    if not isinstance(document, dict) or "choices" not in document:
        return _bad_answer(answer.status, "JSON without choices")
    try:
        checked = check_choices(document, expected, prompts=prompts)
    except NIgnored as reason:  # the next answer would be the same; a request of one prompt can be completed
        return replace(_bad_answer(answer.status, str(reason)), kind=Kind.PERMANENT)
    except BadChoices as reason:
        return _bad_answer(answer.status, str(reason))
    if not checked.choices:
        # Some gateways put the error object where the choice should be.
        error = next(filter(None, map(find_error, document["choices"] or ())), None)
        if error is not None:
            return classify_refusal(answer.status, answer.headers, error, now=now)
        return _bad_answer(answer.status, f"no text among {counted(expected, 'choice')}")
    if answer.body.count(b"[") + answer.body.count(b"{") > _MAX_DEPTH and deeper_than(_MAX_DEPTH, document):
        return replace(
            _bad_answer(answer.status, f"JSON nested more than {_MAX_DEPTH} levels deep"), kind=Kind.PERMANENT
        )
    document["choices"] = checked.choices
    if not checked.missing:
        return Classification(Kind.SUCCESS, completion=document, status=answer.status)
    return Classification(
        Kind.SHORT,
        completion=document,
        missing=checked.missing,
        cause=Cause.BAD_ANSWER,
        message=f"HTTP {answer.status}: {len(checked.missing)} of {counted(expected, 'choice')} missing",
        status=answer.status,
    )


def _bad_answer(status: int, reason: str) -> Classification:
    """A response that is not a completion: transient, because another attempt may bring one."""
    message = f"HTTP {status}: {one_line(reason)}"
    return Classification(Kind.TRANSIENT, cause=Cause.BAD_ANSWER, message=message, status=status)


def parse_json(answer: Answer) -> Any:
    """The body's JSON value; None if it is not JSON.

    orjson parses first. The standard library then also accepts lone surrogates, NaN, a byte order mark, UTF-16 and a
    declared charset. Undecodable bytes are never replaced: a text with gaps is not what the model generated.
    """
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        pass
    if answer.body[-64:].rstrip(b" \t\r\n\0")[-1:] not in (b"}", b"]"):
        return None  # cut short; the slower parser need not find out
    charset = _CHARSET.search(answer.headers.get("content-type", ""))
    if charset is not None and charset[1].lower() in _SLOW_CHARSETS:
        return None
    try:
        return json.loads(answer.body.decode(charset[1]) if charset else answer.body)
    except (ValueError, LookupError, RecursionError):
        return None


def deeper_than(levels: int, document: Any) -> bool:
    """Whether lists and objects are nested more than ``levels`` deep. Takes no stack."""
    level = [document]
    for _ in range(levels):
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def _any_error(document: Any) -> Mapping[str, Any] | None:
    """Under an error status, any object may be the error: ``{"detail": …}``, ``{"message": …}``, ``[{"error": …}]``."""
    if isinstance(document, list) and document:
        document = document[0]
    if (error := find_error(document)) is not None or not isinstance(document, dict):
        return error
    choices = document.get("choices")
    if isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "content_filter" for choice in choices
    ):
        return {"code": "content_filter", "message": "the content filter removed the choices"}
    if any(document.get(name) for name in ("message", "detail", "title", "code")):
        return document
    return {"message": "a completion under an error status; it is not used"} if "choices" in document else None


def _why_not_json(answer: Answer) -> str:
    if not answer.body.strip():
        return "an empty body"
    if answer.body.lstrip()[:1] in (b"{", b"["):
        # The start may hold sampled text, so it is not quoted.
        return f"JSON cut short or damaged ({counted(len(answer.body), 'byte')})"
    return f"not JSON: {visible_text(answer.body[:4000].decode('utf-8', 'replace'))[:120]}"
