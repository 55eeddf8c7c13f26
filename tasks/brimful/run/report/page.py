"""``brimful report OUT``: a run's figures as one self-contained HTML page, without scripts or network access."""

from __future__ import annotations

import math
import time
from collections import Counter
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from brimful.run.display.stats import Histogram
from brimful.run.display.summary import duration, money
from brimful.run.output.paths import RunPaths
from brimful.run.report.charts import FULL, Series, bar_list, chart
from brimful.run.report.figures import RunFigures, Timeline, read_run
from brimful.runtime.atomic import atomic_write

_BINS = 240
_GAP_S = 60  # without a request: left out of the charts
_TEXT = 4000  # characters of a rollout shown
_HISTOGRAM_BINS = 48


def write_report(output: Path, page: Path | None = None) -> Path:
    """Write the page of a run, to OUT.report.html by default; returns its path.

    Raises UsageError, InputError, and FleetError if the page cannot be written.
    """
    page = page or RunPaths(output).report
    text = render(read_run(output))
    with atomic_write(page) as file:
        file.write(text.encode("utf-8", "backslashreplace"))  # lone surrogates as their escapes
    return page


def render(figures: RunFigures) -> str:
    """The page. All text of models and providers is escaped."""
    axis, timeline = _Axis(figures.timeline), figures.timeline
    limits = figures.sidecar.limits if figures.sidecar else {}
    span_s = max(1, math.ceil(float(limits.get("window_s") or 60)))
    slots = axis.series(axis.means(timeline.busy, 0.001), "slots in use", limits.get("slots"), "slots")
    starts = axis.most_within(timeline.started, span_s)
    template = resources.files("brimful.run.report").joinpath("report.html").read_text("utf-8")
    return Template(template).substitute(
        name=escape(figures.name),
        when=escape(axis.when),
        tiles=_tiles(figures, len(axis.seconds)),
        rollouts=chart(axis.series(axis.means(timeline.ended, 60), "rollouts a minute"), FULL),
        slots=chart(slots),
        window=chart(axis.series(starts, f"starts in {span_s} s", limits.get("starts"), "starts")),
        latency=_latency(figures.provider),
        percentiles=_percentiles(figures),
        finish=bar_list(figures.finish_reasons.most_common()),
        failed=bar_list(figures.causes.most_common(), "bad") or "<p class=none>none</p>",
        failures=_failures(figures),
        longest=_texts(figures.longest),
        slowest=_texts(figures.slowest),
        parameters=_parameters(figures),
    )


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


def _tiles(figures: RunFigures, active_s: int) -> str:
    counts, failed = figures.counts, sum(figures.causes.values())
    tiles = [
        (f"{counts.rollouts:,}", "rollouts"),
        (f"{counts.rollouts / active_s * 60:,.0f}", "a minute"),
        (f"{counts.tokens:,}", "tokens"),
        *([] if figures.cost is None else [(money(figures.cost), "cost")]),
        (f"{figures.requests:,}", f"requests ({figures.packed:,} packed)"),
        (f"{figures.attempts:,}", f"attempts, {figures.rate_limited:,} × 429"),
        (f"{failed:,}", "failed"),
        (f"{counts.truncated:,}", "truncated"),
        (f"{counts.empty:,}", "empty"),
    ]
    return "".join(
        f'<div class="tile{" bad" if label == "failed" and failed else ""}"><b>{value}</b><span>{label}</span></div>'
        for value, label in tiles
    )


def _latency(histogram: Histogram) -> str:
    """The time that requests took, in logarithmic buckets."""
    buckets = sorted(bucket for bucket in histogram.buckets if bucket >= 0)
    if not buckets:
        return "<p class=none>no times recorded</p>"
    low, high = buckets[0], buckets[-1] + 1
    step = math.ceil((high - low) / _HISTOGRAM_BINS)
    starts = range(low, high, step)
    counts = [float(sum(histogram.buckets.get(start + place, 0) for place in range(step))) for start in starts]
    labels = [f"{Histogram.seconds(start):.2g} s" for start in starts]
    values = [(name, histogram.percentile(share) or 0.0) for share, name in ((0.5, "p50"), (0.95, "p95"))]
    marks = [((Histogram.bucket(value) + 0.5 - low) / step, f"{name} {value:.2g} s") for name, value in values]
    return chart(Series(counts, labels, "requests", marks=marks))


def _percentiles(figures: RunFigures) -> str:
    rows = (("waiting for a slot and a start", figures.waiting), ("with the provider", figures.provider),
            ("between attempts", figures.retrying))  # fmt: skip
    cells = "".join(
        f"<tr><th>{name}</th>" + "".join(f"<td>{_s(of.percentile(share))}</td>" for share in (0.5, 0.95, 1.0)) + "</tr>"
        for name, of in rows
    )
    return f"<table class=times><tr><th></th><td>p50</td><td>p95</td><td>longest</td></tr>{cells}</table>"


def _failures(figures: RunFigures) -> str:
    if not figures.failures:
        return ""
    rows = "".join(
        f"<tr><td>{escape(str(record.get('line')))}</td><td>{escape(str(record.get('id'))[:60])}</td>"
        f"<td>{escape(str(record.get('cause')))}</td><td>{escape(str(record.get('message'))[:300])}</td></tr>"
        for record in figures.failures
    )
    more = sum(figures.causes.values()) - len(figures.failures)
    note = f"<p class=none>and {more:,} more in the errors file</p>" if more > 0 else ""
    return f"<table class=wide><tr><th>line</th><th>id</th><th>cause</th><th>message</th></tr>{rows}</table>{note}"


def _texts(records: list[dict[str, Any]]) -> str:
    return "".join(
        f"<details><summary><b>{escape(str(record['id'])[:60])}</b> prompt {record['prompt_index']}, choice "
        f"{record['choice_index']} · {len(record['text']):,} characters · {_s(record['provider_s'])} · "
        f"{escape(str(record['finish_reason']))}</summary><pre>{escape(record['text'][:_TEXT])}"
        f"{'…' if len(record['text']) > _TEXT else ''}</pre></details>"
        for record in records
    )


def _parameters(figures: RunFigures) -> str:
    if figures.sidecar is None:
        return "<p class=none>the run's .run.json is missing</p>"
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
