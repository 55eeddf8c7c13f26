"""The metric catalogue: its names, its cost while nothing is served, and its HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from brimful.errors import SettingError
from brimful.state.status import Status, WorkerStatus
from brimful_worker.metrics import catalogue as metrics
from support.metrics import exposed
from support.waiting import wait_until_async


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    metrics.stop()
    yield
    metrics.stop()


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def status(epoch: str | None) -> Status:
    return Status(
        tag="k",
        epoch=epoch,
        rebuilding=False,
        slots=16,
        slots_used=12,
        cooling=0,
        starts=None,
        starts_used=7,
        window_s=60.0,
        tokens=None,
        tokens_used=0,
        budget=None,
        budget_spent=0,
        waiting={"interactive": 3, "batch": 40},
        pause_s=0.0,
        pause_reason=None,
        circuit_breaker="open",
        failures=20,
        limits={},
        overridden=(),
        workers=(WorkerStatus("p", "w1", "host", 1, held=5, interactive=3, batch=40, heard_s=0.1),),
    )


def test_names_follow_prometheus_conventions() -> None:
    assert len(metrics.CATALOGUE) >= 20
    assert len({metric.name for metric in metrics.CATALOGUE}) == len(metrics.CATALOGUE)
    for metric in metrics.CATALOGUE:
        assert metric.name.startswith("brimful_")
        assert metric.description.endswith(".")
        assert metric.unit
        assert isinstance(metric, metrics.Counter) == metric.name.endswith("_total")
        assert ("_seconds" in metric.name) == (metric.unit == "seconds")


def test_nothing_is_counted_until_metrics_are_served() -> None:
    metrics.STARTS.inc("batch")
    metrics.WAIT_SECONDS.observe(1.0, "batch")
    metrics.HELD.inc()
    assert not metrics.serving()
    port = metrics.serve(0, key_tag="k")
    text = scrape(port)
    assert 'brimful_starts_total{key="k",workload="batch"} 0.0' in text.splitlines()
    assert 'brimful_leases_lost_total{key="k"} 0.0' in text.splitlines()


def test_labelled_counters_begin_at_zero_for_every_value() -> None:
    """Prometheus sees no increase in a series that first appears above zero."""
    lines = scrape(metrics.serve(0, key_tag="k")).splitlines()
    for metric in metrics.CATALOGUE:
        if isinstance(metric, metrics.Counter) and not {"caller", "model"} & set(
            metric.labels
        ):  # they begin with these
            expected = math.prod(len(values) for values in metric.values)
            assert len(metric.values) == len(metric.labels), metric.name
            assert sum(line.startswith(f"{metric.name}{{") and line.endswith(" 0.0") for line in lines) == expected
    assert 'brimful_attempts_total{key="k",mode="chat",result="rate_limited"} 0.0' in lines


def test_another_key_begins_its_own_series() -> None:
    port = metrics.serve(0, key_tag="old")
    metrics.STARTS.inc("batch")
    metrics.rekey("new")
    metrics.STARTS.inc("batch")
    text = scrape(port)
    assert 'brimful_starts_total{key="new",workload="batch"} 1.0' in text
    assert 'key="old"' not in text


def test_a_token_keeps_other_users_of_the_machine_out() -> None:
    port = metrics.serve(0, key_tag="k", token="t0ken")
    for given in ({}, {"Authorization": "Bearer other"}):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=given)
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(request, timeout=60)
        refused.value.close()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": "Bearer t0ken"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert b"brimful_starts_total" in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="503") as starting:
        scrape(port, "/healthz")  # a container's health check has no token
    starting.value.close()


def test_every_metric_is_exposed_with_the_keys_tag() -> None:
    port = metrics.serve(0, key_tag="0123abcd")
    assert metrics.serving()
    for metric in metrics.CATALOGUE:
        labels = ["x"] * len(metric.labels)
        if isinstance(metric, metrics.Histogram):
            metric.observe(0.5, *labels)
        elif isinstance(metric, metrics.Gauge):
            metric.set(2, *labels)
        elif isinstance(metric, metrics.Counter):
            metric.inc(*labels, by=2)
    text = scrape(port)
    for metric in metrics.CATALOGUE:
        for name in exposed(metric):
            assert any(line.startswith(f"{name}{{") and 'key="0123abcd"' in line for line in text.splitlines()), name


def test_the_fleets_status_sets_the_gauges() -> None:
    port = metrics.serve(0, key_tag="k")
    for epoch in ("a", "a", None, "b"):
        metrics.fleet_status(status(epoch), "w1")
    lines = scrape(port).splitlines()
    for line in ("slots_used", "slots_limit"):
        assert any(entry.startswith(f"brimful_{line}{{") for entry in lines)
    assert 'brimful_window_starts_limit{key="k"} 0.0' in lines
    assert 'brimful_pause_seconds{key="k"} 0.0' in lines
    assert 'brimful_breaker_open{key="k"} 1.0' in lines
    assert 'brimful_rebuilds_total{key="k"} 1.0' in lines
    assert 'brimful_held_slots{key="k"} 5.0' in lines
    assert 'brimful_waiting_requests{key="k",workload="batch"} 40.0' in lines
    assert 'brimful_redis_up{key="k"} 1.0' in lines
    metrics.redis_away()
    assert 'brimful_redis_up{key="k"} 0.0' in scrape(port).splitlines()


def test_when_a_port_is_taken_the_next_free_one_is_used() -> None:
    first = metrics.serve(0, key_tag="k")
    second = metrics.serve(first, key_tag="k")
    assert second > first
    assert "brimful" in scrape(second)


def test_an_address_of_another_machine_is_a_setting_error() -> None:
    with pytest.raises(SettingError, match=r"BRIMFUL_METRICS_PORT: cannot listen on 192\.0\.2\.1"):
        metrics.serve(0, key_tag="k", address="192.0.2.1")
    assert not metrics.serving()


async def test_health_follows_the_event_loop() -> None:
    port = metrics.serve(0, key_tag="k")
    with pytest.raises(urllib.error.HTTPError, match="503") as starting:
        await asyncio.to_thread(scrape, port, "/healthz")
    starting.value.close()
    beating = asyncio.create_task(metrics.heartbeat())
    await wait_until_async(lambda: not metrics.health(), "the first beat")
    assert await asyncio.to_thread(scrape, port, "/healthz") == "ok\n"
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating
    assert "stuck" in metrics.health(lambda: time.monotonic() + 60)
