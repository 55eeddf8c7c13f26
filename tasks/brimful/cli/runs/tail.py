"""``brimful runs tail``: outcomes as workers store them, before the run has written them down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis

from brimful.dispatch.ledger import Keys, Result, parse_results
from brimful.packing.units import Delivered
from brimful.packing.unpacking import unpack
from brimful.words.counted import counted
from brimful.words.phrases import printable

_AT_ONCE = 256
BLOCK_S = 1.0
"""How long :func:`read_outcomes` waits for the next outcome."""


def read_outcomes(client: redis.Redis, run: str) -> Iterator[list[Result]]:
    """What is in Redis now, then what comes; an empty list after :data:`BLOCK_S` without any. Never ends.

    The run trims what it has written down, so a reader that is slower than the run misses some. Raises
    redis.RedisError.
    """
    key, last = Keys(run).results, "0"
    while True:
        answer: Any = client.xread({key: last}, count=_AT_ONCE, block=int(BLOCK_S * 1000))
        results = parse_results(answer, key)
        if results:
            last = results[-1].entry
        yield results


def lines(result: Result, *, text: bool) -> list[str]:
    """A line for each of the input's lines; ``text``: with what was sampled, and a failure's message."""
    outcome = result.outcome
    took = f"{outcome.provider_s:.1f} s, {counted(outcome.attempts, 'attempt')}"
    try:
        manifest = result.manifest
        parts = unpack(manifest, outcome) if outcome.failure is None else []
    except (ValueError, KeyError, TypeError) as error:
        return [f"{result.id}  the outcome does not fit its request: {error}"]
    if outcome.failure is not None:
        status = f" {outcome.failure.status}" if outcome.failure.status else ""
        said = f": {printable(outcome.failure.message)}" if text else ""
        ids = dict.fromkeys(printable(entry.id) for entry in manifest)
        return [f"{id}  {outcome.failure.cause}{status}, {took}{said}" for id in ids]
    return [line for part in parts for line in _sampled(part, took, text=text)]


def _sampled(part: Delivered, took: str, *, text: bool) -> list[str]:
    tokens = (part.usage or {}).get("total_tokens")
    words = [counted(len(part.rollouts), "rollout")]
    if isinstance(tokens, int):
        words.append(counted(tokens, "token"))
    reasons = ", ".join(dict.fromkeys(printable(str(rollout.finish_reason)) for rollout in part.rollouts))
    packed = f", packed with {counted(part.packed - 1, 'other')}" if part.packed > 1 else ""
    found = [f"{printable(part.id)}  {', '.join(words)} ({reasons}), {took}{packed}"]
    if text:
        found += [f"  {rollout.prompt_index}.{rollout.choice_index} {rollout.text!r}" for rollout in part.rollouts]
    return found
