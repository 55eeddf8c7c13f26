"""Metrics in tests: their samples' names, and an end to counting."""

from __future__ import annotations

from brimful_worker.metrics import catalogue


def exposed(metric: catalogue.Metric) -> tuple[str, ...]:
    """The names of its samples, as queries write them."""
    suffixes = ("_bucket", "_sum", "_count") if isinstance(metric, catalogue.Histogram) else ("",)
    return tuple(f"{metric.name}{suffix}" for suffix in suffixes)


def stop_counting() -> None:
    """Undo ``catalogue.serve``, which in a worker lasts as long as its process."""
    for metric in catalogue.CATALOGUE:
        metric._series = None
    while catalogue._servers:
        server = catalogue._servers.pop()
        server.shutdown()
        server.server_close()
