"""Divides a request's token usage among the lines or rollouts that shared it, and adds usages up.

The shares add up to the whole exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ESTIMATED = "estimated"
"""Field of a usage that brimful estimated: the provider's was missing, or could not be right."""


def share_usage(
    usage: Mapping[str, Any] | None, weights: Sequence[int], prompt_weights: Sequence[int] | None = None
) -> list[dict[str, Any] | None]:
    """One usage for each of ``weights``, in proportion to them; ``prompt_weights`` divide the prompt tokens, if given.

    The provider reports only the sums of a request, so a share is an estimate; the sum of the shares is exact (largest
    remainders), of details such as ``prompt_tokens_details.cached_tokens`` too. All-zero weights count as equal.
    ``total_tokens`` of a share is the sum of its other two counts. Without any count in ``usage`` every share is None.
    """
    usage = usage or {}
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if prompt is None and completion is None:
        if (total := _count(usage.get("total_tokens"))) is None:
            return [None] * len(weights)
        completion = total
    if len(weights) == 1:
        return [_whole(usage, prompt or 0, completion or 0)]
    by_prompt = weights if prompt_weights is None else prompt_weights
    prompts = _divide(prompt or 0, by_prompt)
    completions = _divide(completion or 0, weights)
    shares: list[dict[str, Any] | None] = [
        {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled}
        for asked, sampled in zip(prompts, completions, strict=True)
    ]
    for name, details in usage.items():
        if isinstance(details, Mapping):
            kind = by_prompt if name.startswith("prompt") else weights
            counts = {
                key: _divide(count, kind) for key, value in details.items() if (count := _count(value)) is not None
            }
            for place, share in enumerate(shares):
                if share is not None and counts:
                    share[name] = {key: divided[place] for key, divided in counts.items()}
        elif name == ESTIMATED and details:
            for share in filter(None, shares):
                share[name] = True
    return shares


def _whole(usage: Mapping[str, Any], prompt: int, completion: int) -> dict[str, Any]:
    """The only share. What most requests of a run have: dividing by one cost more than writing the record."""
    share: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    for name, details in usage.items():
        if isinstance(details, dict):  # isinstance with an abstract class is slow
            if counts := {key: count for key, value in details.items() if (count := _count(value)) is not None}:
                share[name] = counts
        elif name == ESTIMATED and details:
            share[name] = True
    return share


def merge_usage(*usages: Any) -> dict[str, Any] | None:
    """The sum of several ``usage`` objects, nested counts included; None if there is none."""
    given = [usage for usage in usages if isinstance(usage, dict)]
    if len(given) < 2:
        return given[0] if given else None
    total: dict[str, Any] = {}
    for usage in given:
        for name, value in usage.items():
            before = total.get(name)
            if isinstance(value, dict) or isinstance(before, dict):
                total[name] = merge_usage(before, value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                total[name] = value + (before if isinstance(before, (int, float)) else 0)
            elif before is None:
                total[name] = value
    return total


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
