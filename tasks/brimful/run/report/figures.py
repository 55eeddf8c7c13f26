"""The figures of a run for its report, read from the run's files in constant memory."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brimful.errors import InputError, UsageError
from brimful.run.display.stats import Counts, Histogram, Recent
from brimful.run.output.paths import OutputFormat, RunPaths
from brimful.run.output.records import load_line
from brimful.run.output.sidecar import Sidecar

_TOP = 8  # longest and slowest rollouts shown
_FAILURES = 50  # failures shown
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
    failures: list[dict[str, Any]] = field(default_factory=list)
    longest: list[dict[str, Any]] = field(default_factory=list)
    slowest: list[dict[str, Any]] = field(default_factory=list)
    sidecar: Sidecar | None = None

    @property
    def cost(self) -> float | None:
        """As in the last try's summary; None without prices."""
        tries = self.sidecar.tries if self.sidecar is not None else []
        return next((one["summary"].get("cost") for one in reversed(tries) if "summary" in one), None)


def read_run(output: Path) -> RunFigures:
    """Raises UsageError if ``output`` is not a run's, InputError naming a line that is not a record of one."""
    sidecar = Sidecar.load(RunPaths(output).sidecar)
    form = OutputFormat.ROLLOUTS
    if sidecar is not None and sidecar.parameters.get("format") == OutputFormat.OPENAI_BATCH:
        form = OutputFormat.OPENAI_BATCH
    paths = RunPaths(output, form)
    if not paths.rollouts.exists() and not paths.failures.exists():
        missing = paths.rollouts if output.exists() else output
        raise UsageError(f"{missing}: no such file; name the output of a run, as you gave it with -o")
    figures = RunFigures(name=output.name, sidecar=sidecar)
    longest, slowest = _Top(), _Top()
    requests = Recent(16_384)
    for number, record in enumerate(_records(paths.rollouts), 1):
        try:
            _add(figures, record, requests)
            longest.add(len(record["text"]), number, record)
            slowest.add(float(record["provider_s"] or 0), number, record)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise InputError(f"{paths.rollouts}:{number}: is not a record of a run; name the output of one") from None
    for record in _records(paths.failures):
        _count(figures.causes, str(record.get("cause")))
        if len(figures.failures) < _FAILURES:
            figures.failures.append(record)
    if not figures.counts.rollouts and not figures.failures:
        raise InputError(f"{paths.rollouts}: holds no rollouts yet; sample some with brimful run")
    figures.longest, figures.slowest = longest.records, slowest.records
    return figures


class _Top:
    """The few records with the greatest keys."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, dict[str, Any]]] = []

    def add(self, key: float, number: int, record: dict[str, Any]) -> None:
        push = heapq.heappush if len(self._heap) < _TOP else heapq.heappushpop
        push(self._heap, (key, -number, record))

    @property
    def records(self) -> list[dict[str, Any]]:
        return [record for _, _, record in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


def _add(figures: RunFigures, record: dict[str, Any], requests: Recent) -> None:
    if not isinstance(record["text"], str):
        raise TypeError("text")
    figures.counts.add(record)
    _count(figures.finish_reasons, str(record["finish_reason"]))
    if record["ended_at"] is not None:
        figures.timeline.ended[int(record["ended_at"])] += 1
    if not requests.add(str(record["request_id"])):
        return
    figures.requests += 1
    figures.attempts += record["attempts"]
    figures.rate_limited += record.get("rate_limited", 0)
    figures.packed += record["packed"] > 1
    figures.waiting.add(record["waited_s"])
    figures.provider.add(record["provider_s"])
    figures.retrying.add(record["retrying_s"])
    if record["started_at"] is not None and math.isfinite(record["provider_s"]):
        figures.timeline.add_request(record["started_at"], record["provider_s"])


def _count(counter: Counter[str], word: str) -> None:
    counter[word if word in counter or len(counter) < _KINDS else "other"] += 1


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """All records but an incomplete last line: the run may still write it."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield load_line(line, f"{path}:{number}")
            except InputError:
                if not line.endswith(b"\n"):
                    return
                raise
