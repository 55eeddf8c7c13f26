"""A run's figures as HTML: tiles, charts and tables."""

from __future__ import annotations

import math
import time
from collections import Counter
from html import escape
from typing import Any

from brimful.run.display.stats import Histogram
from brimful.run.display.summary import duration, money
from brimful.run.report.charts import Series, chart, wide_chart
from brimful.run.report.figures import RunFigures, Timeline

_BINS = 240
_GAP_S = 60  # without a request: left out of the charts
_HISTOGRAM_BINS = 48


def overview(figures: RunFigures) -> str:
    """The HTML of the figures: charts and tables, those only that have something to show. All text is escaped."""
    axis, timeline = _Axis(figures.timeline), figures.timeline
    limits = figures.sidecar.limits if figures.sidecar else {}
    span_s = max(1, math.ceil(float(limits.get("window_s") or 60)))
    cards = []
    if figures.counts.rollouts:
        slots = axis.series(axis.means(timeline.busy, 0.001), "slots in use", limits.get("slots"), "slots")
        starts = axis.most_within(timeline.started, span_s)
        cards += [
            ("Rollouts a minute", wide_chart(axis.series(axis.means(timeline.ended, 60), "rollouts a minute")), True),
            ("Slots in use", chart(slots), False),
            (
                f"Starts in any {span_s} s",
                chart(axis.series(starts, f"starts in {span_s} s", limits.get("starts"), "starts")),
                False,
            ),
            ("Time of an API call at the provider", _latency(figures.provider), False),
            ("Where an API call's time went", _percentiles(figures), False),
        ]
    return "".join(
        f'<section class="card{" wide" if wide else ""}"><h2>{title}</h2>{body}</section>'
        for title, body, wide in [*cards, ("Parameters", _parameters(figures), not cards)]
        if body
    )


def when(figures: RunFigures) -> str:
    """The start of the run and how long it took, idle times left out; empty where nothing was sampled."""
    return _Axis(figures.timeline).when


def tiles(figures: RunFigures, *, brief: bool = False) -> str:
    """The HTML of the main counts. They equal the run's summary. ``brief``: of one of two runs."""
    counts, active_s = figures.counts, len(_Axis(figures.timeline).seconds)
    left = max(0, figures.lines - figures.sampled_lines - figures.failed_lines)
    unasked = max(0, figures.asked - counts.rollouts - figures.failed)
    odd = [(counts.truncated, "truncated"), (counts.filtered, "filtered"), (counts.empty, "empty")]
    prompts = [(figures.failed_lines, "failed"), (left, "left"), (figures.combinations, "combinations")]
    rollouts = [(figures.failed, "failed"), (unasked, "left"), *odd]
    shown: list[tuple[str, list[tuple[int, str]] | str]] = [
        (_counted(figures.lines, "prompt"), prompts),
        (_counted(counts.rollouts, "rollout"), rollouts),
    ]
    if counts.rollouts:
        rate = f"{counts.rollouts / active_s * 60:,.0f}/min"
        split = [(counts.prompt_tokens, "prompt"), (counts.completion_tokens, "sampled")]
        retried = figures.attempts - figures.requests
        calls = [(retried, "retried"), (figures.rate_limited, "rate-limited"), (figures.packed, "packed")]
        shown.append((_counted(counts.tokens, "token"), split))
        if not brief:
            shown.insert(2, (f"<b>{rate}</b> <span>rollouts</span>", duration(active_s)))
            shown.append((_counted(figures.requests, "API call"), calls))
    if figures.cost is not None:
        shown.append((f"<b>{money(figures.cost)}</b> <span>cost</span>", ""))
    return "".join(f'<div class="tile">{head}<small>{_details(details)}</small></div>' for head, details in shown)


def _counted(count: int, word: str) -> str:
    return f"<b>{count:,}</b> <span>{word if count == 1 else word + 's'}</span>"


def _details(details: list[tuple[int, str]] | str) -> str:
    if isinstance(details, str):
        return details
    words = [(f"{count:,} {word}", word) for count, word in details if count]
    return ", ".join(f'<span class="bad">{text}</span>' if word == "failed" else text for text, word in words)


class _Axis:
    """The run's seconds, without idle gaps, grouped into bins of equal length."""

    def __init__(self, timeline: Timeline) -> None:
        active = sorted(timeline.busy.keys() | timeline.ended.keys() | timeline.started.keys()) or [0]
        seconds, gaps = [active[0]], []
        for second in active[1:]:
            if second - seconds[-1] > _GAP_S:
                gaps.append(len(seconds))
                seconds.append(second)
            else:
                seconds.extend(range(seconds[-1] + 1, second + 1))
        size = max(1, math.ceil(len(seconds) / _BINS))
        self.seconds = seconds
        self.bins = [seconds[start : start + size] for start in range(0, len(seconds), size)]
        self.labels = [time.strftime("%H:%M:%S", time.localtime(each[0])) if each[0] else "–" for each in self.bins]
        self.gaps = [gap // size for gap in gaps]

    @property
    def when(self) -> str:
        first, last = self.seconds[0], self.seconds[-1]
        if not first:
            return ""
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(first))}, {duration(last - first + 1)}"

    def series(self, values: list[float], unit: str, limit: float | None = None, name: str = "") -> Series:
        return Series(values, self.labels, unit, limit, name, self.gaps)

    def means(self, counts: Counter[int], scale: float) -> list[float]:
        """The mean count a second of each bin, times ``scale``."""
        return [scale * sum(counts.get(second, 0) for second in each) / len(each) for each in self.bins]

    def most_within(self, counts: Counter[int], span_s: int) -> list[float]:
        """For each bin, the highest sum of counts in any ``span_s`` seconds that end in it."""
        most, running, oldest = [0.0] * len(self.bins), 0, 0
        for place, each in enumerate(self.bins):
            for second in each:
                running += counts.get(second, 0)
                while self.seconds[oldest] <= second - span_s:
                    running -= counts.get(self.seconds[oldest], 0)
                    oldest += 1
                most[place] = max(most[place], running)
        return most


def _latency(histogram: Histogram) -> str:
    """The time that requests took, in logarithmic buckets."""
    buckets = sorted(bucket for bucket in histogram.buckets if bucket >= 0)
    if not buckets:
        return ""
    low, high = buckets[0], buckets[-1] + 1
    step = math.ceil((high - low) / _HISTOGRAM_BINS)
    starts = range(low, high, step)
    counts = [float(sum(histogram.buckets.get(start + place, 0) for place in range(step))) for start in starts]
    labels = [f"{Histogram.seconds(start):.2g} s" for start in starts]
    values = [(name, histogram.percentile(share) or 0.0) for share, name in ((0.5, "p50"), (0.95, "p95"))]
    marks = [((Histogram.bucket(value) + 0.5 - low) / step, f"{name} {value:.2g} s") for name, value in values]
    return chart(Series(counts, labels, "API calls", marks=marks))


def _percentiles(figures: RunFigures) -> str:
    rows = (("waiting for a slot and a start", figures.waiting), ("at the provider", figures.provider),
            ("between attempts", figures.retrying))  # fmt: skip
    cells = "".join(
        f"<tr><th>{name}</th>" + "".join(f"<td>{_s(of.percentile(share))}</td>" for share in (0.5, 0.95, 1.0)) + "</tr>"
        for name, of in rows
    )
    return f"<table class=times><tr><th></th><td>p50</td><td>p95</td><td>longest</td></tr>{cells}</table>"


def _parameters(figures: RunFigures) -> str:
    if figures.sidecar is None:
        return "<p>The run's .run.json is missing.</p>"
    stated = {name: value for name, value in figures.sidecar.parameters.items() if value is not None}
    limits = {name: value for name, value in figures.sidecar.limits.items() if value is not None}
    tries = len(figures.sidecar.tries)
    rows = "".join(
        f"<tr><th>{escape(str(name))}</th><td>{escape(_text(value)[:300])}</td></tr>"
        for name, value in {**stated, **limits, "tries": tries, "run": figures.sidecar.run}.items()
    )
    return f"<table>{rows}</table>"


def _text(value: Any) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _s(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:,.2f} s"
