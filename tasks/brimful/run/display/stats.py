"""Statistics in constant memory: counts of output records, percentiles, and a set of recent strings."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from brimful.packing.usage import ESTIMATED
from brimful.profile import Tokens
from brimful.run.display.combinations import CombinationCounts

_RATIO = math.log(1.02)
_FLOOR = 0.001


class Histogram:
    """Durations in seconds, in buckets 2 % wide: percentiles are right to 1 %. Below a millisecond counts as 0."""

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0

    @staticmethod
    def bucket(seconds: float) -> int:
        return -1 if seconds < _FLOOR else int(math.log(seconds / _FLOOR) / _RATIO)

    @staticmethod
    def seconds(bucket: float) -> float:
        """The lower bound of a bucket."""
        return 0.0 if bucket < 0 else _FLOOR * math.exp(bucket * _RATIO)

    def add(self, seconds: float) -> None:
        bucket = self.bucket(seconds)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1

    def percentile(self, share: float) -> float | None:
        """None if empty. ``share`` 0.5 is the median."""
        if not self.count:
            return None
        rank = max(1, math.ceil(share * self.count))
        for bucket in sorted(self.buckets):
            rank -= self.buckets[bucket]
            if rank <= 0:
                return 0.0 if bucket < 0 else self.seconds(bucket + 0.5)
        raise AssertionError("unreachable")

    def summary(self) -> dict[str, float | None]:
        """``{"p50": …, "p95": …}``"""
        shares = {"p50": self.percentile(0.5), "p95": self.percentile(0.95)}
        return {name: None if value is None else round(value, 3) for name, value in shares.items()}


class Counts:
    """Counts of an output's records."""

    def __init__(self) -> None:
        self.rollouts = 0
        self.truncated = 0
        """``finish_reason`` length"""
        self.filtered = 0
        """``finish_reason`` content_filter"""
        self.empty = 0
        """Without text, or with white space only."""
        self.estimated = 0
        """With a usage that brimful estimated."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.by_model: dict[tuple[str, ...], Tokens] = {}
        """By the names of the model: the one asked for, if the provider's is another, and the provider's."""
        self.combinations: dict[int, CombinationCounts] = {}
        """Of a sweep, by their index."""

    def add(self, record: Mapping[str, Any]) -> None:
        self.rollouts += 1
        reason = record.get("finish_reason")
        self.truncated += reason == "length"
        self.filtered += reason == "content_filter"
        text = record.get("text")
        self.empty += not text or text.isspace()
        usage = record.get("usage") or {}
        self.estimated += bool(usage.get(ESTIMATED))
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or 0
        asked, model = record.get("asked_model"), str(record.get("model") or "")
        names = (str(asked), model) if asked and model else (str(asked),) if asked else (model,)
        if (index := record.get("sweep_index")) is not None:
            self.combinations.setdefault(index, CombinationCounts(record["sweep"])).add(record, names)
        if usage:
            if (tokens := self.by_model.get(names)) is None:
                tokens = self.by_model[names] = Tokens()
            tokens.add(usage)

    def models_with(self, other: Counts) -> dict[tuple[str, ...], Tokens]:
        """``by_model`` of both together."""
        if not other.by_model:
            return self.by_model
        sums: dict[tuple[str, ...], Tokens] = {}
        for names, tokens in (*self.by_model.items(), *other.by_model.items()):
            total = sums.setdefault(names, Tokens())
            total.prompt += tokens.prompt
            total.cached += tokens.cached
            total.completion += tokens.completion
        return sums

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Recent:
    """A set of the last ``size`` strings added."""

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        # Not a dict: with many items removed at its front, finding the first takes long.
        self._seen: OrderedDict[str, None] = OrderedDict()

    def add(self, word: str) -> bool:
        """Returns False if ``word`` is in the set already."""
        if word in self._seen:
            return False
        self._seen[word] = None
        if len(self._seen) > self._size:
            self._seen.popitem(last=False)
        return True
