"""The lines of the output: one JSON object a rollout, exact whatever its text holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from brimful.errors import InputError
from brimful.packing.units import Delivered
from brimful.packing.usage import share_usage
from brimful.runtime.json_bytes import encode

_BREAKS = {"\x85".encode(): b"\\u0085", "\u2028".encode(): b"\\u2028", "\u2029".encode(): b"\\u2029"}
"""Line breaks to some readers (str.splitlines), which JSON leaves as they are inside strings."""


def dump_line(record: Mapping[str, Any]) -> bytes:
    """One line of JSON in UTF-8 with its ``\\n``; whatever could end a line or is no UTF-8 is escaped."""
    line = encode(record)
    for character, escape in _BREAKS.items():
        line = line.replace(character, escape)
    return line + b"\n"


def load_line(data: bytes, where: str) -> dict[str, Any]:
    """Raises InputError (``where`` is ``FILE:LINE``) when it is no record of ours."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise InputError(f"{where}: is not a record of a run; mend or remove that line, or name another output with -o")
    return record


def rollout_records(delivered: Delivered, of: int | None) -> list[dict[str, Any]]:
    """The records of a delivery. ``of``: how many rollouts the line has in all, from which a resumed run knows it done;
    None where its line was not read yet.

    ``usage`` is the rollout's part: the records of a file add up to what the provider counted.
    Times are seconds; ``started_at``/``ended_at`` are Unix times of the request that it came with (``request_id``).
    """
    outcome = delivered.outcome
    usages = _usages(delivered)
    records = []
    for place, rollout in enumerate(delivered.rollouts):
        record: dict[str, Any] = {
            "id": delivered.id,
            "line": delivered.line,
            "prompt_index": rollout.prompt_index,
            "choice_index": rollout.choice_index,
            "of": of,
            "text": rollout.text,
            "finish_reason": rollout.finish_reason,
            "usage": usages[place],
            "model": delivered.model,
            "attempts": outcome.attempts,
            "request_id": outcome.id,
            "packed": delivered.packed,
            "started_at": _rounded(outcome.started_at),
            "ended_at": _rounded(outcome.ended_at),
            "waited_s": _rounded(outcome.waited_s),
            "provider_s": _rounded(outcome.provider_s),
            "retrying_s": _rounded(outcome.retrying_s),
        }
        if outcome.rate_limited:
            record["rate_limited"] = outcome.rate_limited
        if place < len(delivered.choices):
            record |= _more(delivered.choices[place])
        records.append(record)
    return records


def _more(choice: Mapping[str, Any]) -> dict[str, Any]:
    """What a choice says beyond its text: logprobs, a message with more in it than its content."""
    more: dict[str, Any] = {}
    if choice.get("logprobs") is not None:
        more["logprobs"] = choice["logprobs"]
    message = choice.get("message")
    if isinstance(message, dict):
        # Present for any chat, so that formats can tell chat from completion.
        more["message"] = {name: value for name, value in message.items() if name != "content" and value is not None}
    return more


def _usages(delivered: Delivered) -> list[dict[str, int] | None]:
    """By length of text: the nearest to tokens that can be seen from outside. A prompt is paid once, with choice 0."""
    return share_usage(
        delivered.usage,
        [max(1, len(rollout.text)) for rollout in delivered.rollouts],
        [int(rollout.choice_index == 0) for rollout in delivered.rollouts],
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
