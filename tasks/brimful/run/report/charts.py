"""SVG charts for a run's page, without scripts, fonts or external files. Colours come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_HEIGHT = 190
FULL, HALF = 1000, 480
"""Widths of a chart across the page and of one of two side by side, in SVG units (a font is 11 high)."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 14, 26
_LABEL = 80
"""Room for a label below the chart."""


@dataclass(frozen=True)
class Series:
    """Values of bins of equal width, and what is drawn across them."""

    values: Sequence[float]
    labels: Sequence[str]
    """One for each value: shown in its tooltip, some of them below the chart."""
    unit: str
    limit: float | None = None
    """A horizontal line."""
    limit_name: str = ""
    gaps: Sequence[int] = ()
    """Indexes of values before which an idle period was left out: dotted lines."""
    marks: Sequence[tuple[float, str]] = ()
    """Vertical lines: a position (0 to the number of values) and its name."""


def chart(series: Series, wide: int = HALF) -> str:
    """An SVG of the values as a filled stepped line."""
    count = len(series.values)
    top = _ceiling(max([*series.values, (series.limit or 0) * 1.04, 1e-9]))
    width, base = (wide - _LEFT - _RIGHT) / max(1, count), _HEIGHT - _BOTTOM

    def x(place: float) -> float:
        return _LEFT + place * width

    def y(value: float) -> float:
        return base - (base - _TOP) * min(value, top) / top

    parts = []
    for value in (0.0, top / 2, top):
        parts += [_line("grid", _LEFT, y(value), wide - _RIGHT, y(value))]
        parts += [_word(_LEFT - 8, y(value) + 4, _plain(value), "end")]
    points = " ".join(
        f"{x(place + side):.1f},{y(value):.1f}" for place, value in enumerate(series.values) for side in (0, 1)
    )
    parts.append(f'<polygon class="area" points="{x(0):.1f},{base} {points} {x(count):.1f},{base}"/>')
    parts.append(f'<polyline class="line" points="{points}"/>')
    parts += [_line("mark", x(gap), _TOP, x(gap), base) for gap in series.gaps]
    if series.limit is not None:
        at = y(series.limit)
        parts.append(_line("limit", _LEFT, at, wide - _RIGHT, at))
        name = f"{series.limit_name} {series.limit:,g}"
        parts.append(_word(wide - _RIGHT - 4, at - 5 if at > _TOP + 12 else at + 13, name, "end", "limit-word"))
    for row, (mark, name) in enumerate(series.marks):
        parts.append(_line("limit", x(mark), _TOP, x(mark), base))
        anchor, shift = ("end", -4) if mark > count * 0.8 else ("start", 4)
        parts.append(_word(x(mark) + shift, _TOP + 9 + 13 * row, name, anchor, "limit-word"))
    step = -(-count // (wide // _LABEL)) or 1
    for place, (value, label) in enumerate(zip(series.values, series.labels, strict=True)):
        parts.append(
            f'<rect class="tip" x="{x(place):.1f}" y="{_TOP}" width="{max(width, 0.5):.1f}" height="{base - _TOP}">'
            f"<title>{escape(label)}: {_number(value)} {escape(series.unit)}</title></rect>"
        )
        if place % step == 0 and x(place) < wide - _LABEL / 2 - _RIGHT:
            style = "word" if place // step % 2 == 0 else "word minor"  # every second one makes room on a phone
            parts.append(_word(x(place), _HEIGHT - 8, label, "start", style))
    size = "full" if wide == FULL else "half"
    return (
        f'<svg class="{size}" viewBox="0 0 {wide} {_HEIGHT}" role="img" preserveAspectRatio="xMidYMid meet">'
        f"{''.join(parts)}</svg>"
    )


def wide_chart(series: Series) -> str:
    """A chart across the page, and the one of half its width that a phone shows instead."""
    return chart(series, FULL) + chart(series).replace('class="half"', 'class="half narrow"', 1)


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _word(x: float, y: float, text: str, anchor: str, style: str = "word") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _number(value: float) -> str:
    """``12,345``, ``3.1``: never with an exponent."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def _plain(value: float) -> str:
    """Short, for an axis: ``0.5``, ``750``, ``30k``, ``1.5M``."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.3g}"


def _ceiling(value: float) -> float:
    """The next round number for an axis: 1 to 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((power * step for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if power * step >= value), power * 10)
