"""The kinds of metrics. Nothing is counted until they are opened, and every series has the label ``key``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


OTHERS = "(others)"


class BoundedLabel:
    """Values of a label that come from outside: the first ``most`` have series of their own, the others share one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if len(self._known) < self._most:
            self._known.add(value)
        return value if value in self._known else OTHERS


@dataclass(slots=True)
class Metric:
    """One entry of the catalogue."""

    name: str
    description: str
    unit: str
    """Prometheus's base units (seconds, bytes), or what is counted."""
    labels: tuple[str, ...] = ()
    """Without ``key``, which all have."""
    buckets: tuple[float, ...] = ()
    """A histogram's upper bounds, in the metric's unit."""
    values: tuple[tuple[str, ...], ...] = ()
    """A counter's or histogram's values of each label. Its series begin at 0: Prometheus sees no increase in one that
    first appears above, so that a burst within the first scrape would be lost."""
    _series: dict[tuple[str, ...], Any] | None = field(default=None, repr=False)
    """By label values; None while nothing is counted. prometheus_client's own lookup costs three times as much."""
    _make_series: Any = field(default=None, repr=False)
    _live: Any = field(default=None, repr=False)
    """prometheus_client's metric."""
    _key: str = field(default="", repr=False)
    """The label ``key`` of all series."""

    def open(self, registry: CollectorRegistry, key: str) -> None:
        import prometheus_client

        options = {"buckets": self.buckets} if self.buckets else {}
        kind = getattr(prometheus_client, type(self).__name__)
        self._live = kind(self.name, self.description, ("key", *self.labels), registry=registry, **options)
        self._begin(key)

    def close(self) -> None:
        """Count nothing any more. The registry that it was opened with keeps its last values."""
        self._series = None

    def rekey(self, key: str) -> None:
        """Expose series of another API key instead of the last one's. Counters begin at 0."""
        if self._series is not None:
            self._live.clear()
            self._begin(key)

    def _begin(self, key: str) -> None:
        self._series, self._key = {}, key
        self._make_series = lambda labels: self._live.labels(key, *map(str, labels))
        if not isinstance(self, Gauge):
            for labels in itertools.product(*self.values) if self.values or not self.labels else ():
                self._one(labels)

    def _one(self, labels: tuple[str, ...]) -> Any:
        assert self._series is not None
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = self._make_series(labels)
        return series


class Counter(Metric):
    """Only grows. Its name ends in ``_total``."""

    __slots__ = ()

    def inc(self, *labels: str, by: float = 1) -> None:
        if self._series is not None:
            self._one(labels).inc(by)


class Gauge(Metric):
    """Goes up and down."""

    __slots__ = ()

    def set(self, value: float, *labels: str) -> None:
        if self._series is not None:
            self._one(labels).set(value)

    def inc(self, *labels: str, by: float = 1) -> None:
        if self._series is not None:
            self._one(labels).inc(by)

    def dec(self, *labels: str) -> None:
        self.inc(*labels, by=-1)

    def set_all(self, values: Mapping[str, float]) -> None:
        """Set the series of a metric with one label, by that label, and remove all others."""
        if self._series is None:
            return
        for labels in [labels for labels in self._series if labels[0] not in values]:
            del self._series[labels]
            self._live.remove(self._key, *labels)
        for label, value in values.items():
            self.set(value, label)


class Histogram(Metric):
    """A distribution over its buckets."""

    __slots__ = ()

    def observe(self, value: float, *labels: str) -> None:
        if self._series is not None:
            self._one(labels).observe(value)
