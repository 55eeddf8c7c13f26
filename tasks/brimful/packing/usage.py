"""Divides a request's token usage among the lines or rollouts that shared it; the shares add up to the whole exactly.

A file of its own because both ``packing`` and the output formats of ``run`` use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def share_usage(
    usage: Mapping[str, Any] | None, weights: Sequence[int], prompt_weights: Sequence[int] | None = None
) -> list[dict[str, int] | None]:
    """One usage for each of ``weights``, in proportion to them; ``prompt_weights`` divide the prompt tokens, if given.

    The provider reports only the sums of a request, so a share is an estimate; the sum of the shares is exact (largest
    remainders). All-zero weights count as equal. ``total_tokens`` of a share is the sum of its other two counts.
    Without any count in ``usage`` every share is None.
    """
    prompt, completion, total = (
        _count((usage or {}).get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    if prompt is None and completion is None:
        if total is None:
            return [None] * len(weights)
        completion = total
    prompts = _divide(prompt or 0, weights if prompt_weights is None else prompt_weights)
    completions = _divide(completion or 0, weights)
    return [
        {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled}
        for asked, sampled in zip(prompts, completions, strict=True)
    ]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _divide(whole: int, weights: Sequence[int]) -> list[int]:
    weights = weights if any(weights) else [1] * len(weights)
    total = sum(weights)
    shares = [whole * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: -(whole * weights[place] % total))
    for place in by_remainder[: whole - sum(shares)]:
        shares[place] += 1
    return shares
