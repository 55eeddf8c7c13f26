"""A request's token usage, dealt out to those who shared it so that the shares add up to the whole exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def share_usage(usage: Mapping[str, Any] | None, weights: Sequence[int]) -> list[dict[str, int] | None]:
    """One usage for each of ``weights``, in proportion to them (largest remainders; all-zero weights count as equal).

    The provider tells only the sums of a request, so a share is an estimate; the sum of the shares is exact.
    ``total_tokens`` of a share is the sum of its other two. None in, or no counts in it: Nones out.
    """
    counts = {name: usage.get(name) for name in _COUNTS} if usage else {}
    prompt, completion, total = (_count(counts.get(name)) for name in _COUNTS)
    if prompt is None and completion is None and total is None:
        return [None] * len(weights)
    if prompt is None and completion is None:
        prompt, completion = 0, total
    if len(weights) == 1:
        asked, sampled = prompt or 0, completion or 0
        return [{"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled}]
    prompts, completions = _deal(prompt or 0, weights), _deal(completion or 0, weights)
    return [
        {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled}
        for asked, sampled in zip(prompts, completions, strict=True)
    ]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _deal(whole: int, weights: Sequence[int]) -> list[int]:
    if not weights:
        return []
    weights = weights if any(weights) else [1] * len(weights)
    sum_of_weights = sum(weights)
    shares = [whole * weight // sum_of_weights for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: -(whole * weights[place] % sum_of_weights))
    for place in by_remainder[: whole - sum(shares)]:
        shares[place] += 1
    return shares
