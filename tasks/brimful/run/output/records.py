"""Records of the rollouts file: one JSON object per line, which keeps any text exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from brimful.errors import InputError
from brimful.packing.units import Delivered, Unit
from brimful.run.input.columns import KEEP_ALL, Keep
from brimful.run.input.sweep.sweep import NO_SWEEP, Sweep
from brimful.runtime.json_bytes import encode

_BREAKS = {"\x85".encode(): b"\\u0085", "\u2028".encode(): b"\\u2028", "\u2029".encode(): b"\\u2029"}
"""Line breaks to some readers (str.splitlines), which JSON does not escape."""


def dump_line(record: Mapping[str, Any]) -> bytes:
    """One line of JSON in UTF-8 with its ``\\n``. Line breaks and lone surrogates inside strings are escaped."""
    line = encode(record)
    if not line.isascii():
        for character, escape in _BREAKS.items():
            line = line.replace(character, escape)
    return line + b"\n"


def load_line(data: bytes, where: str) -> dict[str, Any]:
    """Raises InputError when the line is not a JSON object. ``where``: ``FILE:LINE``."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise InputError(f"{where}: is not a record of a run; fix or remove that line, or name another output with -o")
    return record


def rollout_records(
    delivered: Delivered, line: Unit | None, keep: Keep = KEEP_ALL, sweep: Sweep = NO_SWEEP
) -> list[dict[str, Any]]:
    """The records of a delivery.

    ``line``: the line, of which ``keep`` says what is repeated; None when it was not read. ``of`` is how many rollouts
    it has, by which a resumed run knows when it is complete. ``usage`` is the rollout's share of its request's: shares
    add up to what the provider counted. ``asked_model`` is there where the provider's name for the model is
    another, ``sweep`` and ``sweep_index`` in a sweep. Durations are seconds. ``started_at`` and ``ended_at`` are Unix
    times of the request (``request_id``), whose attempts have the provider's ``provider_request_ids``.
    """
    outcome = delivered.outcome
    records = []
    for rollout, usage in zip(delivered.rollouts, delivered.rollout_usages(), strict=True):
        record: dict[str, Any] = {
            "id": delivered.id if line is None else given_id(line),
            **sweep.describe(delivered.line),
            "prompt_index": rollout.prompt_index,
            "choice_index": rollout.choice_index,
            "of": line.request.choices if line is not None else None,
            "text": rollout.text,
            "finish_reason": rollout.finish_reason,
            "usage": usage,
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
        if delivered.asked_model not in ("", delivered.model):
            record["asked_model"] = delivered.asked_model
        if outcome.provider_request_ids:
            record["provider_request_ids"] = outcome.provider_request_ids
        if outcome.rate_limited:
            record["rate_limited"] = outcome.rate_limited
        if line is not None:
            record |= keep.of_line(line, rollout.prompt_index)
        record |= _extras(rollout.choice)
        records.append(record)
    return records


def given_id(line: Unit) -> str | int | float:
    """The line's id with its own type."""
    return line.id if line.given_id is None else line.given_id


def _extras(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Log probabilities, and what a chat message holds beside its content (tool calls, for instance)."""
    extras: dict[str, Any] = {}
    if choice.get("logprobs") is not None:
        extras["logprobs"] = choice["logprobs"]
    message = choice.get("message")
    if isinstance(message, dict):
        # Present for any chat, so that output formats can distinguish chats from completions.
        extras["message"] = {name: value for name, value in message.items() if name != "content" and value is not None}
    return extras


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else int(seconds * 1e4 + 0.5) / 1e4  # as round(seconds, 4), in a third of its time
