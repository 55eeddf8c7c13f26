"""Metrics in tests: their samples, by name."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from brimful_worker.metrics.kinds import Histogram, Metric


def exposed(metric: Metric) -> tuple[str, ...]:
    """The names of its samples, as queries write them."""
    suffixes = ("_bucket", "_sum", "_count") if isinstance(metric, Histogram) else ("",)
    return tuple(f"{metric.name}{suffix}" for suffix in suffixes)


def samples(port: int) -> dict[str, float]:
    """What a process serves there: ``name{labels}``, with the labels in their order → value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = {}
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
        found[f"{sample.name}{{{labels}}}"] = sample.value
    return found
