"""The figures of each combination of a sweep, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from brimful.profile import Tokens
from brimful.words.counted import counted

ROWS = 12
"""Combinations that the end table shows."""
_KINDS = 20  # finish reasons counted apart

Cost = Callable[[Mapping[tuple[str, ...], Tokens]], float | None]


@dataclass
class CombinationCounts:
    """Counts of the output's records of one combination."""

    sweep: dict[str, Any]
    rollouts: int = 0
    empty: int = 0
    characters: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    by_model: dict[tuple[str, ...], Tokens] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any], models: tuple[str, ...]) -> None:
        """``models``: as for :attr:`brimful.run.display.stats.Counts.by_model`."""
        text, usage = record.get("text") or "", record.get("usage") or {}
        reason = str(record.get("finish_reason"))
        self.rollouts += 1
        self.empty += not text.strip()
        self.characters += len(text)
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or 0
        known = reason in self.finish_reasons or len(self.finish_reasons) < _KINDS
        self.finish_reasons[reason if known else "other"] += 1
        if usage:
            self.by_model.setdefault(models, Tokens()).add(usage)

    def as_json(self, failed: int, cost: float | None) -> dict[str, Any]:
        """``characters`` and ``completion_tokens_each`` are means of a rollout; ``failed`` counts requests."""
        return {
            "sweep": self.sweep,
            "rollouts": self.rollouts,
            "failed": failed,
            "empty": self.empty,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "completion_tokens_each": round(self.completion_tokens / self.rollouts, 1) if self.rollouts else None,
            "characters_each": round(self.characters / self.rollouts, 1) if self.rollouts else None,
            "cost": None if cost is None else round(cost, 6),
            "finish_reasons": dict(self.finish_reasons.most_common()),
        }


def compare(
    combinations: list[dict[str, Any]], counts: Mapping[int, CombinationCounts], failed: Mapping[int, int], cost: Cost
) -> list[dict[str, Any]]:
    """One object for each combination, also for those without a rollout yet; in the sweep's order."""
    rows = []
    for index, combination in enumerate(combinations):
        mine = counts.get(index) or CombinationCounts(combination)
        rows.append(mine.as_json(failed.get(index, 0), cost(mine.by_model) if mine.by_model else None))
    return rows


def described(row: Mapping[str, Any]) -> str:
    """An object of :func:`compare` in words."""
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in row["finish_reasons"].items())
    words = [
        counted(row["rollouts"], "rollout") + (f" ({reasons})" if reasons else ""),
        counted(row["prompt_tokens"] + row["completion_tokens"], "token"),
    ]
    if row["completion_tokens_each"] is not None:
        words.append(f"{row['completion_tokens_each']:,} sampled each")
    if row["cost"] is not None:
        words.append(f"cost {row['cost']:.4f}")
    if row["failed"]:
        words.append(f"{row['failed']:,} failed")
    return ", ".join(words)
