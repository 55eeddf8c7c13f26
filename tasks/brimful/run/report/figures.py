"""The figures of a run: counts, durations, and what happened in each second."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from brimful.run.display.stats import Counts, Histogram, Recent
from brimful.run.input.sweep.sweep import combinations_in
from brimful.run.output.sidecar import Sidecar
from brimful.run.report.columns import Cells

_KINDS = 30  # finish reasons and causes counted apart


@dataclass
class Timeline:
    """By whole second (Unix time): rollouts that ended, requests that started, and the mean number of running ones."""

    ended: Counter[int] = field(default_factory=Counter)
    started: Counter[int] = field(default_factory=Counter)
    busy: Counter[int] = field(default_factory=Counter)
    """Milliseconds that requests ran within the second, summed."""

    def add_request(self, started: float, seconds: float) -> None:
        """A request that ran for ``seconds`` from ``started``; the pauses between its attempts are not known."""
        self.started[int(started)] += 1
        end = started + min(seconds, 24 * 3600.0)
        second = int(started)
        while second < end:
            self.busy[second] += round(1000 * (min(end, second + 1) - max(started, second)))
            second += 1


@dataclass
class RunFigures:
    """All that the page shows."""

    name: str
    counts: Counts = field(default_factory=Counts)
    timeline: Timeline = field(default_factory=Timeline)
    waiting: Histogram = field(default_factory=Histogram)
    provider: Histogram = field(default_factory=Histogram)
    retrying: Histogram = field(default_factory=Histogram)
    requests: int = 0
    """Successful requests to the provider."""
    attempts: int = 0
    rate_limited: int = 0
    packed: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """Failed lines by cause."""
    sampled_lines: int = 0
    """Lines with all their rollouts."""
    partial_lines: int = 0
    """Lines with some of their rollouts, and no failure."""
    failed_lines: int = 0
    """Lines with a record of a failure."""
    failed: int = 0
    """Rollouts that are missing because their line failed; a line that made no request counts as one."""
    asked: int = 0
    """Rollouts that the lines seen so far ask for."""
    sidecar: Sidecar | None = None
    _recent: Recent = field(default_factory=lambda: Recent(16_384))

    @property
    def cost(self) -> float | None:
        """As in the last try's summary; None without prices."""
        tries = self.sidecar.tries if self.sidecar is not None else []
        return next((one["summary"].get("cost") for one in reversed(tries) if "summary" in one), None)

    @property
    def combinations(self) -> int:
        """Of a sweep, in which each line with each combination counts as one; 0 without a sweep."""
        return combinations_in(self.sidecar.parameters) if self.sidecar is not None else 0

    @property
    def lines(self) -> int:
        """Lines of the input, as the last summary counted them; those that left a record where there is none."""
        tries = self.sidecar.tries if self.sidecar is not None else []
        said = next((one["summary"].get("requests") for one in reversed(tries) if "summary" in one), None)
        return max(self.sampled_lines + self.failed_lines + self.partial_lines, said or 0)

    def add(self, record: dict[str, Any]) -> None:
        """A rollout. Raises KeyError, TypeError and the like for what is no record of one."""
        if not isinstance(record["text"], str):
            raise TypeError("text")
        self.counts.add(record)
        _count(self.finish_reasons, str(record["finish_reason"]))
        if record["ended_at"] is not None:
            self.timeline.ended[int(record["ended_at"])] += 1
        if not self._recent.add(str(record["request_id"])):
            return
        self.requests += 1
        self.attempts += record["attempts"]
        self.rate_limited += record.get("rate_limited", 0)
        self.packed += record["packed"] > 1
        self.waiting.add(record["waited_s"])
        self.provider.add(record["provider_s"])
        self.retrying.add(record["retrying_s"])
        if record["started_at"] is not None and math.isfinite(record["provider_s"]):
            self.timeline.add_request(record["started_at"], record["provider_s"])

    def add_failure(self, record: dict[str, Any], rollouts: int) -> None:
        """A failed line, and how many of its rollouts are missing for it."""
        self.failed_lines += 1
        self.failed += rollouts
        _count(self.causes, str(record.get("cause")))

    def add_lines(self, cells: Cells, run: int) -> None:
        """Count lines by what became of them, and the rollouts that they ask for. The cells are in their order.

        In a sweep, each combination of a line counts as one.
        """
        found: dict[tuple[int, int], list[int]] = {}
        line = 0
        for place, combination, source, of in zip(cells.line, cells.combination, cells.source, cells.of, strict=True):
            if source // 2 != run:
                continue
            if place != line:
                self._end_line(found)
                line, found = place, {}
            counts = found.setdefault((place, combination), [0, 0, 0])
            counts[source % 2] += 1
            counts[2] = max(counts[2], of)
        self._end_line(found)

    def _end_line(self, found: dict[tuple[int, int], list[int]]) -> None:
        for got, failed, of in found.values():
            if got and not failed:
                self.sampled_lines += got >= of
                self.partial_lines += got < of
            self.asked += max(got + failed, of)


def _count(counter: Counter[str], word: str) -> None:
    counter[word if word in counter or len(counter) < _KINDS else "other"] += 1
